"""The client side: submits a job and waits for it. It builds the graph once, to find errors early.

The client keeps no state. On a session cluster the job continues when the client dies. A local
cluster ends with its client, and the next run recovers the job.
"""
