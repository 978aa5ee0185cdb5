"""The steps of the commit protocol, as generators that yield effects and do nothing themselves.

An attempt runs them in this order:

- `claim` and `recover`, when the attempt begins.
- `record_initial_offsets`, until the submission has a publication.
- `check_ownership`, before its slots start.
- `publish`, `commit` and `settle`, for each checkpoint.
- `fence_zombies`, `clean_up` and `truncate`, from time to time.
- `close`, at the end of the job.

The same `ClaimedJournal` goes through all of them. The JobMaster runs them in worker threads, with
`controlplane/jobmaster/effect_runner.py`.
"""

from tidegate.checkpoint.procedures.claim import claim, claim_to_close
from tidegate.checkpoint.procedures.claimed_journal import ClaimedJournal, check_ownership
from tidegate.checkpoint.procedures.cleanup import CheckpointCleanup, clean_up
from tidegate.checkpoint.procedures.ending import CommitResult, commit
from tidegate.checkpoint.procedures.fencing import fence_older_attempts, fence_zombies
from tidegate.checkpoint.procedures.initial_offsets import read_beginnings, record_initial_offsets
from tidegate.checkpoint.procedures.publish import PublishedCheckpoint, load_manifest, publish
from tidegate.checkpoint.procedures.reading import read_journal
from tidegate.checkpoint.procedures.recover import Recovered, close, recover
from tidegate.checkpoint.procedures.retry import RetryPolicy
from tidegate.checkpoint.procedures.settle import settle
from tidegate.checkpoint.procedures.truncation import truncate

__all__ = [
    "CheckpointCleanup",
    "ClaimedJournal",
    "CommitResult",
    "PublishedCheckpoint",
    "Recovered",
    "RetryPolicy",
    "check_ownership",
    "claim",
    "claim_to_close",
    "clean_up",
    "close",
    "commit",
    "fence_older_attempts",
    "fence_zombies",
    "load_manifest",
    "publish",
    "read_beginnings",
    "read_journal",
    "record_initial_offsets",
    "recover",
    "settle",
    "truncate",
]
