"""Spark as the engine of a backfill: a session, and levels of tasks that exchange frames as rows.

`session` starts Spark or adopts the active session; `levels` runs one job of several levels; `rows`
is what goes between two levels. `stream` lets Structured Streaming drive the waves, by the stream
source of `wave_source`. `installation` and `java` say what the machine lacks.

Invariant: no module outside this package imports pyspark or py4j, and no module in it but
`wave_source` imports them when it is itself imported. So the package can be imported without the
extra `spark`, and a missing extra is one sentence and no traceback.
"""
