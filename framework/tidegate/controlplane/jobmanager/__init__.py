"""The JobManager: knows all jobs and all slots, and decides which job gets which slots.

It never imports user code. Therefore every job has its own JobMaster process.
"""
