"""The JobManager's heart: which jobs there are, which slots there are, and who gets which.

It never imports user code; that is why every job has a JobMaster process of its own.
"""
