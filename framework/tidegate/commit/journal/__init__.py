"""The journal of a job: its entries, the state that follows from them, and who may write to it.

`entries.py` has the forms on disk, `state.py` replays entries, `reading.py` reads them from a
storage, and `claimed.py` writes as the owner of the journal.
"""
