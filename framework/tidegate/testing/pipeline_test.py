"""A driver for a whole pipeline class: push records into its sources and read its sinks.

The driver runs a job in the calling thread, on the data plane that slots and the tasks of Spark
run: subtasks, channels, barriers, keyed state and its restore. There is no Kafka, no process and no
waiting, and the clock moves only when the test says so. Records are encoded and decoded with the
formats of their source and sink, so a record that cannot be read or written fails in the test.

A test names a source or a sink by its class attribute (`test.source(OrderTotals.orders)`), because
the attribute carries the record type. `run.py` has the job itself.
"""

from __future__ import annotations

from types import TracebackType
from typing import Any, Final, Self, TypeVar, cast

import msgspec

from tidegate.api.connectors.kafka_records import ProducerRecord
from tidegate.api.connectors.kafka_sink import KafkaSink, dead_letter_sink_name
from tidegate.api.connectors.kafka_source import KafkaSource
from tidegate.api.connectors.sink import Sink
from tidegate.api.declarations.connector import Connector
from tidegate.api.pipeline import Pipeline
from tidegate.api.time.times import Duration, to_ms
from tidegate.api.time.watermarks import Instant
from tidegate.api.windows.window_step import WindowStep
from tidegate.dataplane.counters import Counters
from tidegate.errors import PipelineError
from tidegate.graph.stream_graph import Node
from tidegate.stream_elements import Watermark
from tidegate.testing.connectors import (
    PipelineSink,
    PipelineSource,
    check_not_back,
    watermark_instant_ms,
)
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
    """The most records that a subtask of a source emits together, and the most keys whose timers
    fire together. As many windows of a step fire together, and are stored together. A burst of
    several pieces lets barriers pass between two of them.
    """
    seed: int = 0
    """The order in which subtasks have their turns. 0 is the order of the plan; every other number
    draws one.
    """
    checkpoint_every: int = 0
    """Number of steps of subtasks after which a checkpoint comes by itself. `crash` restores the
    last one. Its barriers pass while records and timers are on their way. A seed draws the number
    of steps, which is on average the one that is given. 0: only `checkpoint` takes them.
    """
    shuffled_replay: bool = False
    """Whether a crash leads to another order between partitions, which the seed draws. The order
    within each partition stays. It is as in a job, but records may be late that were not late
    before: those that are behind the watermark of their own partition, and those of a partition
    that was idle.
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
            checkpoint_every=setup.checkpoint_every,
            shuffled_replay=setup.shuffled_replay,
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

    def late(self, uid: str) -> int:
        """Return the number of records that a step with windows has found late. Records that are
        read again after a crash count again. PipelineError if no step with windows has this uid.
        """
        uids = [node.id for node in self._run.graph if isinstance(node.function, WindowStep)]
        if uid not in uids:
            raise PipelineError(
                f"late({uid!r}): no step with windows has this uid; the pipeline has "
                f"{', '.join(uids) or 'no windows'}."
            )
        return self.counters.late.get(uid, 0)

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
                f"Source {source.name!r}: partition={partition!r} is no partition: Kafka numbers "
                "them from 0."
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
        at_ms = watermark_instant_ms(at)
        partitions = self._run.timed_partitions()
        if not partitions:
            raise PipelineError(
                f"No partition of {self._pipeline.__name__} has a watermark: its sources declare "
                "no watermarks=, or the test has ended them. Give a source "
                "watermarks=BoundedOutOfOrderness('10 s'), for example."
            )
        for uid, of in partitions:
            check_not_back(self._run, uid, of, at_ms)
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
            raise PipelineError(f"{connector.name!r} is not of {self._pipeline.__name__}.")


def _check_setup(setup: object) -> None:
    if not isinstance(setup, Setup):
        raise PipelineError(
            f"{setup!r} is no Setup. Parameters of the pipeline are keywords, and the rest is in "
            "PipelineTest(Totals, Setup(parallelism=3), minimum=5)."
        )
    if setup.batch < 1:
        raise PipelineError(f"batch={setup.batch}: a batch has at least one record.")
    if setup.checkpoint_every < 0:
        raise PipelineError(
            f"checkpoint_every={setup.checkpoint_every}: give a number of steps, or 0 for none."
        )
