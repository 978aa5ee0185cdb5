"""A job's journal as live processes use it: its plan, recovery, publication and close.

A JobMaster and the driver of a backfill use it. It decides by `commit/` and `checkpoint/`, and asks
Kafka and the checkpoint storage through ports.
"""
