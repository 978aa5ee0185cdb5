"""The data plane: sources, channels, operators, state, sinks, and the tasks that drive them.

One thread moves the record batches. The data plane uses its environment through ports and never
talks to the control plane directly.
"""
