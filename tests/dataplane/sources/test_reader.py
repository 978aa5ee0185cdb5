"""The source's reader against a partition reader double: positions, ends, bad records."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import msgspec
import pytest

from tests.drivers.kafka.surroundings import SubtaskHarness
from tidegate.api.connectors.kafka_records import ConsumerRecord, ProducerRecord
from tidegate.api.connectors.kafka_source import KafkaSource
from tidegate.api.records.formats import Json, Raw, Utf8
from tidegate.commit.lost_tail import parse_commit_metadata
from tidegate.config import Config
from tidegate.dataplane.sources.kafka import BATCH_RECORDS, BATCH_RECORDS_MAX, KafkaSourceReader
from tidegate.errors import BadRecordError, InternalError
from tidegate.ids import CheckpointId, Uid
from tidegate.ports.kafka import PartitionBatch, Position, TransactionAdmin
from tidegate.protocol.subtask_snapshot import SourceSplit
from tidegate.stream_elements import TopicPartition


@dataclass
class MessageDouble:
    at: int
    body: bytes | None
    name: bytes | None = None
    head: list[tuple[str, bytes]] | None = None
    time: tuple[int, int] = (1, 1000)

    def value(self) -> bytes | None:
        return self.body

    def key(self) -> bytes | None:
        return self.name

    def offset(self) -> int:
        return self.at

    def timestamp(self) -> tuple[int, int]:
        return self.time

    def headers(self) -> list[tuple[str, bytes]] | None:
        return self.head


@dataclass
class ReaderDouble:
    """Also the drivers that make it."""

    runs: list[list[PartitionBatch]] = field(default_factory=list)
    assigned: dict[TopicPartition, int] | None = None
    paused: list[TopicPartition] = field(default_factory=list)
    ends: dict[TopicPartition, int] = field(default_factory=dict)
    passed: dict[TopicPartition, int] = field(default_factory=dict)
    epochs: dict[TopicPartition, int] = field(default_factory=dict)
    committed: dict[TopicPartition, int] = field(default_factory=dict)
    settings: Mapping[str, str] = field(default_factory=dict)
    group = ""
    with_ends = False
    closed = False
    asked = 0
    error = ""

    def partition_reader(
        self, kafka: Mapping[str, str], group: str, *, with_end_of_partition: bool
    ) -> ReaderDouble:
        self.settings, self.group, self.with_ends = kafka, group, with_end_of_partition
        return self

    def assign(self, positions: Mapping[TopicPartition, int]) -> None:
        self.assigned = dict(positions)

    def poll(self, max_records: int, timeout_s: float) -> list[PartitionBatch]:
        self.asked = max_records
        return self.runs.pop(0) if self.runs else []

    def pause(self, topic_partitions: Sequence[TopicPartition]) -> None:
        self.paused += topic_partitions

    def positions(self) -> dict[TopicPartition, Position]:
        return {
            topic_partition: Position(at, self.epochs.get(topic_partition, -1))
            for topic_partition, at in self.passed.items()
        }

    def high_watermarks(self) -> dict[TopicPartition, int]:
        return self.ends

    def commit(self, positions: Mapping[TopicPartition, int], metadata: str = "") -> None:
        self.committed.update(positions)
        self.metadata = metadata

    def connection_error(self) -> str:
        return self.error

    def close(self) -> None:
        self.closed = True


P0, P1 = TopicPartition("in", 0), TopicPartition("in", 1)


def run(
    topic_partition: TopicPartition, *messages: MessageDouble, position: int | None = None
) -> PartitionBatch:
    at = messages[-1].at + 1 if position is None else position
    return PartitionBatch(topic_partition, cast("Sequence[Any]", messages), at)


def texts(first: int, *bodies: str) -> list[MessageDouble]:
    return [MessageDouble(first + index, body.encode()) for index, body in enumerate(bodies)]


def split(topic_partition: TopicPartition, offset: int = 0, end: int | None = None) -> SourceSplit:
    return SourceSplit(
        source=Uid("src"),
        topic=topic_partition.topic,
        partition=topic_partition.partition,
        offset=offset,
        end_offset=end,
    )


class Bench:
    def __init__(
        self,
        source: KafkaSource[Any] | None = None,
        *splits: SourceSplit,
        config: Config | None = None,
        keep_keys: bool = False,
        receivers: int = 1,
    ) -> None:
        self.double = ReaderDouble()
        self.harness = SubtaskHarness(self.double, cast("TransactionAdmin", None), config=config)
        self.reader = KafkaSourceReader(
            source or KafkaSource("in", value=Utf8()),
            Uid("src"),
            self.harness.context,
            keep_keys=keep_keys,
            receivers=receivers,
        )
        self.reader.open(splits or (split(P0), split(P1, 5)))

    def poll(
        self, *runs: PartitionBatch
    ) -> list[tuple[TopicPartition | None, list[Any], list[int]]]:
        self.double.runs.append(list(runs))
        return [(b.topic_partition, b.values, list(b.offsets)) for b in self.reader.poll(0.0)]

    def positions(self) -> dict[TopicPartition, int]:
        return {each.topic_partition: each.offset for each in self.reader.snapshot()}


def test_each_batch_is_of_one_partition_and_positions_follow_the_returned_records() -> None:
    bench = Bench()
    assert bench.double.assigned == {P0: 0, P1: 5}
    assert bench.positions() == {P0: 0, P1: 5}
    found = bench.poll(run(P0, *texts(0, "a", "b")), run(P1, *texts(7, "c")))
    assert found == [(P0, ["a", "b"], [0, 1]), (P1, ["c"], [7])]
    assert bench.positions() == {P0: 2, P1: 8}
    assert bench.poll(run(P0, position=9)) == []
    assert bench.positions() == {P0: 9, P1: 8}
    assert not bench.reader.finished()


def test_snapshot_position_passes_control_records_and_never_goes_back() -> None:
    """A position that stayed in front of a marker would be gone from the log with the marker."""
    bench = Bench()
    bench.poll(run(P0, *texts(0, "a", "b")))
    bench.double.passed = {P0: 4}
    assert bench.positions() == {P0: 4, P1: 5}
    bench.double.passed = {P0: 1, P1: 2}
    assert bench.positions() == {P0: 4, P1: 5}
    bench.double.ends = {P0: 4, P1: 5}
    assert bench.reader.lag() == 0


def test_records_after_a_control_record_keep_their_own_offsets() -> None:
    bench = Bench()
    (batch,) = bench.poll(run(P0, *texts(0, "a", "b"), *texts(3, "c")))
    assert batch == (P0, ["a", "b", "c"], [0, 1, 3])


def test_reader_commits_to_group_of_job_and_source_and_merges_properties_of_both_levels() -> None:
    config = Config.from_dict(
        {
            "kafka": {"bootstrap_servers": "b:1", "properties": {"client.id": "x"}},
            "sources": {"src": {"properties": {"fetch.min.bytes": "7"}}},
        }
    )
    source = KafkaSource("in", value=Utf8(), properties={"fetch.min.bytes": 5, "check.crcs": True})
    bench = Bench(source, config=config)
    assert bench.double.group == "tidegate.job.src"
    assert bench.double.settings == {
        "bootstrap.servers": "b:1",
        "client.id": "x",
        "fetch.min.bytes": "7",
        "check.crcs": "true",
    }
    bench.reader.commit(bench.reader.snapshot(), CheckpointId.parse("2-7"))
    assert bench.double.committed == {P0: 0, P1: 5}
    committed = parse_commit_metadata(bench.double.metadata)
    assert committed is not None
    assert committed[1] == CheckpointId.parse("2-7")


class TestBounded:
    def test_records_from_the_end_offset_on_are_dropped_and_the_partition_is_paused(self) -> None:
        bench = Bench(None, split(P0, 0, 2), split(P1, 5, 9))
        assert bench.double.with_ends
        assert bench.poll(run(P0, *texts(1, "b", "c"))) == [(P0, ["b"], [1])]
        assert bench.double.paused == [P0]
        assert bench.poll(run(P0, *texts(3, "d"))) == []
        assert bench.double.paused == [P0], "what was fetched before the pause is passed over"
        assert bench.positions() == {P0: 2, P1: 5}
        assert not bench.reader.finished()

    def test_bounded_reader_ends_at_a_position_even_without_a_record_there(self) -> None:
        bench = Bench(None, split(P0, 0, 3))
        bench.poll(run(P0, *texts(0, "a")))
        bench.double.passed = {P0: 4}
        assert bench.positions() == {P0: 1}, "it is not told as long as no run says so"
        assert not bench.reader.finished()
        assert bench.poll(run(P0, position=4)) == []
        assert bench.reader.finished()
        assert bench.positions() == {P0: 3}

    def test_split_that_starts_at_its_end_is_not_read(self) -> None:
        bench = Bench(None, split(P0, 4, 4), split(P1, 0, 1))
        assert bench.double.assigned == {P1: 0}
        assert not bench.reader.finished()
        bench.poll(run(P1, *texts(0, "a")))
        assert bench.reader.finished()
        assert [each.end_offset for each in bench.reader.snapshot()] == [4, 1]

    @pytest.mark.parametrize(
        ("receivers", "asked"),
        [(1, BATCH_RECORDS), (2, 2 * BATCH_RECORDS), (64, BATCH_RECORDS_MAX)],
    )
    def test_a_poll_asks_for_a_batch_for_each_receiver_within_the_limit(
        self, receivers: int, asked: int
    ) -> None:
        bench = Bench(receivers=receivers)
        bench.poll()
        assert bench.double.asked == asked

    def test_a_subtask_without_splits_is_finished_and_has_no_consumer(self) -> None:
        bench = Bench()
        bench.double.assigned = None
        reader = KafkaSourceReader(KafkaSource("in", value=Utf8()), Uid("s"), bench.harness.context)
        reader.open(())
        assert reader.finished()
        assert reader.poll(60.0) == []
        assert (reader.snapshot(), reader.lag()) == ((), 0)
        reader.close()
        assert bench.double.assigned is None


class TestABadRecord:
    BAD = (
        MessageDouble(0, b"1"),
        MessageDouble(1, b"{"),
        MessageDouble(2, None),
        MessageDouble(3, b"4", b"key", [("h", b"x")]),
        MessageDouble(4, b"nope", b"k"),
    )

    def source(self, **options: Any) -> KafkaSource[Any]:
        return KafkaSource("in", value=Json(int), **options)

    def test_bad_record_raises_by_default_and_the_error_names_it(self) -> None:
        bench = Bench(self.source())
        with pytest.raises(BadRecordError) as raised:
            bench.poll(run(P0, *self.BAD))
        text = str(raised.value)
        assert "in-0 at offset 1 as Json" in text
        assert "Expected `int`" in text
        assert "on_bad_record='skip'" in text
        assert "dead_letter_topic='TOPIC'" in text
        assert "'src'" in text

    def test_bad_record_error_says_that_the_record_is_a_tombstone(self) -> None:
        bench = Bench(self.source())
        with pytest.raises(BadRecordError, match=r"offset 2.*no value \(a tombstone\)"):
            bench.poll(run(P0, *self.BAD[2:]))
        raw = Bench(KafkaSource("in", value=Raw()))
        with pytest.raises(BadRecordError, match=r"offset 2.*no value \(a tombstone\)"):
            raw.poll(run(P0, *self.BAD))

    def test_bad_record_is_skipped_and_counted(self) -> None:
        bench = Bench(self.source(on_bad_record="skip"), keep_keys=True)
        bench.double.runs.append([run(P0, *self.BAD)])
        (batch,) = bench.reader.poll(0)
        assert (batch.values, list(batch.offsets), batch.keys) == ([1, 4], [0, 3], [None, b"key"])
        assert bench.harness.counters.skipped == 3
        assert bench.positions()[P0] == 5
        assert bench.reader.take_dead_letters() == []

    def test_bad_record_goes_to_the_dead_letters_with_its_provenance(self) -> None:
        source = self.source(on_bad_record="dead_letter", dead_letter_topic="dead")
        bench = Bench(source)
        assert bench.poll(run(P0, *self.BAD)) == [(P0, [1, 4], [0, 3])]
        assert bench.harness.counters.dead_letters == 3
        letters = bench.reader.take_dead_letters()
        assert [each.offsets for each in letters] == [[1], [2], [4]]
        (letter,) = letters[2].values
        assert isinstance(letter, ProducerRecord)
        assert (letter.key, letter.value, letter.timestamp_ms) == (b"k", b"nope", None)
        headers = dict(letter.headers)
        assert b"DecodeError: " in (headers.pop("tidegate.error") or b"")
        assert headers == {
            "tidegate.source.topic": b"in",
            "tidegate.source.partition": b"0",
            "tidegate.source.offset": b"4",
            "tidegate.source.timestamp": b"1000",
        }
        assert bench.reader.take_dead_letters() == []

    def test_dead_letter_keeps_the_headers_of_the_bad_record(self) -> None:
        source = self.source(on_bad_record="dead_letter", dead_letter_topic="dead")
        bench = Bench(source)
        bench.poll(run(P0, MessageDouble(0, b"x", None, [("h", b"1")], (0, 0))))
        (letters,) = bench.reader.take_dead_letters()
        assert letters.values[0].headers[0] == ("h", b"1")
        assert ("tidegate.source.timestamp", b"-1") in letters.values[0].headers

    @pytest.mark.parametrize("error", [MemoryError(), OSError(24, "too many open files")])
    def test_record_is_not_bad_if_memory_or_files_were_exhausted(
        self, monkeypatch: pytest.MonkeyPatch, error: Exception
    ) -> None:
        """That says nothing of the record, which a restart may well decode."""

        def exhausted(data: bytes) -> int:
            raise error

        monkeypatch.setattr(Json, "decoder", lambda _: exhausted)
        bench = Bench(self.source(on_bad_record="skip"))
        with pytest.raises(type(error)):
            bench.poll(run(P0, MessageDouble(0, b"1")))
        assert bench.harness.counters.skipped == 0

    def test_poll_with_only_bad_records_returns_no_batch(self) -> None:
        bench = Bench(self.source(on_bad_record="skip"))
        assert bench.poll(run(P0, MessageDouble(0, b"x"), MessageDouble(1, b"y"))) == []
        assert bench.positions()[P0] == 2


class TestWholeRecords:
    def test_whole_records_carry_key_headers_and_provenance(self) -> None:
        source: KafkaSource[Any] = KafkaSource.records("in", key=Utf8(), value=Json(int))
        bench = Bench(source)
        message = MessageDouble(3, b"1", b"k", [("h", b"x")], (1, 77))
        assert bench.poll(run(P1, message)) == [
            (P1, [ConsumerRecord("k", 1, "in", 1, 3, 77, (("h", b"x"),))], [3])
        ]

    def test_whole_records_have_raw_keys_without_a_key_format(self) -> None:
        source: KafkaSource[Any] = KafkaSource.records("in", value=Json(int))
        bench = Bench(source)
        messages = (MessageDouble(0, b"1", b"k"), MessageDouble(1, b"2"))
        ((_, values, _),) = bench.poll(run(P0, *messages))
        assert [each.key for each in values] == [b"k", None]

    def test_whole_record_without_a_key_is_bad_if_there_is_a_key_format(self) -> None:
        source: KafkaSource[Any] = KafkaSource.records("in", key=Utf8(), value=Json(int))
        bench = Bench(source)
        with pytest.raises(BadRecordError, match="it has no key"):
            bench.poll(run(P0, MessageDouble(0, b"1")))

    def test_whole_records_pass_tombstones_only_with_tombstones_true(self) -> None:
        strict: KafkaSource[Any] = KafkaSource.records("in", value=Json(int))
        with pytest.raises(BadRecordError, match="tombstones=True"):
            Bench(strict).poll(run(P0, MessageDouble(0, None)))
        loose: KafkaSource[Any] = KafkaSource.records("in", value=Json(int), tombstones=True)
        ((_, values, _),) = Bench(loose).poll(run(P0, MessageDouble(0, None)))
        assert values[0].value is None


def test_lag_is_counted_up_to_the_end_offsets_once_all_are_known() -> None:
    bench = Bench()
    assert bench.reader.lag() is None
    bench.double.ends = {P0: 10}
    assert bench.reader.lag() is None
    bench.double.ends = {P0: 10, P1: 8}
    assert bench.reader.lag() == 13
    bench.poll(run(P0, *texts(8, "x")))
    assert bench.reader.lag() == 4


def test_reader_refuses_a_second_open_and_use_before_open() -> None:
    bench = Bench()
    with pytest.raises(InternalError):
        bench.reader.open(())
    unopened = KafkaSourceReader(KafkaSource("in", value=Utf8()), Uid("s"), bench.harness.context)
    unopened.close()
    with pytest.raises(InternalError):
        unopened.commit((), CheckpointId.parse("2-7"))


@pytest.mark.parametrize("end", [None, 100])
def test_snapshot_has_topic_id_and_leader_epoch_of_the_records_read(end: int | None) -> None:
    first = msgspec.structs.replace(split(P0, end=end), topic_id="id-1", leader_epoch=3)
    second = msgspec.structs.replace(split(P1, end=end), topic_id="id-1")
    bench = Bench(None, first, second)
    bench.double.passed = {P0: 0}
    assert [(s.topic_id, s.leader_epoch) for s in bench.reader.snapshot()] == [
        ("id-1", 3),
        ("id-1", -1),
    ], "nothing was read since"
    bench.double.passed, bench.double.epochs = {P0: 2, P1: 1}, {P0: 4, P1: 0}
    assert [s.leader_epoch for s in bench.reader.snapshot()] == [4, 0]
