"""What happens to records: sources, channels, operators, state, sinks, and the loop that drives
them.

Batches move through it in one thread; it knows its neighbours as ports and never talks to the
control plane directly.
"""
