"""Submitting a job and waiting for it: the graph is built here once, to be refused early.

It keeps no state: when the client dies, the job goes on.
"""
