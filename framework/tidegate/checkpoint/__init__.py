"""The rules of checkpoints: barrier alignment, triggers, publication, commit, recovery and restore.

The modules of this package are pure. They read no clock, file or socket: facts come in as events or
as results of effects, and decisions go out as instructions or as effect requests.
"""
