"""The commit protocol: a journal of entries, and the two-phase commit of Kafka transactions.

Its steps are generators. They yield effects (`effects.py`) and do nothing themselves, so the
modules of this package are pure: no clock, file, thread or client. An attempt runs the steps in
this order:

- `claim` and `recover`, when the attempt begins.
- `record_initial_offsets`, until the submission has a publication.
- `check_ownership`, before its slots start.
- `publish`, `commit` and `settle`, for each checkpoint.
- `fence_zombies`, `clean_up` and `truncate`, from time to time.
- `close`, at the end of the job.

The same `ClaimedJournal` goes through all of them. The JobMaster runs them in worker threads, with
`controlplane/journal/effect_runner.py`. `decisions.py` holds the decision table of the protocol.
The package `checkpoint` does not import this one, because a checkpoint is complete before
its commit begins.
"""
