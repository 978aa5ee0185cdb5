"""The decision for each listed transaction, and which transactional ids may be fenced.

This is the decision table of the commit protocol, as pure functions. A procedure first reads
everything, then makes one call that decides for all listed transactions together, and then carries
the decision out. The same table serves the normal case (after a publication) and recovery (after a
claim). Nothing here sends a request to Kafka.

The module keeps invariant 2: every listed transaction is committed, or its publication is rolled
back, or the job fails loudly. It also keeps the fencing half of invariant 3: no attempt fences an
id of a newer attempt, or an id that an unsettled publication lists.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from tidegate.commit.transactional_ids import TransactionalIdParts
from tidegate.ids import Attempt, JobName, TransactionalId
from tidegate.ports.kafka import TransactionDescription, TransactionState
from tidegate.protocol.subtask_snapshot import PreparedTransaction

COMMITTED: Final = frozenset({TransactionState.PREPARE_COMMIT, TransactionState.COMPLETE_COMMIT})
"""States in which the coordinator has written the decision to commit. It completes the commit by
itself.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """Every listed transaction, in exactly one of the three lists, each in the order of the
    publication.
    """

    end: tuple[PreparedTransaction, ...]
    """Transactions that are open: send EndTxn(commit)."""
    done: tuple[PreparedTransaction, ...]
    """Transactions that are committed, or certain to be committed."""
    lost: tuple[PreparedTransaction, ...]
    """Transactions that the broker has aborted, because of a timeout or for another client."""


def decide(
    pending: Sequence[PreparedTransaction],
    *,
    settled: bool,
    descriptions: Mapping[PreparedTransaction, TransactionDescription | None],
) -> Decision:
    """Decide for all listed transactions of the last publication together.

    `settled` tells whether the journal says that this publication is settled. `descriptions` has
    the broker's answer for each listed transaction, None if the broker does not know the id. If the
    broker of a transaction did not answer, the caller must ask again and must not leave the
    transaction out.
    """
    end: list[PreparedTransaction] = []
    done: list[PreparedTransaction] = []
    lost: list[PreparedTransaction] = []
    for transaction in pending:
        description = descriptions[transaction]
        if description is not None and _same_producer(transaction, description):
            if (
                description.state is TransactionState.ONGOING
                and description.start_ms == transaction.start_ms
            ):
                end.append(transaction)
                continue
            if description.state in COMMITTED:
                done.append(transaction)
                continue
        (done if settled else lost).append(transaction)
    return Decision(end=tuple(end), done=tuple(done), lost=tuple(lost))


ABORTED: Final = frozenset({TransactionState.PREPARE_ABORT, TransactionState.COMPLETE_ABORT})
"""States in which the coordinator has written the decision to abort. It completes the abort by
itself.
"""


def may_roll_back(
    introduced: Sequence[PreparedTransaction],
    *,
    lost: bool,
    irrevocable: bool,
    ended: Collection[PreparedTransaction],
    descriptions: Mapping[PreparedTransaction, TransactionDescription | None],
) -> bool:
    """Return whether a publication with a loss may be rolled back, so that no loss has to be
    stated.

    `introduced` has the transactions that this publication was the first to list. Each of them must
    be open, or proven to be aborted. `irrevocable` tells whether the journal knows that one of them
    is, or may be, committed. `ended` has the transactions that this attempt has seen
    CompleteCommit.
    """
    if not lost or irrevocable or any(txn in ended for txn in introduced):
        return False
    return all(
        is_as_prepared(txn, descriptions[txn]) or was_aborted(txn, descriptions[txn])
        for txn in introduced
    )


def was_aborted(
    transaction: PreparedTransaction, description: TransactionDescription | None
) -> bool:
    """Return whether the answer proves that the transaction was never committed.

    An abort keeps the start time. The epoch stays (EndTxn) or grows by one (a timeout, or the first
    half of a fence). A complete fence leaves Empty, a higher epoch and no start time. Two fences
    leave the same after a committed transaction, so these facts prove nothing. An id that the
    broker no longer knows proves nothing either.
    """
    return (
        description is not None
        and description.state in ABORTED
        and description.producer_id == transaction.producer_id
        and description.epoch in (transaction.epoch, transaction.epoch + 1)
        and description.start_ms == transaction.start_ms
    )


def is_complete(
    transaction: PreparedTransaction, description: TransactionDescription | None
) -> bool:
    """Return whether the transaction was seen CompleteCommit, which settles it."""
    return (
        description is not None
        and _same_producer(transaction, description)
        and description.state is TransactionState.COMPLETE_COMMIT
    )


def is_as_prepared(
    transaction: PreparedTransaction, description: TransactionDescription | None
) -> bool:
    """Return whether the transaction is open exactly as it was recorded at the barrier."""
    return (
        description is not None
        and _same_producer(transaction, description)
        and description.state is TransactionState.ONGOING
        and description.start_ms == transaction.start_ms
    )


def may_fence(
    parts: TransactionalIdParts | None,
    state: TransactionState,
    *,
    job: JobName,
    journal_id: str,
    attempt: Attempt,
    pending: Collection[TransactionalId],
    fenced_before: Attempt,
    include_current_attempt: bool = False,
) -> bool:
    """Return whether an attempt may fence a listed transactional id (`parts` is None if the id did
    not parse).

    Only ids of this job and this journal may be fenced, and only ids of strictly older attempts.
    With `include_current_attempt`, at the job's end, ids of this attempt may be fenced too. An id
    in `pending`, which an unsettled publication lists, is never fenced. Ids of attempts older than
    `fenced_before` were fenced once in any state. They are fenced again only if they are open,
    because the broker could otherwise never expire them.
    """
    if parts is None or parts.job != job or parts.journal_id != journal_id:
        return False
    if parts.attempt > attempt or (parts.attempt == attempt and not include_current_attempt):
        return False
    if str(parts) in pending:
        return False
    return parts.attempt >= fenced_before or state is TransactionState.ONGOING


def _same_producer(transaction: PreparedTransaction, description: TransactionDescription) -> bool:
    return (description.producer_id, description.epoch) == (
        transaction.producer_id,
        transaction.epoch,
    )
