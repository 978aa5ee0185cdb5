"""State and checkpoints in memory: the store of the state backend `memory`, and a storage for
tests.
"""
