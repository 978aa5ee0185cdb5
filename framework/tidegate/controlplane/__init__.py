"""The processes that make decisions: client, JobManager, JobMaster and TaskManager.

Each server process has a pure state machine, and a service that carries out its instructions. The
processes exchange messages. They do not know how records are processed.
"""
