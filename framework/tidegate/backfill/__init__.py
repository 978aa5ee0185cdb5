"""Backfills: a pipeline class over the history of its topics, wave by wave, on Spark.

A wave is an attempt of the job in the job's own journal, and a task of a wave is a slot for one
barrier interval. `driver.py` runs the waves, an executor runs the tasks of one. The subpackage
`spark` is the only one that imports pyspark and py4j.
"""
