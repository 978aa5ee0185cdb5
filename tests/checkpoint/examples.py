"""Small values that the tests of this room share."""

from __future__ import annotations

from tidegate.ids import TransactionalId
from tidegate.ports.kafka import TransactionDescription, TransactionState
from tidegate.protocol.subtask_snapshot import PreparedTransaction

CLUSTER = "cluster-1"


def txn(number: int, *, epoch: int = 0, attempt: int = 1) -> PreparedTransaction:
    """A prepared transaction; different numbers are different transactional ids."""
    return PreparedTransaction(
        cluster_id=CLUSTER,
        transactional_id=TransactionalId(f"tidegate.job.abc123.totals.{attempt}.0.{number}"),
        producer_id=1000 + number,
        epoch=epoch,
        start_ms=5_000 + number,
    )


def described(
    transaction: PreparedTransaction, state: TransactionState, **changes: int
) -> TransactionDescription:
    """Describes a transaction as a broker does: as it was recorded, except for `changes`."""
    return TransactionDescription(
        state=state,
        producer_id=changes.get("producer_id", transaction.producer_id),
        epoch=changes.get("epoch", transaction.epoch),
        start_ms=changes.get("start_ms", transaction.start_ms),
    )
