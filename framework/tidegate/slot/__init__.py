"""The main of a slot process: the seam where the two planes meet.

It receives deployments and control messages, starts the tasks of the data plane, and carries their
answers back. It decides nothing about checkpoints or restarts.
"""
