"""What an attempt does between its claim and its deployment, and what a job does at its end.

Recovery, in this order: read everything that the broker says of the named transactions, decide for
all of them together, end them, write it down, and only then fence what is not named. The order is
the protocol's: fencing first would abort what is published. Where something is lost, the
publication is taken back if it can be (`rollback.py`), and the question is put again for the one
before it.
"""

from __future__ import annotations

from dataclasses import dataclass

from tidegate.checkpoint.effects import Procedure
from tidegate.checkpoint.journal import Closed
from tidegate.checkpoint.procedures.claimed_journal import (
    ClaimedJournal,
    append_entry,
    header_after,
    mark_committed,
)
from tidegate.checkpoint.procedures.cluster_check import give_up_foreign
from tidegate.checkpoint.procedures.ending import CommitResult, describe_all, end_transactions
from tidegate.checkpoint.procedures.fencing import fence_older_attempts
from tidegate.checkpoint.procedures.retry import (
    COMMIT_RETRY,
    FENCE_RETRY,
    STORAGE_RETRY,
    RetryPolicy,
)
from tidegate.checkpoint.procedures.rollback import roll_back
from tidegate.checkpoint.procedures.settle import settle, state_loss
from tidegate.checkpoint.recovery import decide, is_complete
from tidegate.errors import DataLossError, OutcomeUnknownError
from tidegate.ids import CheckpointId, TransactionalId
from tidegate.protocol.snapshots import PreparedTransaction


@dataclass(frozen=True, slots=True, kw_only=True)
class Recovered:
    """What recovery did; for the log."""

    ended: tuple[PreparedTransaction, ...]
    fenced: tuple[TransactionalId, ...]
    retracted: tuple[CheckpointId, ...]
    """Newest first: their records are written again."""
    given_up: tuple[PreparedTransaction, ...] = ()
    """Of another Kafka cluster, on the operator's word."""


def recover(
    journal: ClaimedJournal,
    *,
    ending: RetryPolicy = COMMIT_RETRY,
    fencing: RetryPolicy = FENCE_RETRY,
    storing: RetryPolicy = STORAGE_RETRY,
) -> Procedure[Recovered]:
    """Settle the last publication and fence what older attempts left. Then the job may be deployed.

    `ending` bounds the time for which Kafka may be away: the transaction timeout. DataLossError if
    the broker has aborted something that is named, KafkaError if it can not be asked in time.
    """
    given_up = yield from give_up_foreign(journal, storing=storing)
    try:
        ended, retracted = yield from _settle_last(journal, ending, storing)
    except DataLossError:
        # The job stays failed, perhaps for long: readers must not stand still behind what died.
        yield from fence_older_attempts(journal, patience=fencing)
        raise
    fenced = yield from fence_older_attempts(journal, patience=fencing)
    return Recovered(ended=ended, fenced=fenced, retracted=retracted, given_up=given_up)


def close(
    journal: ClaimedJournal,
    outcome: str,
    *,
    stopped: str = "",
    ending: RetryPolicy = COMMIT_RETRY,
    fencing: RetryPolicy = FENCE_RETRY,
    storing: RetryPolicy = STORAGE_RETRY,
) -> Procedure[None]:
    """End the job for good: settle, fence all ids, this attempt's too, and close the journal.

    `outcome` is `finished`, `canceled` or `failed`; `stopped` is as in `Closed`. To be called when
    no task of the attempt runs any more. What was prepared and never published is aborted by it.
    After a loss was stated it only fences and closes; the loss remains to be accepted.
    OutcomeUnknownError, with nothing done, for a journal that is in doubt: what it does not know to
    be published it would abort.
    """
    if journal.last_write_unknown:
        message = (
            f"it is not known what the last entry of job {journal.job!r} is; it must be claimed "
            "anew before it can be closed"
        )
        raise OutcomeUnknownError(message)
    yield from give_up_foreign(journal, storing=storing)
    if journal.state.lost is None:
        yield from _settle_last(journal, ending, storing)
    yield from fence_older_attempts(journal, patience=fencing, own_too=True)
    header = yield from header_after(journal.state)
    entry = Closed(**header, attempt=journal.attempt, outcome=outcome, stopped=stopped)
    yield from append_entry(journal, entry, storing)


def _settle_last(
    journal: ClaimedJournal, ending: RetryPolicy, storing: RetryPolicy
) -> Procedure[tuple[tuple[PreparedTransaction, ...], tuple[CheckpointId, ...]]]:
    """What was ended and what was retracted; DataLossError where something is lost."""
    retracted: tuple[CheckpointId, ...] = ()
    while True:
        result = yield from _end_named(journal, ending)
        mark_committed(journal, result.ended)
        if not result.lost:
            break
        taken_back = yield from roll_back(journal, ending=ending, storing=storing)
        if not taken_back:
            yield from state_loss(journal, result.lost, ending=ending, storing=storing)
        retracted += taken_back
    yield from settle(journal, result, ending=ending, storing=storing)
    return result.ended, retracted


def _end_named(journal: ClaimedJournal, patience: RetryPolicy) -> Procedure[CommitResult]:
    """End what the last publication names; nothing is ended where something is seen to be lost."""
    named = journal.uncommitted
    facts = yield from describe_all(named, patience)
    decision = decide(named, settled=journal.state.settled, facts=facts)
    complete = tuple(txn for txn in decision.done if is_complete(txn, facts[txn]))
    if decision.lost:
        return CommitResult(ended=complete, lost=decision.lost)
    open_ = tuple(txn for txn in named if txn not in complete)
    result = yield from end_transactions(open_, settled=False, patience=patience)
    return CommitResult(ended=(*complete, *result.ended), lost=result.lost)
