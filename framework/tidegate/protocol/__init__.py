"""The messages between processes, versioned, with their codec.

Messages carry who they are about (job, attempt, leader epoch), so that a stale one can be refused.
"""
