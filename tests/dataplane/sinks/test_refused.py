"""A sink with a policy: what it leaves out, and that the rest of a batch is written in order."""

from __future__ import annotations

import errno
from dataclasses import replace
from typing import Any

import pytest

from tests.dataplane.sinks.doubles import Broker
from tests.drivers.kafka.surroundings import SubtaskHarness
from tidegate.api.connectors.kafka_records import ProducerRecord
from tidegate.api.connectors.kafka_sink import KafkaSink
from tidegate.api.records.formats import Json, Raw
from tidegate.dataplane.refusals import Refusals
from tidegate.dataplane.sinks.encoding import BatchEncoder
from tidegate.dataplane.sinks.kafka import KafkaSinkWriter
from tidegate.dataplane.sizes import record_bytes
from tidegate.errors import PipelineError, UserCodeError
from tidegate.ids import Uid
from tidegate.stream_elements import RecordBatch, TopicPartition

LARGEST = 1_000
FITS = LARGEST - record_bytes(None, b"") - 1
"""Bytes of the largest value: its length takes a byte more than that of an empty one."""


class Kept:
    """The dead letters of a sink."""

    def __init__(self) -> None:
        self.batches: list[RecordBatch] = []
        self.refusals = Refusals("out", "dead_letter", emit=self.batches.append)

    def offsets(self) -> list[int]:
        return [offset for batch in self.batches for offset in batch.offsets]


def batch(*values: Any, keys: list[bytes | None] | None = None) -> RecordBatch:
    return RecordBatch(list(values), range(10, 10 + len(values)), TopicPartition("in", 3), keys)


def test_sink_with_a_policy_refuses_only_records_over_the_topic_limit() -> None:
    kept = Kept()
    encoder = BatchEncoder(KafkaSink("out", value=Raw()), Uid("out"), kept.refusals, LARGEST)
    fits = b"x" * (FITS - 1)
    assert record_bytes(None, fits) <= LARGEST < record_bytes(None, fits + b"yyy")
    encoded = encoder.encode(batch(b"a", fits + b"yyy", fits, b"b"))
    assert encoded.values == [b"a", fits, b"b"]
    assert kept.offsets() == [11]


def test_headers_count_for_the_size_of_a_record() -> None:
    kept = Kept()
    sink: Any = KafkaSink.records("out", key=Raw(), value=Raw())
    encoder = BatchEncoder(sink, Uid("out"), kept.refusals, LARGEST)
    small, large = (("h", b"x"),), (("h", bytes(LARGEST)),)
    records = [ProducerRecord(b"k", b"v", each) for each in (small, large, small)]
    encoded = encoder.encode(batch(*records))
    assert encoded.values == [b"v", b"v"]
    assert encoded.extras == [(small, None), (small, None)]
    assert kept.offsets() == [11]


def test_sink_refuses_records_it_cannot_encode_and_keeps_keys_aligned_with_values() -> None:
    kept = Kept()
    sink: Any = KafkaSink("out", value=Raw(), record_key=lambda value: value.decode())
    encoder = BatchEncoder(sink, Uid("out"), kept.refusals)
    encoded = encoder.encode(batch(b"a", b"\xff", 7, b"b"))
    assert (encoded.values, encoded.keys) == ([b"a", b"b"], [b"a", b"b"])
    assert kept.offsets() == [11, 12]
    own: Any = KafkaSink("out", value=Raw())
    encoder = BatchEncoder(own, Uid("out"), kept.refusals)
    encoded = encoder.encode(batch(b"a", 7, b"b", keys=[b"1", b"2", b"3"]))
    assert encoded.keys == [b"1", b"3"]


def test_sink_policy_covers_an_error_of_the_key_format() -> None:
    class NoKey(Json[int]):
        def encoder(self) -> Any:
            def refuse(key: int) -> bytes:
                if key == 2:
                    raise PipelineError("no key")
                return b"%d" % key

            return refuse

    kept = Kept()
    sink: Any = KafkaSink("out", value=Json(int), key=NoKey(int), record_key=lambda value: value)
    encoder = BatchEncoder(sink, Uid("out"), kept.refusals)
    assert encoder.encode(batch(1, 2, 3)).keys == [b"1", b"3"]
    assert kept.offsets() == [11]


@pytest.mark.parametrize(
    "error", [MemoryError(), OSError(errno.EMFILE, "files"), RuntimeError("can't start new thread")]
)
def test_sink_policy_does_not_cover_errors_of_memory_or_file_resources(error: Exception) -> None:
    def key_by(value: bytes) -> bytes:
        if value == b"b":
            raise error
        return value

    kept = Kept()
    sink: Any = KafkaSink("out", value=Raw(), record_key=key_by)
    with pytest.raises(UserCodeError, match="offset 11") as raised:
        BatchEncoder(sink, Uid("out"), kept.refusals).encode(batch(b"a", b"b", b"c"))
    assert raised.value.__cause__ is error
    assert kept.offsets() == []


def test_sink_without_a_policy_raises_for_a_value_that_it_cannot_encode() -> None:
    encoder = BatchEncoder(KafkaSink("out", value=Raw()), Uid("out"))
    with pytest.raises(UserCodeError, match="offset 11"):
        encoder.encode(batch(b"a", 7))


def test_writer_begins_no_transaction_if_all_records_are_refused() -> None:
    broker, kept = Broker(), Kept()
    harness = SubtaskHarness(broker, broker, pooled=2, slots=8)
    harness.context.max_message_bytes = {"out": LARGEST}
    sink = KafkaSink("out", value=Raw())
    writer = KafkaSinkWriter(sink, Uid("out"), harness.context, kept.refusals)
    writer.open()
    harness.run_until_idle()
    writer.write(batch(b"x" * LARGEST))
    harness.run_until_idle()
    assert kept.offsets() == [10]
    assert broker.log == []
    assert harness.counters.records_out == 0
    writer.write(batch(b"x" * LARGEST, b"y"))
    harness.run_until_idle()
    assert harness.counters.records_out == 1


def timed(*times_ms: int) -> RecordBatch:
    """Values with these event times."""
    return replace(batch(*[b"v"] * len(times_ms)), timestamps_ms=list(times_ms))


def test_event_time_becomes_the_timestamp_if_the_sink_says_so() -> None:
    plain = BatchEncoder(KafkaSink("out", value=Raw()), Uid("out"))
    assert plain.encode(timed(5, 7)).extras is None
    sink = KafkaSink("out", value=Raw(), timestamps="event_time")
    assert BatchEncoder(sink, Uid("out")).encode(timed(5, 7)).extras == [((), 5), ((), 7)]


def test_own_timestamp_of_a_record_comes_before_its_event_time() -> None:
    sink: Any = KafkaSink.records("out", key=Raw(), value=Raw(), timestamps="event_time")
    records = [ProducerRecord(b"k", b"v", timestamp_ms=ms) for ms in (3, None)]
    found = BatchEncoder(sink, Uid("out")).encode(replace(batch(*records), timestamps_ms=[5, 7]))
    assert found.extras == [((), 3), ((), 7)]


def test_event_time_before_1970_is_refused_and_the_record_is_named() -> None:
    sink = KafkaSink("out", value=Raw(), timestamps="event_time")
    for wrong_ms in (-1, 0):
        with pytest.raises(UserCodeError, match=rf"time {wrong_ms} ms .* at offset \d+\. Filter"):
            BatchEncoder(sink, Uid("out")).encode(timed(5, wrong_ms))
    kept = Kept()
    encoded = BatchEncoder(sink, Uid("out"), kept.refusals).encode(timed(5, -1, 8))
    assert encoded.extras == [((), 5), ((), 8)]
    assert kept.offsets() == [11]
