"""Questions to a cluster whose leaders are being elected, or whose broker has just died: they are
asked again, and no other.

Method: the client under the admin is replaced by one that answers from a list, or not at all. What
real brokers say is in tests/contracts and integration
(`integration/connectors/test_dead_broker.py`).
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import (
    OFFSET_INVALID,
    KafkaError,
    KafkaException,
    TopicCollection,
)
from confluent_kafka import (
    TopicPartition as ClientPartition,
)

from tidegate.drivers.kafka import admin as admin_module
from tidegate.drivers.kafka import asking
from tidegate.drivers.kafka.admin import KafkaClusterAdmin
from tidegate.errors import KafkaUnavailableError, NotAllowedError, TidegateError
from tidegate.stream_elements import TopicPartition

FIRST, SECOND = TopicPartition("orders", 0), TopicPartition("orders", 1)


class Answering:
    """Answers each question for offsets with the next of these: an offset or an error's code."""

    def __init__(self, *answers: Mapping[TopicPartition, int | KafkaError]) -> None:
        self._answers = iter(answers)
        self.asked: list[set[TopicPartition]] = []

    def list_offsets(
        self, asked: Mapping[ClientPartition, object], **_: object
    ) -> dict[ClientPartition, Future[Any]]:
        self.asked.append({TopicPartition(each.topic, each.partition) for each in asked})
        said, futures = next(self._answers), {}
        for each in asked:
            futures[each] = future = Future[Any]()
            answer = said[TopicPartition(each.topic, each.partition)]
            if isinstance(answer, KafkaError):
                future.set_exception(KafkaException(answer))
            else:
                future.set_result(SimpleNamespace(offset=answer))
        return futures


def admin_over(client: Answering) -> KafkaClusterAdmin:
    admin: Any = KafkaClusterAdmin({"bootstrap.servers": "localhost:1"})
    admin._clients.current = client
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
def test_offset_request_is_retried_while_a_leader_is_elected(code: int) -> None:
    """The topics were made just before: a broker may know fewer of their leaders than the client
    does.
    """
    client = Answering({FIRST: KafkaError(code), SECOND: 7}, {FIRST: 5, SECOND: 7})
    assert admin_over(client).latest([FIRST, SECOND]) == {FIRST: 5, SECOND: 7}
    assert client.asked == [{FIRST, SECOND}, {FIRST}]


class Describing(Answering):
    """Also says of topics why they cannot be described."""

    def __init__(
        self, why: int | None, *answers: Mapping[TopicPartition, int | KafkaError]
    ) -> None:
        super().__init__(*answers)
        self._why = why

    def describe_topics(self, topics: TopicCollection, **_: object) -> dict[str, Future[Any]]:
        found: Future[Any] = Future()
        if self._why is None:
            found.set_result(SimpleNamespace(partitions=[]))
        else:
            found.set_exception(KafkaException(KafkaError(self._why)))
        return dict.fromkeys(["orders"], found)


LEADERLESS = KafkaError(KafkaError._NOENT)


def test_topic_without_describe_permission_raises_not_allowed_error() -> None:
    """The client says the same of both. A topic that was taken for absent failed the job
    permanently.
    """
    denied = KafkaError.TOPIC_AUTHORIZATION_FAILED
    client = Describing(denied, {FIRST: LEADERLESS, SECOND: 7}, {FIRST: LEADERLESS})
    with pytest.raises(NotAllowedError, match=r"orders-0: .*Grant the job's principal the right"):
        admin_over(client).latest([FIRST, SECOND])
    assert client.asked == [{FIRST, SECOND}, {FIRST}]


@pytest.mark.parametrize("why", [None, KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._TIMED_OUT])
def test_offset_request_of_a_topic_without_leaders_is_retried(
    why: int | None,
) -> None:
    client = Describing(why, {FIRST: LEADERLESS}, {FIRST: LEADERLESS}, {FIRST: 5})
    assert admin_over(client).latest([FIRST]) == {FIRST: 5}


def test_offset_is_returned_even_if_the_topic_may_not_be_described() -> None:
    denied = KafkaError.TOPIC_AUTHORIZATION_FAILED
    client = Describing(denied, {FIRST: LEADERLESS}, {FIRST: 5})
    assert admin_over(client).latest([FIRST]) == {FIRST: 5}


def test_offset_error_that_is_not_retryable_is_raised_at_once() -> None:
    client = Answering({FIRST: KafkaError(KafkaError.CLUSTER_AUTHORIZATION_FAILED)})
    with pytest.raises(TidegateError, match="orders-0"):
        admin_over(client).latest([FIRST])


class Silent:
    """A client that has learnt of a dead leader. It answers only when the test lets it."""

    def __init__(self) -> None:
        self.waiting: list[Future[Any]] = []

    def list_offsets(
        self, asked: Mapping[ClientPartition, object], **_: object
    ) -> dict[ClientPartition, Future[Any]]:
        futures = {each: Future[Any]() for each in asked}
        self.waiting += futures.values()
        return futures


class Brokers:
    """Gives the configuration of brokers. Dead brokers do not answer."""

    def __init__(self, limits: Mapping[str, int], dead: frozenset[str]) -> None:
        self._limits, self._dead = limits, dead

    def list_topics(self, **_: object) -> object:
        return SimpleNamespace(brokers=dict.fromkeys([*self._limits, *self._dead]))

    def describe_configs(self, asked: list[Any], **_: object) -> dict[Any, Future[Any]]:
        futures = {}
        for resource in asked:
            futures[resource] = future = Future[Any]()
            if resource.name not in self._dead:
                value = str(self._limits[resource.name])
                future.set_result({admin_module.MAX_TIMEOUT_NAME: SimpleNamespace(value=value)})
        return futures


def in_turn(admin: KafkaClusterAdmin, *clients: object) -> None:
    """The clients that the admin makes."""
    following = iter(clients)
    found: Any = admin._clients
    found.current = next(following)
    found._make = lambda: next(following)


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(asking, "RENEW_CLIENT_S", 0.02)
    monkeypatch.setattr(admin_module, "ANSWER_TIMEOUT_S", 0.5)


@pytest.mark.usefixtures("quick")
def test_client_that_waits_for_a_dead_leader_is_replaced() -> None:
    """It would wait until its request times out, and again with the next request."""
    admin = admin_over(Answering())
    in_turn(admin, Silent(), Silent(), Answering({FIRST: 5}))
    assert admin.latest([FIRST]) == {FIRST: 5}


@pytest.mark.usefixtures("quick")
def test_late_answer_of_the_first_client_is_used() -> None:
    admin, slow = admin_over(Answering()), Silent()
    in_turn(admin, slow, *(Silent() for _ in range(100)))
    answers = threading.Timer(0.2, lambda: slow.waiting[0].set_result(SimpleNamespace(offset=5)))
    answers.start()
    assert admin.latest([FIRST]) == {FIRST: 5}
    answers.join()


@pytest.mark.usefixtures("quick")
def test_invalid_offset_is_requested_again() -> None:
    """The client says "invalid" of it, without an error: an end before any position."""
    invalid = {FIRST: OFFSET_INVALID, SECOND: 7}
    assert admin_over(Answering(invalid, {FIRST: 5})).latest([FIRST, SECOND]) == {
        FIRST: 5,
        SECOND: 7,
    }


@pytest.mark.usefixtures("quick")
def test_missing_answer_of_all_clients_raises_kafka_unavailable_error() -> None:
    admin = admin_over(Answering())
    in_turn(admin, *(Silent() for _ in range(100)))
    with pytest.raises(KafkaUnavailableError, match="tell the offsets of orders-0"):
        admin.latest([FIRST])


@pytest.mark.usefixtures("quick")
def test_transaction_timeout_limit_ignores_a_dead_broker() -> None:
    admin = admin_over(Answering())
    in_turn(admin, Brokers({"1": 900, "3": 800}, frozenset({"2"})))
    assert admin.transaction_max_timeout_ms() == 800
