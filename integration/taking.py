"""One InitProducerId by hand: a client takes a transactional id, and does no more.

What the fence of `drivers/kafka` does in two steps is done here by one, for tests that play another
client, one that dies at once, or one that uses the id's epochs up.
"""

from __future__ import annotations

from typing import Any

from kafka.protocol.producer import InitProducerIdRequest

from tidegate.drivers.kafka.transactions import KafkaTransactionAdmin
from tidegate.ids import TransactionalId


def take(log: KafkaTransactionAdmin, transactional_id: str) -> Any:
    """The broker's answer, which may be an error."""
    request = InitProducerIdRequest(
        transactional_id=transactional_id,
        transaction_timeout_ms=60_000,
        producer_id=-1,
        producer_epoch=-1,
        min_version=4,
        max_version=4,
    )
    return log._control.ask(TransactionalId(transactional_id), request)
