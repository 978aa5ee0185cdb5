"""Questions to a cluster whose leaders are being elected: they are asked again, and no other.

Method: the client under the admin is replaced by one that answers from a list. What real brokers
say is in tests/contracts and integration.
"""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException, TopicPartition

from tidegate.drivers.kafka.admin import KafkaClusterAdmin
from tidegate.elements import Origin
from tidegate.errors import TidegateError

FIRST, SECOND = Origin("orders", 0), Origin("orders", 1)


class Answering:
    """Answers each question for offsets with the next of these: an offset or an error's code."""

    def __init__(self, *answers: Mapping[Origin, int | KafkaError]) -> None:
        self._answers = iter(answers)
        self.asked: list[set[Origin]] = []

    def list_offsets(
        self, asked: Mapping[TopicPartition, object], **_: object
    ) -> dict[TopicPartition, Future[Any]]:
        self.asked.append({Origin(each.topic, each.partition) for each in asked})
        said, futures = next(self._answers), {}
        for each in asked:
            futures[each] = future = Future[Any]()
            answer = said[Origin(each.topic, each.partition)]
            if isinstance(answer, KafkaError):
                future.set_exception(KafkaException(answer))
            else:
                future.set_result(SimpleNamespace(offset=answer))
        return futures


def admin_over(client: Answering) -> KafkaClusterAdmin:
    admin: Any = KafkaClusterAdmin({"bootstrap.servers": "localhost:1"})
    admin._client = client
    return admin  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    "code",
    [
        KafkaError.NOT_LEADER_FOR_PARTITION,
        KafkaError.LEADER_NOT_AVAILABLE,
        KafkaError.UNKNOWN_LEADER_EPOCH,
        KafkaError.FENCED_LEADER_EPOCH,
        KafkaError.OFFSET_NOT_AVAILABLE,
    ],
)
def test_offsets_are_asked_for_again_while_a_leader_is_elected(code: int) -> None:
    """Topics that were made a moment ago: a broker may know less of their leaders than we do."""
    client = Answering({FIRST: KafkaError(code), SECOND: 7}, {FIRST: 5, SECOND: 7})
    assert admin_over(client).latest([FIRST, SECOND]) == {FIRST: 5, SECOND: 7}
    assert client.asked == [{FIRST, SECOND}] * 2


def test_another_error_is_told_at_once() -> None:
    client = Answering({FIRST: KafkaError(KafkaError.CLUSTER_AUTHORIZATION_FAILED)})
    with pytest.raises(TidegateError, match="orders-0"):
        admin_over(client).latest([FIRST])
