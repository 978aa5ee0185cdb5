"""A single InitProducerId: a client takes a transactional id, and does nothing else.

The fence of `drivers/kafka` sends the same request, but retries it and raises errors. `take` sends
it once and returns the answer. Tests use it to act as another client: one that dies at once, or one
that uses up the epochs of the id.
"""

from __future__ import annotations

from typing import Any

from kafka.protocol.producer import InitProducerIdRequest

from tidegate.drivers.kafka.transactions import KafkaTransactionAdmin
from tidegate.ids import TransactionalId


def take(log: KafkaTransactionAdmin, transactional_id: str) -> Any:
    """Send InitProducerId once, and return the broker's answer, which may hold an error."""
    request = InitProducerIdRequest(
        transactional_id=transactional_id,
        transaction_timeout_ms=60_000,
        producer_id=-1,
        producer_epoch=-1,
        min_version=4,
        max_version=4,
    )
    return log._connection.ask(TransactionalId(transactional_id), request)
