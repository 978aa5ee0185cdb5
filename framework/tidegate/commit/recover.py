"""The steps of an attempt between its claim and its deployment, and the steps at the end of a job.

Recovery has a fixed order. It reads everything that the broker knows of the listed transactions,
decides for all of them together, ends them, and records the result. Only then it fences ids that
are not listed. Fencing first would abort published transactions. If a transaction is lost, the
publication is rolled back if possible (`rollback.py`). Recovery then decides for the publication
before it.
"""

from __future__ import annotations

from dataclasses import dataclass

from tidegate.commit.cluster_check import abandon_foreign_transactions
from tidegate.commit.committer import CommitResult, describe_all, end_transactions
from tidegate.commit.decisions import decide, is_complete
from tidegate.commit.effects import Procedure, delete_object
from tidegate.commit.fencing import fence_older_attempts
from tidegate.commit.initial_offsets import initial_offsets_path
from tidegate.commit.journal.claimed import (
    ClaimedJournal,
    append_entry,
    header_after,
    mark_committed,
)
from tidegate.commit.journal.entries import Closed
from tidegate.commit.retry import (
    COMMIT_RETRY,
    FENCE_RETRY,
    STORAGE_RETRY,
    RetryPolicy,
)
from tidegate.commit.rollback import roll_back
from tidegate.commit.settle import settle, state_loss
from tidegate.errors import DataLossError, OutcomeUnknownError, StorageError
from tidegate.ids import CheckpointId, TransactionalId
from tidegate.protocol.subtask_snapshot import PreparedTransaction


@dataclass(frozen=True, slots=True, kw_only=True)
class Recovered:
    """The result of a recovery, for the log."""

    ended: tuple[PreparedTransaction, ...]
    fenced: tuple[TransactionalId, ...]
    rolled_back: tuple[CheckpointId, ...]
    """The checkpoints that were rolled back, newest first: their records are written again."""
    abandoned: tuple[PreparedTransaction, ...] = ()
    """The transactions of another Kafka cluster that were abandoned with the operator's consent."""


def recover(
    journal: ClaimedJournal,
    *,
    commit_retry: RetryPolicy = COMMIT_RETRY,
    fence_retry: RetryPolicy = FENCE_RETRY,
    storage_retry: RetryPolicy = STORAGE_RETRY,
) -> Procedure[Recovered]:
    """Settle the last publication and fence the ids of older attempts. After it the job may be
    deployed.

    `commit_retry` limits the time for which Kafka may be unavailable: the transaction timeout.
    DataLossError if the broker has aborted a listed transaction, TransactionSystemError if it does
    not answer in time.
    """
    abandoned = yield from abandon_foreign_transactions(journal, storage_retry=storage_retry)
    try:
        ended, rolled_back = yield from _settle_last(journal, commit_retry, storage_retry)
    except DataLossError:
        # The job stays failed, perhaps for a long time. Readers must not wait behind open
        # transactions of dead attempts.
        yield from fence_older_attempts(journal, retry_policy=fence_retry)
        raise
    fenced = yield from fence_older_attempts(journal, retry_policy=fence_retry)
    return Recovered(ended=ended, fenced=fenced, rolled_back=rolled_back, abandoned=abandoned)


def close(
    journal: ClaimedJournal,
    outcome: str,
    *,
    stopped: str = "",
    commit_retry: RetryPolicy = COMMIT_RETRY,
    fence_retry: RetryPolicy = FENCE_RETRY,
    storage_retry: RetryPolicy = STORAGE_RETRY,
) -> Procedure[None]:
    """End the job permanently: settle, fence all ids, including those of this attempt, and close
    the journal.

    `outcome` is `finished`, `canceled` or `failed`; `stopped` is as in `Closed`. To be called when
    no task of the attempt runs any more. Transactions that were prepared and never published are
    aborted. After a stated loss this only fences and closes, and the loss still has to be accepted.
    OutcomeUnknownError, with nothing done, if the journal's last write is unknown: a publication
    that this process does not know would be aborted.
    """
    if journal.last_write_unknown:
        message = (
            f"It is not known what the last entry of job {journal.job!r} is; it must be claimed "
            "again before it can be closed."
        )
        raise OutcomeUnknownError(message)
    yield from abandon_foreign_transactions(journal, storage_retry=storage_retry)
    if journal.state.lost is None:
        yield from _settle_last(journal, commit_retry, storage_retry)
    yield from fence_older_attempts(journal, retry_policy=fence_retry, include_current_attempt=True)
    header = yield from header_after(journal.state)
    entry = Closed(**header, attempt=journal.attempt, outcome=outcome, stopped=stopped)
    yield from append_entry(journal, entry, storage_retry)
    try:
        yield from delete_object(initial_offsets_path(journal.job, journal.submission_id))
    except StorageError:
        return  # the cleanup of a later submission deletes it


def _settle_last(
    journal: ClaimedJournal, commit_retry: RetryPolicy, storage_retry: RetryPolicy
) -> Procedure[tuple[tuple[PreparedTransaction, ...], tuple[CheckpointId, ...]]]:
    """Settle the last publication. Return the committed transactions and the checkpoints that were
    rolled back. DataLossError if a transaction is lost.
    """
    rolled_back: tuple[CheckpointId, ...] = ()
    while True:
        result = yield from _end_pending(journal, commit_retry)
        mark_committed(journal, result.ended)
        if not result.lost:
            break
        taken_back = yield from roll_back(
            journal, commit_retry=commit_retry, storage_retry=storage_retry
        )
        if not taken_back:
            yield from state_loss(
                journal, result.lost, commit_retry=commit_retry, storage_retry=storage_retry
            )
        rolled_back += taken_back
    yield from settle(journal, result, commit_retry=commit_retry, storage_retry=storage_retry)
    return result.ended, rolled_back


def _end_pending(journal: ClaimedJournal, retry_policy: RetryPolicy) -> Procedure[CommitResult]:
    """End the transactions that the last publication lists. End none if one of them is lost."""
    pending = journal.uncommitted
    descriptions = yield from describe_all(pending, retry_policy)
    decision = decide(pending, settled=journal.state.settled, descriptions=descriptions)
    complete = tuple(txn for txn in decision.done if is_complete(txn, descriptions[txn]))
    if decision.lost:
        return CommitResult(ended=complete, lost=decision.lost)
    open_ = tuple(txn for txn in pending if txn not in complete)
    result = yield from end_transactions(open_, settled=False, retry_policy=retry_policy)
    return CommitResult(ended=(*complete, *result.ended), lost=result.lost)
