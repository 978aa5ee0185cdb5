"""The record of the outcome of a publication's transactions: settled, or lost.

`Settled` frees the transactional ids that the publication lists. With it, recovery need not ask the
broker about transactions that the broker may have forgotten. `Lost` has the text for the operator.
The job fails with that text and stays failed until the loss is accepted.

Procedures that write to the journal run one at a time; the caller guarantees this.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NoReturn

from tidegate.commit.committer import CommitResult, end_transactions
from tidegate.commit.effects import Procedure, wall_clock
from tidegate.commit.journal.claimed import (
    ClaimedJournal,
    append_entry,
    header_after,
    mark_committed,
)
from tidegate.commit.journal.entries import Lost, Publication, Settled
from tidegate.commit.retry import COMMIT_RETRY, STORAGE_RETRY, RetryPolicy
from tidegate.commit.rollback import can_still_roll_back
from tidegate.commit.transactional_ids import parse_transactional_id
from tidegate.errors import DataLossError, InternalError, TransactionError, check
from tidegate.message_text import counted
from tidegate.protocol.subtask_snapshot import PreparedTransaction


def settle(
    journal: ClaimedJournal,
    result: CommitResult,
    *,
    commit_retry: RetryPolicy = COMMIT_RETRY,
    storage_retry: RetryPolicy = STORAGE_RETRY,
) -> Procedure[tuple[PreparedTransaction, ...]]:
    """Record the result of `commit` in the journal. Return the transactions whose ids are now free.

    This writes `Settled` once every transaction that the last publication lists is committed.
    Before that it only remembers the committed ones. If a transaction is lost and the publication
    may still be rolled back, it raises TransactionError, and the next attempt decides. If the
    publication cannot be rolled back, it ends the other listed transactions, writes `Lost` and
    raises DataLossError. FencedError, StorageError and OutcomeUnknownError as for any procedure
    that writes to the journal.
    """
    mark_committed(journal, result.ended)
    if result.lost and can_still_roll_back(journal):
        ids = ", ".join(txn.transactional_id for txn in result.lost)
        message = (
            f"Kafka has aborted published transactions ({ids}), and nothing of their checkpoint is "
            "committed as far as this attempt knows: the job restarts, and takes the checkpoint "
            "back if that is so."
        )
        raise TransactionError(message)
    if result.lost:
        yield from state_loss(
            journal, result.lost, commit_retry=commit_retry, storage_retry=storage_retry
        )
    last = journal.state.publication
    pending = journal.state.pending_commits
    if last is None or not pending or journal.uncommitted:
        return ()
    header = yield from header_after(journal.state)
    entry = Settled(**header, attempt=journal.attempt, publication=last.number)
    yield from append_entry(journal, entry, storage_retry)
    return pending


def state_loss(
    journal: ClaimedJournal,
    lost: Sequence[PreparedTransaction],
    *,
    commit_retry: RetryPolicy,
    storage_retry: RetryPolicy,
) -> Procedure[NoReturn]:
    """End the other listed transactions, write `Lost`, and raise DataLossError."""
    check(
        set(lost) <= set(journal.state.pending_commits),
        "a transaction that no publication lists cannot be lost",
    )
    rest = [txn for txn in journal.uncommitted if txn not in lost]
    others = yield from end_transactions(rest, settled=False, retry_policy=commit_retry)
    mark_committed(journal, others.ended)
    missing = (*lost, *others.lost)
    last = journal.state.publication
    if last is None:
        raise InternalError("a loss without a publication")
    now_ms = yield from wall_clock()
    statement = loss_statement(journal, last, missing, now_ms)
    header = yield from header_after(journal.state)
    entry = Lost(
        **header,
        attempt=journal.attempt,
        publication=last.number,
        transactions=missing,
        statement=statement,
    )
    yield from append_entry(journal, entry, storage_retry)
    raise DataLossError(statement)


def loss_statement(
    journal: ClaimedJournal,
    publication: Publication,
    lost: Sequence[PreparedTransaction],
    now_ms: int,
) -> str:
    """Return the text for the operator."""
    parsed = [parse_transactional_id(txn.transactional_id) for txn in lost]
    sinks = sorted({parts.sink for parts in parsed if parts is not None})
    ids = ", ".join(txn.transactional_id for txn in lost)
    age_s = max(0, now_ms - publication.created_ms) / 1000
    return (
        f"Job {journal.job!r} has lost output: checkpoint {publication.checkpoint} was published "
        f"{age_s:.0f} s ago by this machine's clock, and Kafka has since aborted {len(lost)} of "
        f"its {counted(len(publication.transactions), 'transaction')} ({ids}), of sink "
        f"{', '.join(sinks)}. That happens when brokers or the job are away for longer than the "
        "transaction timeout, or when another client uses the job's transactional ids. The records "
        "of these transactions will not appear, and those of the others do; the job stays failed "
        "until it is submitted with --accept-data-loss, and then continues after them."
    )
