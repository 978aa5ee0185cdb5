"""The commit protocol's steps, as generators that ask for effects and do nothing themselves.

An attempt runs, in this order: `claim`, `recover`, before its slots begin `confirm`, before the
first publication of a submission `fix_beginnings`, then per checkpoint `publish`, `commit`,
`settle`, now and then `sweep`, `delete_unneeded` and `trim`, at the job's end `close`. `OwnJournal`
goes through all of them. The JobMaster runs them in worker threads by
`controlplane/jobmaster/effects.py`.
"""

from tidegate.checkpoint.procedures.beginnings import fix_beginnings, read_beginnings
from tidegate.checkpoint.procedures.claim import claim, claim_to_close
from tidegate.checkpoint.procedures.cleaning import Cleaning, delete_unneeded
from tidegate.checkpoint.procedures.ending import Ended, commit
from tidegate.checkpoint.procedures.fencing import fence_older, sweep
from tidegate.checkpoint.procedures.own_journal import OwnJournal, confirm
from tidegate.checkpoint.procedures.patience import Patience
from tidegate.checkpoint.procedures.publish import PublishedCheckpoint, load_manifest, publish
from tidegate.checkpoint.procedures.reading import read_journal
from tidegate.checkpoint.procedures.recover import Recovered, close, recover
from tidegate.checkpoint.procedures.settle import settle
from tidegate.checkpoint.procedures.trimming import trim

__all__ = [
    "Cleaning",
    "Ended",
    "OwnJournal",
    "Patience",
    "PublishedCheckpoint",
    "Recovered",
    "claim",
    "claim_to_close",
    "close",
    "commit",
    "confirm",
    "delete_unneeded",
    "fence_older",
    "fix_beginnings",
    "load_manifest",
    "publish",
    "read_beginnings",
    "read_journal",
    "recover",
    "settle",
    "sweep",
    "trim",
]
