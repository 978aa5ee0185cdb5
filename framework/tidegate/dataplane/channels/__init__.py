"""The edges between subtasks: in memory inside a slot, framed and credited between slots.

A barrier is never overtaken by a record of its channel and never overtakes one.
"""
