"""The main of a slot process, where the control plane and the data plane meet.

It receives deployments and control messages, starts the tasks of the data plane, and sends their
answers back. It decides nothing about checkpoints or restarts.
"""
