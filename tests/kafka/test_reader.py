"""The real reader where no broker is needed: what it makes of what its client says."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from confluent_kafka import KafkaError as Code
from confluent_kafka import Message

from tidegate.drivers.kafka.reader import KafkaPartitionReader
from tidegate.elements import Origin
from tidegate.errors import KafkaNotAuthorisedError

ORIGIN = Origin("in", 0)
DENIED = Code(Code._AUTHENTICATION, "SASL authentication failed")


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
    reader = KafkaPartitionReader({"bootstrap.servers": "127.0.0.1:1"}, "group")
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
