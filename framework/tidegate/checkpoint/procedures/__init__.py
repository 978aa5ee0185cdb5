"""The commit protocol's steps, as generators that ask for effects and do nothing themselves.

An attempt runs, in this order: `claim`, `recover`, before its slots begin `confirm`, before the
first publication of a submission `record_initial_offsets`, then per checkpoint `publish`, `commit`,
`settle`, now and then `sweep`, `clean_up` and `truncate`, at the job's end `close`.
`ClaimedJournal` goes through all of them. The JobMaster runs them in worker threads by
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
