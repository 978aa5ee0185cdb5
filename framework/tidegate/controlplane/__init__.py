"""The processes that decide: client, Dispatcher, JobMaster, TaskManager.

Each has a pure machine and a shell that carries its instructions out. They talk by message and know
nothing of how records are processed.
"""
