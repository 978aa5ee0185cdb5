"""Explicit-state models of the commit protocol, and the search that visits all of their states.

`model.py` is the protocol of a live job. `wave_model.py` is what the waves of a backfill add to it.
`claim_model.py` is the claim id, by which a first claim notices that the journal lacks its end. All
are written from the protocol and not from the code: they share nothing with `framework/`.
"""
