"""The rules of checkpoints, pure: alignment, triggers, pending and completed, commit, restore.

Nothing here reads a clock, a file or a socket; facts come in as events, decisions go out.
"""
