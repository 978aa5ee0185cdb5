"""The open transactions of a job, as its brokers know them."""

from __future__ import annotations

from contextlib import closing

from tidegate.drivers.kafka.transactions import KafkaTransactionAdmin
from tidegate.ports.kafka import TransactionState


def open_transactions(bootstrap: str, job: str) -> list[str]:
    """Return the transactional ids of this job whose transaction is Ongoing."""
    with closing(KafkaTransactionAdmin({"bootstrap.servers": bootstrap})) as log:
        listed = log.list(f"tidegate.{job}.")
    return [id_ for id_, state in listed.items() if state is TransactionState.ONGOING]
