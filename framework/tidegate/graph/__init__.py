"""The graph of a job: the declared steps, their layout on subtasks, and the owner of each key.

The room has pure functions and data. It does not know the user's API above it, Kafka, or time.
"""
