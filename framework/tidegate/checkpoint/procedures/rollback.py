"""Taking back a publication that can not be completed, while nothing of it is visible.

The broker has aborted something that the last publication names. If everything that this
publication was the first to name is open or proven to be aborted, no reader has seen any of it: the
open ones are aborted, `retracted` is written, and the job stands on the publication before it and
does the rest again. Otherwise the loss stands (`settle.py`).

Aborted by EndTxn, never by a fence: EndTxn(abort) can not touch what a late EndTxn(commit) has
committed meanwhile, and the broker goes on saying which of the two it was; a fence would hide it.
So the question is asked again after each round, and a commit that was faster makes it a loss.

Run by `recover` and `close` only: an attempt that has tasks does not take back what it published,
it ends, and the next one decides. Under the caller's mutex of journal-writing procedures.
"""

from __future__ import annotations

from tidegate.checkpoint.effects import Procedure
from tidegate.checkpoint.journal import RolledBack
from tidegate.checkpoint.procedures.claimed_journal import (
    ClaimedJournal,
    append_entry,
    header_after,
)
from tidegate.checkpoint.procedures.ending import Facts, describe_all, send_end_txn
from tidegate.checkpoint.procedures.retry import RetryLoop, RetryPolicy
from tidegate.checkpoint.recovery import decide, is_as_prepared, may_roll_back
from tidegate.errors import KafkaUnavailableError
from tidegate.ids import CheckpointId


def roll_back(
    journal: ClaimedJournal, *, ending: RetryPolicy, storing: RetryPolicy
) -> Procedure[tuple[CheckpointId, ...]]:
    """Take back the last publication, then the one before it, as long as something that it names is
    lost and it may be taken back; returns their checkpoints, newest first.

    KafkaError if a coordinator can not be asked in time; FencedError, StorageError and
    OutcomeUnknownError as any journal-writing procedure.
    """
    retracted: list[CheckpointId] = []
    while (last := journal.state.publication) is not None:
        if not (yield from _abort_own(journal, ending)):
            break
        header = yield from header_after(journal.state)
        entry = RolledBack(
            **header,
            attempt=journal.attempt,
            publication=last.number,
            aborted=journal.state.own,
        )
        yield from append_entry(journal, entry, storing)
        retracted.append(last.checkpoint)
    return tuple(retracted)


def can_still_roll_back(journal: ClaimedJournal) -> bool:
    """Whether the next attempt may find that the last publication can be taken back: nothing that
    it was the first to name is known to be committed.
    """
    state = journal.state
    return not state.firm and not any(txn in journal.ended for txn in state.own)


def _abort_own(journal: ClaimedJournal, patience: RetryPolicy) -> Procedure[bool]:
    """Abort what the last publication was the first to name; False where it stays: nothing is
    lost, or not everything of it is certain to be aborted.
    """
    own, waiting = journal.state.own, RetryLoop(patience)
    while True:
        facts = yield from describe_all(journal.state.named, patience)
        if not _may_retract(journal, facts):
            return False
        open_ = [txn for txn in own if is_as_prepared(txn, facts[txn])]
        if not open_:
            return True
        trouble = yield from send_end_txn(open_, commit=False)
        if not (yield from waiting.wait()):
            message = (
                f"{len(open_)} transactions of a checkpoint that is to be taken back were not "
                f"aborted by Kafka in {patience.timeout_s:g} s, among them "
                f"{open_[0].transactional_id}; the job restarts and tries again"
            )
            raise trouble or KafkaUnavailableError(message)


def _may_retract(journal: ClaimedJournal, facts: Facts) -> bool:
    state = journal.state
    decision = decide(state.named, settled=state.settled, facts=facts)
    return may_roll_back(
        state.own,
        lost=any(txn not in journal.ended for txn in decision.lost),
        firm=state.firm,
        ended=journal.ended,
        facts=facts,
    )
