"""Runs backfills: a pipeline class reads the history of its topics on Spark, wave by wave.

A wave is one attempt of the job in the job's own journal. A task of a wave does the work of a slot
for one checkpoint interval. `driver.py` runs the waves, and an executor runs the tasks of each
wave. Only the subpackage `spark` imports pyspark and py4j.
"""
