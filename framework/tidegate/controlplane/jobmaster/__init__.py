"""One job: its execution graph, checkpoint coordinator, transaction committer and restarts.

It runs in a process of its own, because it imports the user's pipeline.
"""
