"""The edges between subtasks: in memory inside a slot, as frames with credit between slots.

A barrier never overtakes a record of its channel, and no record overtakes a barrier.
"""
