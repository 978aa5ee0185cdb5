"""The rules of checkpoints: barrier alignment, triggers, manifests and restore.

The modules of this package are pure. They read no clock, file or socket: facts come in as events,
and decisions go out as instructions. The package `commit` publishes what a checkpoint has collected
and commits its transactions.
"""
