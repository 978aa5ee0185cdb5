"""The real producer where no broker is needed: what its client is made with, and what it refuses
before anything is sent.
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import confluent_kafka
import pytest
from confluent_kafka import KafkaError as Code

from tests.drivers.kafka.given import BROKERS, Client, client_settings
from tidegate.api.declarations.declaration_checks import RESERVED_PROPERTIES
from tidegate.drivers.kafka.producer import DEFAULTS, POLL_INTERVAL_S, KafkaProducer
from tidegate.drivers.kafka.producer_errors import ProducerErrors
from tidegate.errors import RecordTooLargeError, TransactionError
from tidegate.ids import TransactionalId

SETTINGS = {
    **BROKERS,
    "message.max.bytes": "2000000",
    "queue.buffering.max.kbytes": "1000",
}
LARGE = b"x" * 1_500_000


def made_with(
    monkeypatch: pytest.MonkeyPatch,
    transactional_id: TransactionalId | None = None,
    **overrides: str,
) -> dict[str, Any]:
    """The settings that the client of a producer is given."""
    return client_settings(
        monkeypatch,
        "tidegate.drivers.kafka.producer.Client",
        lambda settings: KafkaProducer(settings, transactional_id, 660_000),
        ("on_delivery", "error_cb"),
        overrides,
    )


COMMON = {
    **BROKERS,
    "enable.idempotence": True,
    "acks": "all",
    "delivery.report.only.error": True,  # else a call of Python for every record
    "max.in.flight.requests.per.connection": 1,  # else a refused request may be overtaken
    "linger.ms": "5",
    "batch.size": "1000000",
    "queue.buffering.max.messages": "100000",
    "queue.buffering.max.kbytes": "65536",
    "partitioner": "murmur2_random",
    "reconnect.backoff.max.ms": "1000",
}


def test_producer_has_exactly_the_expected_client_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    """In full: a lost one costs correctness or a part of the throughput, and fails nothing."""
    assert made_with(monkeypatch) == {**COMMON, "message.timeout.ms": 300_000}
    assert made_with(monkeypatch, TransactionalId("tidegate.x")) == {
        **COMMON,
        "linger.ms": "25",  # read_committed readers see nothing before the commit
        "message.timeout.ms": 660_000,
        "transactional.id": "tidegate.x",
        "transaction.timeout.ms": 660_000,
    }


def test_user_may_override_only_some_producer_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    given = made_with(
        monkeypatch,
        queue_buffering_max_messages="7",
        queue_buffering_max_kbytes="8",
        linger_ms="9",
        acks="1",
        delivery_report_only_error="false",
        max_in_flight_requests_per_connection="5",
    )
    assert given == {
        **COMMON,
        "message.timeout.ms": 300_000,
        "queue.buffering.max.messages": "7",
        "queue.buffering.max.kbytes": "8",
        "linger.ms": "9",
    }


def test_user_may_override_the_linger_of_a_transactional_producer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    given = made_with(monkeypatch, TransactionalId("tidegate.x"), linger_ms="9")
    assert given["linger.ms"] == "9"


def test_fixed_settings_come_after_the_settings_of_the_user(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    names = list(
        made_with(monkeypatch, max_in_flight_requests_per_connection="5", max_in_flight="5")
    )
    assert names.index("max.in.flight") < names.index("max.in.flight.requests.per.connection")


@pytest.mark.timeout(20)
def test_record_larger_than_the_empty_queue_raises_record_too_large_error_at_once() -> None:
    """Nothing is in the queue that could time out, so waiting for room would never end."""
    producer = KafkaProducer(SETTINGS, None, 0)
    with pytest.raises(RecordTooLargeError, match="1500000 bytes") as raised:
        producer.send("out", [LARGE], None)
    assert "topic out" in str(raised.value)
    assert "queue.buffering.max.kbytes" in str(raised.value)
    with pytest.raises(RecordTooLargeError):
        producer.flush(1.0)
    producer = KafkaProducer(SETTINGS, None, 0)
    with pytest.raises(RecordTooLargeError, match="1500000 bytes"):
        producer.send_one("out", LARGE, b"key", [("h", b"x")], None)


class _Undelivered:
    """The message of a delivery report."""

    def value(self) -> bytes:
        return b"x" * 3_000_000

    def topic(self) -> str:
        return "out"


CONSEQUENCES = [Code._PURGE_QUEUE, Code._PURGE_INFLIGHT, Code._STATE, Code._FATAL]


@pytest.mark.parametrize("consequence", CONSEQUENCES)
def test_cause_of_a_delivery_failure_replaces_an_earlier_consequence(consequence: int) -> None:
    """This happens if one broker refuses the record, and another broker's thread is quicker."""
    failures = ProducerErrors("the producer of tidegate.x")
    failures.on_delivery(Code(consequence), _Undelivered())
    assert failures.text is None
    failures.on_delivery(Code(Code.MSG_SIZE_TOO_LARGE), _Undelivered())
    failures.on_delivery(Code(Code._MSG_TIMED_OUT), _Undelivered())
    error = failures.error()
    assert isinstance(error, RecordTooLargeError)
    assert "3000000 bytes" in str(error)
    assert "max.message.bytes" in str(error)


def test_fixed_producer_settings_are_reserved_properties(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A refusal shows users that their value has no effect, for example for `acks`."""
    given = made_with(monkeypatch, TransactionalId("tidegate.x"))
    assert given.keys() - DEFAULTS.keys() <= RESERVED_PROPERTIES.keys()


def _send_nothing(producer: KafkaProducer) -> None:
    """A send without records only asks for failures, and not again within the interval."""
    time.sleep(POLL_INTERVAL_S)
    producer.send("out", [], None)


CALLS: dict[str, Callable[[KafkaProducer], None]] = {
    "send": lambda producer: producer.send("out", [b"a", b"b"], None),
    "send nothing": _send_nothing,
    "send one": lambda producer: producer.send_one("out", b"a", None, [], None),
    "flush": lambda producer: producer.flush(3.0),
}


@pytest.mark.parametrize("waiting", [False, True], ids=["", "records wait"])
@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_fatal_error_of_the_client_is_raised_by_every_producer_call(
    call: Callable[[KafkaProducer], None], waiting: bool
) -> None:
    """A fence has this effect. confluent-kafka calls no callback for it: the call that serves
    callbacks raises the error, also while the cause of a refused record is looked for.
    """
    producer = KafkaProducer(SETTINGS, None, 0)
    if waiting:
        producer.send("out", [b"z"] * 5, None)
    _fail_as_a_whole(producer)
    for _ in range(2):
        with pytest.raises(TransactionError, match=r"were fenced\. Another producer"):
            call(producer)


def _fail_as_a_whole(producer: KafkaProducer) -> None:
    """Uses librdkafka's own function for tests. The handle is the first field of confluent-kafka's
    object, behind the head that every Python object has.
    """
    (path,) = (Path(confluent_kafka.__file__).parents[1] / "confluent_kafka.libs").glob(
        "librdkafka*"
    )
    librdkafka = ctypes.CDLL(str(path))
    handle = ctypes.c_void_p.from_address(id(producer._client) + object.__basicsize__)
    text = b"as if it were fenced"
    assert librdkafka.rd_kafka_test_fatal_error(handle, Code._FENCED, text) == 0


@pytest.mark.parametrize("connects", [True, False])
def test_transactional_id_is_initialised_after_a_try_to_connect_to_a_broker(
    monkeypatch: pytest.MonkeyPatch, connects: bool
) -> None:
    """librdkafka asks for the coordinator at once where it has a connection, else 0.5 s later."""
    calls: list[str] = []

    class Connecting(Client):
        def list_topics(self, topic: str, _timeout_s: float) -> None:
            calls.append(f"asked for {topic}")
            if not connects:
                raise confluent_kafka.KafkaException(Code(Code._TRANSPORT))

        def init_transactions(self, _timeout_s: float) -> None:
            calls.append("initialised")

    monkeypatch.setattr("tidegate.drivers.kafka.producer.Client", Connecting)
    KafkaProducer(BROKERS, TransactionalId("id"), 60_000)
    assert calls == ["asked for ?", "initialised"], "no topic can have that name"
    calls.clear()
    KafkaProducer(BROKERS, None, 60_000)
    assert calls == []
