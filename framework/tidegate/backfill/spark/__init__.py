"""Runs the tasks of a backfill on Spark, in levels that exchange frames of records as rows.

`session` starts Spark or adopts the active session. `levels` runs one Spark job of several levels,
and `rows` defines the rows that the levels exchange. `stream` lets Structured Streaming drive the
waves, with the stream source of `wave_source`. `installation` and `java` check the machine.

Invariant: no module outside this package imports pyspark or py4j. Inside the package, only
`wave_source` imports them at its top level; the other modules import them in functions. So a
machine without the extra `spark` can import the package, and the user then sees one sentence
instead of a traceback.
"""
