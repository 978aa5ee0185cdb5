"""The transaction committer: it ends the transactions that a publication lists.

The normal case and recovery use the same code. EndTxn(commit) of a *listed* transaction is always
correct and may be repeated. Its answer proves nothing: a transaction counts as committed only when
it was seen CompleteCommit. EndTxn(commit) is never sent for a transaction that no publication lists
(invariant 2). Only `rollback.py` sends EndTxn(abort). The requests of one round run in parallel:
the model allows any order, and each transaction is decided alone.

`commit` does not write to the journal, so it may run in parallel with the next checkpoint. `settle`
takes its result.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from tidegate.commit.decisions import decide, is_complete
from tidegate.commit.effects import Procedure, describe, end_transaction, gather, pause
from tidegate.commit.journal.claimed import ClaimedJournal
from tidegate.commit.retry import (
    COMMIT_RETRY,
    RetryLoop,
    RetryPolicy,
    retry_request,
)
from tidegate.commit.transactional_ids import transaction_system
from tidegate.errors import KafkaError, KafkaUnavailableError, TransactionSystemError
from tidegate.ids import KAFKA
from tidegate.message_text import counted
from tidegate.ports.kafka import EndTxnResult, TransactionDescription
from tidegate.protocol.subtask_snapshot import PreparedTransaction

Descriptions = dict[PreparedTransaction, TransactionDescription | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitResult:
    """The outcome of listed transactions, to be passed to `settle`."""

    ended: tuple[PreparedTransaction, ...]
    """Transactions that were seen CompleteCommit: subtasks need not acknowledge them again."""
    lost: tuple[PreparedTransaction, ...]
    """Transactions that the broker has aborted: `settle` states the loss and fails the job."""


def commit(
    journal: ClaimedJournal, *, retry_policy: RetryPolicy = COMMIT_RETRY
) -> Procedure[CommitResult]:
    """Commit every listed transaction that was not yet seen committed, in the order of the
    publication.

    To be called after a publication, one call at a time; a call covers all publications up to now.
    When the time of `retry_policy` is over, Kafka's last error is raised. The attempt must then
    end, and its restart retries.
    """
    return (
        yield from end_transactions(journal.uncommitted, settled=False, retry_policy=retry_policy)
    )


def describe_all(
    transactions: Sequence[PreparedTransaction], retry_policy: RetryPolicy
) -> Procedure[Descriptions]:
    """Return what the broker knows of each transaction. A request that fails is repeated within
    `retry_policy`.
    """
    description = yield from gather(
        [
            retry_request(partial(describe, transaction), retry_policy)
            for transaction in transactions
        ]
    )
    return dict(zip(transactions, description, strict=True))


def end_transactions(
    transactions: Sequence[PreparedTransaction], *, settled: bool, retry_policy: RetryPolicy
) -> Procedure[CommitResult]:
    """Send EndTxn for each transaction and describe each; repeat both for those that are still
    open.

    A describe directly after the EndTxn finds PrepareCommit, because the markers take some
    milliseconds. So there is a pause in between.
    """
    remaining = to_end = tuple(transactions)
    ended: list[PreparedTransaction] = []
    lost: list[PreparedTransaction] = []
    waiting = RetryLoop(retry_policy)
    while remaining:
        failure = yield from send_end_txn(to_end)
        if to_end:
            yield from pause(retry_policy.pause_s)
        description = yield from gather(
            [_describe_or_error(transaction) for transaction in remaining]
        )
        descriptions: Descriptions = {}
        for transaction, seen in zip(remaining, description, strict=True):
            if isinstance(seen, TransactionSystemError):
                failure = seen  # not decided before its coordinator answers
            else:
                descriptions[transaction] = seen
        asked = [transaction for transaction in remaining if transaction in descriptions]
        decision = decide(asked, settled=settled, descriptions=descriptions)
        complete = [txn for txn in decision.done if settled or is_complete(txn, descriptions[txn])]
        ended += complete
        lost += decision.lost
        gone = {*complete, *decision.lost}
        remaining = tuple(txn for txn in remaining if txn not in gone)
        to_end = tuple(txn for txn in remaining if txn not in descriptions or txn in decision.end)
        if remaining and not (yield from waiting.wait()):
            message = _incomplete_message(remaining, retry_policy)
            raise failure or not_completed(remaining, message)
    in_order = tuple(txn for txn in transactions if txn in set(ended))
    return CommitResult(ended=in_order, lost=tuple(lost))


def send_end_txn(
    to_end: Sequence[PreparedTransaction], *, commit: bool = True
) -> Procedure[TransactionSystemError | None]:
    """Send one EndTxn for each transaction. Return the error of the last one that
    failed, or None.
    """
    failures = yield from gather(
        [_send_end_or_error(transaction, commit=commit) for transaction in to_end]
    )
    return next((failure for failure in reversed(failures) if failure is not None), None)


def _send_end_or_error(
    transaction: PreparedTransaction, *, commit: bool
) -> Procedure[TransactionSystemError | None]:
    try:
        outcome = yield from end_transaction(transaction, commit=commit)
    except TransactionSystemError as error:
        return error
    if outcome is EndTxnResult.NOT_AUTHORISED:
        system = transaction_system(transaction.transactional_id)
        if system != KAFKA:
            return TransactionSystemError(
                f"The system {system!r} does not authorise ending transaction "
                f"{transaction.transactional_id}; give the job the right to commit and abort it, "
                "within the transaction timeout."
            )
        return KafkaError(
            f"Kafka does not authorise ending transaction {transaction.transactional_id}; give "
            "the job's principal the rights Describe and Write on its transactional ids, within "
            "the transaction timeout."
        )
    return None


def _describe_or_error(
    transaction: PreparedTransaction,
) -> Procedure[TransactionDescription | TransactionSystemError | None]:
    try:
        return (yield from describe(transaction))
    except TransactionSystemError as error:
        return error


def not_completed(remaining: Sequence[PreparedTransaction], message: str) -> TransactionSystemError:
    """Return the error for transactions whose coordinators answer and do not end them in time."""
    systems = {transaction_system(txn.transactional_id) for txn in remaining}
    return (KafkaUnavailableError if KAFKA in systems else TransactionSystemError)(message)


def _incomplete_message(remaining: Sequence[PreparedTransaction], retry_policy: RetryPolicy) -> str:
    ids = ", ".join(txn.transactional_id for txn in remaining[:5])
    return (
        f"The coordinators did not complete {counted(len(remaining), 'published transaction')} in "
        f"{retry_policy.timeout_s:g} s, among them {ids}; the job restarts and retries."
    )
