"""The real reader where no broker is needed: what its client is made with, and what it makes of
what that says.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka import KafkaError as Code
from confluent_kafka import Message

from tests.drivers.kafka.given import BROKERS, client_settings
from tidegate.api.declarations.declaration_checks import RESERVED_PROPERTIES
from tidegate.drivers.kafka.reader import (
    CONNECTION_CHECK_S,
    DEFAULTS,
    IDLE_CHECK_S,
    KafkaPartitionReader,
)
from tidegate.errors import (
    InternalError,
    KafkaError,
    KafkaNotAuthorisedError,
    KafkaUnavailableError,
    TopicAbsentError,
)
from tidegate.stream_elements import TopicPartition

TOPIC_PARTITION = TopicPartition("in", 0)
DENIED = Code(Code._AUTHENTICATION, "SASL authentication failed")


def made_with(monkeypatch: pytest.MonkeyPatch, **overrides: str) -> dict[str, Any]:
    """The settings that the client of a reader is given."""
    return client_settings(
        monkeypatch,
        "tidegate.drivers.kafka.reader.Consumer",
        lambda settings: KafkaPartitionReader(settings, "group"),
        ("error_cb", "on_commit"),
        overrides,
    )


MADE_WITH = {
    **BROKERS,
    "group.id": "group",
    "enable.partition.eof": False,
    "enable.auto.commit": False,
    "enable.auto.offset.store": False,
    "auto.offset.reset": "error",
    "isolation.level": "read_committed",
    "max.poll.interval.ms": 86_400_000,
    "fetch.queue.backoff.ms": "5",  # the default costs a factor 4
    "queued.min.messages": "50000",
    "queued.max.messages.kbytes": "32768",
    "reconnect.backoff.max.ms": "1000",
    "receive.message.max.bytes": "2147483647",
}


def test_reader_has_exactly_the_expected_client_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    """In full: a lost one costs correctness or a part of the throughput, and fails nothing."""
    assert made_with(monkeypatch) == MADE_WITH


def test_user_may_override_only_some_reader_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    given = made_with(
        monkeypatch,
        fetch_queue_backoff_ms="50",
        queued_min_messages="7",
        queued_max_messages_kbytes="8",
        isolation_level="read_uncommitted",
        enable_auto_commit="true",
    )
    assert given == {
        **MADE_WITH,
        "fetch.queue.backoff.ms": "50",
        "queued.min.messages": "7",
        "queued.max.messages.kbytes": "8",
    }


def test_fixed_reader_settings_are_reserved_properties(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert made_with(monkeypatch).keys() - DEFAULTS.keys() <= RESERVED_PROPERTIES.keys()


class Scripted:
    """A reader whose client delivers the messages that the test has listed."""

    def __init__(self, reader: KafkaPartitionReader, monkeypatch: pytest.MonkeyPatch) -> None:
        self.reader, self.on_delivery = reader, list[Message]()
        monkeypatch.setattr(reader, "_poll", self._one)
        monkeypatch.setattr(reader, "_consume", lambda _most, _timeout: [])

    def _one(self, _timeout_s: float) -> Message | None:
        return self.on_delivery.pop(0) if self.on_delivery else None


@pytest.fixture
def scripted(monkeypatch: pytest.MonkeyPatch) -> Iterator[Scripted]:
    reader = KafkaPartitionReader(BROKERS, "group")
    yield Scripted(reader, monkeypatch)
    reader.close()


def test_refused_credentials_are_raised_by_a_poll_without_records(scripted: Scripted) -> None:
    scripted.reader._on_error(DENIED)
    with pytest.raises(KafkaNotAuthorisedError, match="SASL authentication failed"):
        scripted.reader.poll(10, 0.0)


def test_authentication_error_is_cleared_when_records_arrive(scripted: Scripted) -> None:
    """An old refusal would fail the attempt at the first poll without records, hours later."""
    scripted.reader._on_error(DENIED)
    scripted.on_delivery.append(Message(topic="in", partition=0, offset=7, value=b"a"))
    (run,) = scripted.reader.poll(10, 0.0)
    assert (run.topic_partition, run.position) == (TOPIC_PARTITION, 8)
    assert scripted.reader.poll(10, 0.0) == []
    scripted.reader._on_error(DENIED)
    with pytest.raises(KafkaNotAuthorisedError):
        scripted.reader.poll(10, 0.0)


def test_unauthorised_group_only_counts_as_a_commit_failure(scripted: Scripted) -> None:
    event = Code(Code.GROUP_AUTHORIZATION_FAILED)
    scripted.on_delivery.append(Message(topic="in", partition=0, error=event))
    assert scripted.reader.poll(10, 0.0) == []
    assert scripted.reader.commit_failures == 1


class Admin:
    """The cluster as the reader's questions find it: a number of partitions, or an error."""

    def __init__(self, answer: int | BaseException) -> None:
        self.answer, self.closed = answer, threading.Event()

    def partitions(self, _topic: str) -> int:
        if isinstance(self.answer, BaseException):
            raise self.answer
        return self.answer

    def latest(self, topic_partitions: list[TopicPartition]) -> dict[TopicPartition, int]:
        return dict.fromkeys(topic_partitions, self.partitions("in"))

    def close(self) -> None:
        self.closed.set()


def asked(
    scripted: Scripted,
    monkeypatch: pytest.MonkeyPatch,
    admin: Admin,
    idle_s: float = 2 * IDLE_CHECK_S,
) -> None:
    """The source has been idle for so long: it asks in the background, and has its answer."""
    reader = scripted.reader
    monkeypatch.setattr("tidegate.drivers.kafka.reader.KafkaClusterAdmin", lambda _: admin)
    monkeypatch.setattr(reader, "_positions", {TOPIC_PARTITION: 7})
    threads = set(threading.enumerate())
    reader._heard_at -= idle_s
    reader._checked_at -= idle_s
    assert reader.poll(10, 0.0) == []
    for thread in set(threading.enumerate()) - threads:
        thread.join(10)
    assert admin.closed.is_set(), "the client of a question is closed"


UNEXPECTED = [KeyError("a bug"), OSError("a socket failed"), InternalError("a bug")]


@pytest.mark.parametrize("error", UNEXPECTED, ids=repr)
@pytest.mark.parametrize("question", ["topics", "leaders"])
def test_error_of_a_background_check_is_raised_by_every_poll(
    scripted: Scripted, monkeypatch: pytest.MonkeyPatch, question: str, error: Exception
) -> None:
    idle_s = 2 * IDLE_CHECK_S
    if question == "leaders":
        scripted.reader._on_error(Code(Code._ALL_BROKERS_DOWN))
        idle_s = 2 * CONNECTION_CHECK_S
    asked(scripted, monkeypatch, Admin(error), idle_s)
    scripted.on_delivery.append(Message(topic="in", partition=0, offset=7, value=b"a"))
    for _ in range(2):
        with pytest.raises(type(error)) as raised:
            scripted.reader.poll(10, 0.0)
        assert raised.value is error
    assert scripted.on_delivery, "nothing is read on"


def test_missing_partition_is_raised_by_a_poll_without_records(
    scripted: Scripted, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked(scripted, monkeypatch, Admin(0))
    with pytest.raises(KafkaError, match="Partition in-0 does not exist"):
        scripted.reader.poll(10, 0.0)


def test_topic_absent_error_is_raised_by_a_poll_without_records(
    scripted: Scripted, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked(scripted, monkeypatch, Admin(TopicAbsentError("there is no topic in")))
    with pytest.raises(KafkaError, match="there is no topic in"):
        scripted.reader.poll(10, 0.0)


def test_poll_raises_no_error_during_an_outage(
    scripted: Scripted, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked(scripted, monkeypatch, Admin(KafkaUnavailableError("no broker answers")))
    assert scripted.reader.poll(10, 0.0) == []
