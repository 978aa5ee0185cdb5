"""A driver for a whole pipeline class: push records into its sources and read its sinks.

The driver runs a job in the calling thread, on the data plane that slots and the tasks of Spark
run: subtasks, channels, barriers, keyed state and its restore. There is no Kafka, no process and no
waiting, and the clock moves only when the test says so. Records are encoded and decoded with the
formats of their source and sink, so a record that cannot be read or written fails in the test.

A test names a source or a sink by its class attribute (`test.source(OrderTotals.orders)`), because
the attribute carries the record type. `run.py` has the job itself.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import groupby
from types import TracebackType
from typing import Any, Final, Generic, Self, TypeVar, cast

import msgspec

from tidegate.api.connector import Connector
from tidegate.api.formats import Raw
from tidegate.api.kafka_records import Headers, ProducerRecord
from tidegate.api.kafka_sink import KafkaSink, dead_letter_sink_name
from tidegate.api.kafka_source import KafkaSource
from tidegate.api.pipeline import Pipeline
from tidegate.api.sink import Sink
from tidegate.api.times import Duration, to_ms
from tidegate.api.watermarks import HeaderTime, Instant, UnusableTimeError, instant_ms
from tidegate.dataplane.counters import Counters
from tidegate.errors import PipelineError
from tidegate.graph.stream_graph import Node
from tidegate.ids import Uid
from tidegate.stream_elements import MIN_MS, TopicPartition, Watermark
from tidegate.testing.kept_records import KeptRecords
from tidegate.testing.pushed_records import PushedRecord
from tidegate.testing.run import PipelineRun

T = TypeVar("T")


class Setup(msgspec.Struct, frozen=True, kw_only=True):
    """The way in which a `PipelineTest` runs the pipeline.

    `with PipelineTest(OrderTotals, Setup(parallelism=3), minimum=5) as test:`.

    The results of a correct pipeline do not depend on it, except for their order: results of
    different keys may come in another order.
    """

    parallelism: int = 1
    """The number of subtasks of each step."""
    now_ms: int = 0
    """The processing time at which the test begins, in milliseconds since the Unix epoch."""
    batch: int = 1000
    """The most records that a subtask of a source emits together."""
    seed: int = 0
    """The order in which subtasks have their turns. 0 is the order of the plan; every other number
    draws one.
    """


_ONE_SUBTASK: Final = Setup()


class PipelineTest:
    """A driver for one pipeline: `with PipelineTest(OrderTotals, minimum=5) as test:`.

    The constructor builds the pipeline with the keywords as its parameters, and opens all its
    functions. The end of the `with` block closes them.

    Each call processes everything that follows from it before it returns. It raises what ends an
    attempt of a job, for example UserCodeError. `crash` then restores the last checkpoint.
    """

    def __init__(
        self, pipeline: type[Pipeline], setup: Setup = _ONE_SUBTASK, /, **params: object
    ) -> None:
        self._pipeline = pipeline
        _check_setup(setup)
        self._run = PipelineRun(
            pipeline,
            params,
            parallelism=setup.parallelism,
            now_ms=setup.now_ms,
            batch=setup.batch,
            seed=setup.seed,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._run.close()

    @property
    def counters(self) -> Counters:
        """Counters of the whole pipeline. `skipped` and `dead_letters` count the records that the
        policies of the pipeline have skipped or written as dead letters. Records that are read
        again after a crash count again.
        """
        return self._run.job.counters

    def source(self, source: KafkaSource[T], *, partition: int = 0) -> PipelineSource[T]:
        """Return the object that pushes records into a partition of a source.

        A partition exists from the call that names it first. It holds back the watermark until its
        first record, as in a job, so name all partitions before the first push. A source with
        watermarks, of which the test has named no partition until then, has partition 0. A
        partition that is named later is found as in a job, by a restart: functions are closed and
        opened again.

        Raise PipelineError if the source does not belong to the pipeline.
        """
        self._check_ours(source)
        if partition < 0:
            raise PipelineError(
                f"source {source.name!r}: partition={partition!r} is no partition: Kafka numbers "
                "them from 0"
            )
        return PipelineSource(self._run, source, partition)

    def sink(self, sink: Sink[T]) -> PipelineSink[T]:
        """Return the object that reads the records written to a sink.

        Raise PipelineError if the sink does not belong to the pipeline.
        """
        self._check_ours(sink)
        return PipelineSink(self._run.job.kept[sink.name])

    def dead_letters(self, of: Connector | str) -> list[ProducerRecord[bytes, bytes]]:
        """Return the dead letters written since they were last read.

        `of` is a source or a sink. If it is the name of a topic, return the dead letters of all
        sources, steps and sinks that write them to this topic. Raise PipelineError for a source or
        a sink that does not belong to the pipeline.
        """
        if isinstance(of, str):
            names = [node.id for node in self._run.graph if self._writes_letters_to(node, of)]
        else:
            self._check_ours(of)
            names = [dead_letter_sink_name(of.name)]
        kept = self._run.job.kept
        return [letter for name in names if name in kept for letter in kept[name].take()]

    def watermark(self, at: Instant) -> Self:
        """Set the watermark of every partition that has not ended: no record with an event time of
        `at` or earlier is expected in any of them.

        Raise PipelineError if a watermark would go back, or if no source has watermarks.
        """
        at_ms = _instant_ms(at)
        partitions = self._run.timed_partitions()
        if not partitions:
            raise PipelineError(
                f"no partition of {self._pipeline.__name__} has a watermark: its sources declare "
                "no watermarks=, or the test has ended them. Give a source "
                "watermarks=BoundedOutOfOrderness('10 s'), for example."
            )
        for uid, of in partitions:
            _check_not_back(self._run, uid, of, at_ms)
        for uid, of in partitions:
            self._run.set_watermark(uid, of, Watermark(at_ms))
        return self

    def advance(self, span: Duration) -> Self:
        """Let processing time pass: "10 s" or a timedelta. Partitions become idle in it, if their
        source has `idle_after`. A crash does not take the clock back.
        """
        self._run.move_clock(to_ms(span, "advance"))
        return self

    def checkpoint(self) -> Self:
        """Take a checkpoint, and commit the results so far."""
        self._run.checkpoint()
        return self

    def crash(self, *, parallelism: int | None = None) -> Self:
        """Kill all subtasks, and restore the last checkpoint. A job without a checkpoint starts
        from the beginning.

        The sources then read again what came after the checkpoint, and its results are written
        again. An exactly_once sink withdraws the results that no checkpoint has committed, as a
        `read_committed` reader has never seen them. Results that the test has read before the crash
        cannot be withdrawn, so they come twice. A sink with a weaker guarantee keeps its results,
        so they come twice too.

        With `parallelism` the job continues with another number of subtasks.
        """
        self._run.crash(parallelism)
        return self

    def stop(self) -> Self:
        """Stop the job with a last checkpoint. No timer fires. `crash` starts it again from this
        checkpoint; until then, pushes raise PipelineError.
        """
        self._run.checkpoint(final=True)
        return self

    def drain(self) -> Self:
        """End the input: all event timers fire, as with `tidegate stop --drain` and at the end of
        a bounded run. Then the job stops with a last checkpoint, and nothing continues it.
        """
        self._run.drain()
        return self

    def _writes_letters_to(self, node: Node, topic: str) -> bool:
        letters = any(map(self._run.graph.carries_dead_letters, node.inputs))
        return letters and cast("KafkaSink[Any]", node.declaration).topic == topic

    def _check_ours(self, connector: Connector) -> None:
        if self._pipeline.connectors.get(connector.name) is not connector:
            raise PipelineError(f"{connector.name!r} is not of {self._pipeline.__name__}")


class PipelineSource(Generic[T]):
    """A partition of a source of the pipeline under test, made by `PipelineTest.source`."""

    __test__ = False  # not a test class of pytest's

    def __init__(self, run: PipelineRun, source: KafkaSource[T], partition: int) -> None:
        self._run, self._source = run, source
        self._uid = Uid(source.name)
        self._of = TopicPartition(source.topic, partition)
        if not source.full_record:  # else each record names its partition
            run.name(self._uid, self._of)
        value: Any = source.value
        self._encode_value: Callable[[Any], bytes] = value.encoder()
        self._encode_key: Callable[[Any], bytes] = (
            Raw() if source.key is None else source.key
        ).encoder()

    def push(self, *records: T) -> Self:
        """Encode records with the formats of the source, then decode and process them.

        A ConsumerRecord keeps its topic, partition, offset and timestamp. Other records come from
        this partition, with offsets counted from 0. Their timestamp is their event time, or 0.

        If the source has watermarks, the one that follows comes directly after the records, or
        after consecutive ConsumerRecords of one partition.
        """
        encode = self._whole if self._source.full_record else self._value
        pushed = [encode(record, number) for number, record in enumerate(records)]
        for of, run in groupby(pushed, key=lambda record: record.topic_partition):
            self._run.push(self._uid, of, list(run))
        return self

    def push_bytes(
        self, value: bytes | None, *, key: bytes | None = None, headers: Headers = ()
    ) -> Self:
        """Process one record given as the bytes that Kafka would store.

        If the source cannot decode the record, its `on_bad_record` policy applies. The policy
        "fail" raises BadRecordError.
        """
        self._run.push(self._uid, self._of, [self._plain(value, key=key, headers=headers)])
        return self

    def watermark(self, at: Instant) -> Self:
        """Set the watermark of this partition: no record with an event time of `at` or earlier is
        expected in it. An idle partition is active again.

        Raise PipelineError if the source has no watermarks, or if this one would go back.
        """
        self._check_has_watermarks()
        at_ms = _instant_ms(at)
        _check_not_back(self._run, self._uid, self._of, at_ms)
        self._run.set_watermark(self._uid, self._of, Watermark(at_ms))
        return self

    def idle(self) -> Self:
        """Make this partition idle, as if nothing had come for `idle_after`. It does not hold back
        the others until its next record.

        Raise PipelineError if the partitions of the source never become idle in a job.
        """
        self._check_has_watermarks()
        if cast("Any", self._source.watermarks).idle_after_ms is None:
            raise PipelineError(
                f"source {self._source.name!r} has no idle_after, so none of its partitions "
                "becomes idle in a job. Give its strategy one: idle_after='1 min', for example."
            )
        self._run.set_watermark(self._uid, self._of, Watermark(MIN_MS, idle=True))
        return self

    def end(self) -> Self:
        """End this partition, as a bounded run does. It keeps its watermark, and holds back the
        others. With its last partition, the input of the source ends, and event timers fire.
        """
        self._run.end(self._uid, self._of)
        return self

    def _check_has_watermarks(self) -> None:
        if self._source.watermarks is None:
            raise PipelineError(
                f"source {self._source.name!r} declares no watermarks=, so it takes no part in "
                "event time. Give it watermarks=BoundedOutOfOrderness('10 s'), for example."
            )

    def _whole(self, record: Any, _number: int) -> PushedRecord:
        return PushedRecord(
            topic_partition=TopicPartition(record.topic, record.partition),
            of_value=None if record.value is None else self._encode_value(record.value),
            of_key=None if record.key is None else self._encode_key(record.key),
            of_headers=record.headers,
            at_offset=record.offset,
            timestamp_ms=record.timestamp_ms,
        )

    def _value(self, record: Any, number: int) -> PushedRecord:
        timestamp_ms = self._time_ms(record)
        return self._plain(self._encode_value(record), timestamp_ms=timestamp_ms, number=number)

    def _plain(
        self,
        value: bytes | None,
        *,
        key: bytes | None = None,
        headers: Headers = (),
        timestamp_ms: int = 0,
        number: int = 0,
    ) -> PushedRecord:
        """Return a record of this partition. `number` counts the records of one push."""
        return PushedRecord(
            topic_partition=self._of,
            of_value=value,
            of_key=key,
            of_headers=headers,
            at_offset=self._run.next_position(self._uid, self._of) + number,
            timestamp_ms=timestamp_ms,
        )

    def _time_ms(self, record: Any) -> int:
        """Return Kafka's timestamp of a pushed record: its event time, if it has a usable one."""
        event_time = self._source.event_time
        if event_time is None or isinstance(event_time, HeaderTime):
            return 0
        try:
            return instant_ms(event_time(record))
        except Exception:  # noqa: BLE001 - the source's policy decides about it
            return 0


class PipelineSink(Generic[T]):
    """A sink of the pipeline under test, made by `PipelineTest.sink`."""

    __test__ = False

    def __init__(self, kept: KeptRecords) -> None:
        self._kept = kept

    def read(self) -> list[T]:
        """Return the records written since the last read, in the order of writing.

        The records are here at once, and not only after a checkpoint. `PipelineTest.crash` says
        which of them a crash withdraws.
        """
        return self._kept.take()


def _check_setup(setup: object) -> None:
    if not isinstance(setup, Setup):
        raise PipelineError(
            f"{setup!r} is no Setup. Parameters of the pipeline are keywords, and the rest is in "
            "PipelineTest(Totals, Setup(parallelism=3), minimum=5)."
        )
    if setup.batch < 1:
        raise PipelineError(f"batch={setup.batch}: a batch has at least one record")


def _instant_ms(at: Instant) -> int:
    try:
        return instant_ms(at)
    except UnusableTimeError as error:
        raise PipelineError(f"watermark({at!r}) is no instant: {error}") from error


def _check_not_back(run: PipelineRun, uid: Uid, of: TopicPartition, at_ms: int) -> None:
    now_ms = run.watermark_of(uid, of).timestamp_ms
    if at_ms < now_ms:
        raise PipelineError(
            f"watermark({at_ms}): partition {of.partition} of source {uid!r} is at {now_ms} "
            "already, and a watermark never goes back. Set it before you push later records, or "
            "give the strategy a longer delay."
        )
