"""Spark as the engine of a backfill: a session, and levels of tasks that exchange frames as rows.

`session` starts Spark or adopts the active session; `levels` runs one job of several levels; `rows`
is what goes between two levels. `installation` and `java` say what the machine lacks.

Invariant: no module outside this package imports pyspark or py4j, and no module in it imports them
when it is itself imported. So the package can be imported without the extra `spark`, and a missing
extra is one sentence and no traceback.
"""
