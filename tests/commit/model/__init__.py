"""Explicit-state models of the commit protocol, and the search that visits all of their states.

`model.py` is the protocol of a live job, `wave_model.py` what the waves of a backfill add to it, and
`claim_model.py` the claim id, by which a first claim notices that the journal lacks its end. All
are written from the protocol and not from the code: they share nothing with `framework/`.
"""
