"""The messages between processes, versioned, with their codec.

Messages name their subject (job, attempt, leader epoch), so that a receiver can refuse a stale one.
"""
