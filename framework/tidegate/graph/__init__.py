"""The graph of a job: what was declared, how it is laid out on subtasks, and which of them owns a
key.

Pure functions and data. It knows nothing of the user's API above it, of Kafka, or of time.
"""
