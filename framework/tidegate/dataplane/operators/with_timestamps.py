"""`Stream.with_timestamps`: a step that gives its records event times, and has its own watermark.

Each subtask has one generator of the declared strategy, for the records that it gets. Records of
several partitions are mixed there. The watermark goes to the steps behind at most once in
`job.watermark_interval`, and directly before each barrier. A batch costs one pass for its times and
one call of the strategy.

What comes from in front says only two things. The end of time passes. An idle input makes the
subtask idle until its next record. A subtask without records would hold back the watermark of all
others for ever, so `idle_after` makes it idle too. Only time in which the task asked for records
counts: the operator looks at the clock often, and a long time between two looks counts as two.

Invariants: the watermark never overtakes a record from which it follows. It never goes back, also
not by a restore: all subtasks continue from the watermark that the steps behind had at the
checkpoint. The end of time is not stored.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, cast

from tidegate.api.time.watermarks import Instant, WatermarkStrategy
from tidegate.dataplane.columns import select, with_times
from tidegate.dataplane.counters import Counters
from tidegate.dataplane.operators.event_time import ForwardsTime
from tidegate.dataplane.operators.stateless import Emit
from tidegate.dataplane.refusals import Refusals
from tidegate.dataplane.time.event_times import time_of, times_of
from tidegate.dataplane.time.generated import GeneratedWatermark
from tidegate.dataplane.user_errors import user_code_error
from tidegate.graph.stream_graph import MAIN, REJECTED, Node
from tidegate.ids import Uid
from tidegate.protocol.subtask_snapshot import StepWatermark
from tidegate.stream_elements import MAX_MS, MIN_MS, NEVER, RecordBatch, Watermark
from tidegate.user_exceptions import described

LOOKS: Final = 10
"""The number of looks at the clock before a subtask without records becomes idle."""
LOOK_MS_MAX: Final = 1000
"""The longest time between two looks, in milliseconds."""


class TimestampsOperator(ForwardsTime):
    """One `with_timestamps` step of one subtask."""

    has_timers = True

    def __init__(
        self,
        pipeline: str,
        node: Node,
        emits: Mapping[str, Emit],
        refusals: Refusals,
        *,
        counters: Counters,
        restored_ms: int = MIN_MS,
        interval_ms: int = 0,
        now_ms: Callable[[], int],
        asks: Callable[[], bool],
    ) -> None:
        """Create the operator.

        `refusals` counts and logs the records without a usable time, if no step reads them. `asks`
        returns whether the task asks for records now. `interval_ms` is the least time between two
        watermarks.
        """
        self._pipeline, self._node, self._refusals = pipeline, node, refusals
        self._event_time = cast("Callable[[Any], Instant]", node.function)
        strategy = cast("WatermarkStrategy[Any]", node.declaration)
        owner = f"{pipeline}: step uid {node.uid!r}"
        self._generated = GeneratedWatermark(strategy, owner, counters, restored_ms)
        self._emit, self._emit_rejected = emits[MAIN], emits.get(REJECTED)
        self._now_ms, self._asks = now_ms, asks
        self._emitted = Watermark(MIN_MS)
        """The watermark that was forwarded last."""
        self._interval_ms, self._emit_at_ms = interval_ms, MIN_MS
        """The earliest time of the clock at which the next watermark may follow."""
        self._input_idle = self._quiet = False
        """Whether the input was idle, and whether no record came for `idle_after`, since the last
        record.
        """
        self._idle_after_ms = strategy.idle_after_ms
        self._look_ms = max(1, min((strategy.idle_after_ms or 0) // LOOKS, LOOK_MS_MAX))
        self._quiet_ms = self._looked_ms = 0
        """The time without records that counts, and the time of the clock of the last look."""
        self._counts_idleness = not node.mixed_time

    def open(self) -> None:
        """Begin to count the time without records."""
        self._looked_ms = self._now_ms()

    def close(self) -> None:
        """Do nothing: plain functions have no `close`."""

    def process(self, batch: RecordBatch) -> None:
        """Emit the records with their event times, and note what the strategy says of them."""
        times_ms = times_of(self._event_time, batch.values)
        if times_ms is None:
            batch, times_ms = self._reject_untimed(batch)
        if times_ms:
            self._wake_up()
            self._generated.observe(batch.values, times_ms)
            self._emit(with_times(batch, times_ms))

    def advance(self, watermark: Watermark) -> None:
        """Note whether the input is idle, and let the end of time pass. A watermark from in front
        is ignored.
        """
        if watermark.timestamp_ms == MAX_MS:
            self._emitted = watermark
            self.forward(watermark)
            return
        self._input_idle = watermark.idle and self._counts_idleness
        self.emit_watermark()

    @property
    def next_processing_ms(self) -> int:
        """The time of the slot's clock at which a watermark or a look at the clock is due."""
        emit_at_ms = NEVER if self._present() == self._emitted else self._emit_at_ms
        return min(emit_at_ms, self._next_look_ms())

    def advance_processing_time(self, now_ms: int) -> None:
        """Emit the watermark, or look whether no record has come for too long."""
        if self._next_look_ms() <= now_ms:
            if self._asks():
                self._quiet_ms += min(now_ms - self._looked_ms, 2 * self._look_ms)
            self._looked_ms = now_ms
            self._quiet = self._quiet_ms >= cast("int", self._idle_after_ms)
        if self._quiet or self._emit_at_ms <= now_ms:
            self.emit_watermark()

    def emit_watermark(self) -> None:
        """Forward the watermark, if it has changed. The chain must be able to take it."""
        present = self._present()
        if present != self._emitted:
            self._emitted = present
            self._emit_at_ms = self._now_ms() + self._interval_ms
            self.forward(present)

    def snapshot(self) -> StepWatermark:
        """Return the watermark for a checkpoint."""
        found_ms = self._generated.watermark_ms
        return StepWatermark(
            uid=Uid(self._node.id),
            watermark_ms=None if found_ms == MIN_MS else found_ms,
            idle=self._input_idle or self._quiet,
        )

    def _present(self) -> Watermark:
        """Return the watermark that follows from the records; the end of time once it has come."""
        if self._emitted.timestamp_ms == MAX_MS:
            return self._emitted
        return Watermark(self._generated.watermark_ms, idle=self._input_idle or self._quiet)

    def _next_look_ms(self) -> int:
        if self._idle_after_ms is None or self._quiet or self._emitted.timestamp_ms == MAX_MS:
            return NEVER
        return self._looked_ms + self._look_ms

    def _wake_up(self) -> None:
        """Note that records come. If the subtask was idle, the steps behind learn of it first, so
        that they wait for these records.
        """
        self._quiet_ms = 0
        self._input_idle = self._quiet = False
        if self._emitted.idle:
            self._emitted = Watermark(self._emitted.timestamp_ms)
            self._looked_ms = self._now_ms()
            self.forward(self._emitted)

    def _reject_untimed(self, batch: RecordBatch) -> tuple[RecordBatch, list[int]]:
        """Return the records that have a usable time, and their times. The others go to those who
        read the rejected records. If no step does, they are counted.
        """
        times_ms: list[int] = []
        good: list[int] = []
        bad: list[int] = []
        remaining = iter(batch.values)
        for row, value in enumerate(remaining):
            try:
                times_ms.append(time_of(self._event_time, value))
                good.append(row)
            except BaseException as error:
                if not self._refusals.covers(error):
                    raise user_code_error(
                        self._pipeline, self._node, batch, remaining, error
                    ) from error
                bad.append(row)
                if self._emit_rejected is None:
                    self._refusals.refuse(batch, row, described(error))
        if self._emit_rejected is not None and bad:
            self._emit_rejected(with_times(select(batch, bad), None))
        return select(batch, good), times_ms
