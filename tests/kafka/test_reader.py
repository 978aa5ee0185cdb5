"""The real reader where no broker is needed: what its client is made with, and what it makes of
what that says.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka import KafkaError as Code
from confluent_kafka import Message

from tests.kafka.given import BROKERS, settings_given
from tidegate.api.declared import OURS
from tidegate.drivers.kafka.reader import DEFAULTS, KafkaPartitionReader
from tidegate.elements import Origin
from tidegate.errors import KafkaNotAuthorisedError

ORIGIN = Origin("in", 0)
DENIED = Code(Code._AUTHENTICATION, "SASL authentication failed")


def made_with(monkeypatch: pytest.MonkeyPatch, **overrides: str) -> dict[str, Any]:
    """What the client of a reader is given."""
    return settings_given(
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
}


def test_the_settings_that_a_reader_is_made_with(monkeypatch: pytest.MonkeyPatch) -> None:
    """In full: one that is lost costs exactness or a part of the throughput, and fails nothing."""
    assert made_with(monkeypatch) == MADE_WITH


def test_what_a_user_may_override_and_what_not(monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_what_tidegate_sets_itself_is_refused_where_users_give_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert made_with(monkeypatch).keys() - DEFAULTS.keys() <= OURS.keys()


class Scripted:
    """A reader whose client has been told what to deliver."""

    def __init__(self, reader: KafkaPartitionReader, monkeypatch: pytest.MonkeyPatch) -> None:
        self.reader, self.delivered = reader, list[Message]()
        monkeypatch.setattr(reader, "_poll", self._one)
        monkeypatch.setattr(reader, "_consume", lambda _most, _timeout: [])

    def _one(self, _timeout_s: float) -> Message | None:
        return self.delivered.pop(0) if self.delivered else None


@pytest.fixture
def scripted(monkeypatch: pytest.MonkeyPatch) -> Iterator[Scripted]:
    reader = KafkaPartitionReader(BROKERS, "group")
    yield Scripted(reader, monkeypatch)
    reader.close()


def test_refused_credentials_are_told_when_nothing_comes(scripted: Scripted) -> None:
    scripted.reader._on_error(DENIED)
    with pytest.raises(KafkaNotAuthorisedError, match="SASL authentication failed"):
        scripted.reader.poll(10, 0.0)


def test_a_refusal_by_one_broker_is_over_when_records_come(scripted: Scripted) -> None:
    """It would fail the attempt at the first quiet moment, hours later."""
    scripted.reader._on_error(DENIED)
    scripted.delivered.append(Message(topic="in", partition=0, offset=7, value=b"a"))
    (run,) = scripted.reader.poll(10, 0.0)
    assert (run.origin, run.position) == (ORIGIN, 8)
    assert scripted.reader.poll(10, 0.0) == []
    scripted.reader._on_error(DENIED)
    with pytest.raises(KafkaNotAuthorisedError):
        scripted.reader.poll(10, 0.0)


def test_a_group_that_may_not_be_used_harms_no_reading(scripted: Scripted) -> None:
    event = Code(Code.GROUP_AUTHORIZATION_FAILED)
    scripted.delivered.append(Message(topic="in", partition=0, error=event))
    assert scripted.reader.poll(10, 0.0) == []
    assert scripted.reader.commit_failures == 1
