"""Event times and watermarks in the middle of a pipeline: `Stream.with_timestamps`.

The records of several partitions are mixed here, so there is one generator for each subtask, and
its delay must cover the skew of the partitions. Watermarks from the front are dropped: the step
makes its own, at an interval and directly before each barrier. A record without a usable time goes
to the stream `rejected`, and never moves a watermark.

A checkpoint does not hold the watermark of this step. The steps with state behind it keep their
own, so what was late stays late.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Final, cast

from tidegate.api.watermarks import Instant, WatermarkStrategy, instant_ms
from tidegate.dataplane.columns import select
from tidegate.dataplane.operators.event_time import ChainTime, ForwardsTime
from tidegate.dataplane.operators.stateless import Emit
from tidegate.dataplane.operators.user_errors import user_code_error
from tidegate.dataplane.time.usable import usable_times
from tidegate.errors import TidegateError, refused_resource
from tidegate.graph.stream_graph import MAIN, REJECTED, Node
from tidegate.stream_elements import MIN_MS, RecordBatch, Watermark

ASKED_S_MAX: Final = 0.1
"""The longest time between two ticks that counts as time in which a record could have come."""


class TimestampsOperator(ForwardsTime):
    """One `with_timestamps` step of one subtask."""

    def __init__(
        self,
        pipeline: str,
        node: Node,
        emits: Mapping[str, Emit],
        time: ChainTime,
    ) -> None:
        self._pipeline, self._node = pipeline, node
        self._event_time = cast("Callable[[Any], Instant]", node.function)
        strategy = cast("WatermarkStrategy[Any]", node.declaration)
        self._generator = strategy.generator()
        self._idle_after_ms = strategy.idle_after_ms
        self._emit, self._emit_rejected = emits[MAIN], emits[REJECTED]
        self._time, self._now = time, time.now
        self._watermark = self._emitted = Watermark(MIN_MS)
        self._emit_at_s = self._quiet_s = 0.0
        self._ticked_s: float | None = None

    def open(self) -> None:
        """Do nothing: a plain function has no `open`."""

    def close(self) -> None:
        """Do nothing: a plain function has no `close`."""

    def advance(self, watermark: Watermark) -> None:
        """Drop a watermark from the front: this step makes its own."""

    def process(self, batch: RecordBatch) -> None:
        """Emit the records with their event times, and the others to `rejected`."""
        try:
            times_ms = usable_times(list(map(self._event_time, batch.values)), len(batch))
        except Exception:  # noqa: BLE001 - the slow path finds the record
            times_ms = None
        if times_ms is None:
            batch, times_ms = self._without_rejected(batch)
        if batch.values:
            stamped = replace(batch, timestamps_ms=times_ms)
            self._observe(stamped, times_ms)
            self._emit(stamped)
        if self._now() >= self._emit_at_s:
            self.emit_watermark()

    def tick(self, *, writable: bool) -> None:
        """Note that time has passed. While the outputs are full, the time does not count."""
        now_s = self._now()
        if self._idle_after_ms is not None and writable:
            passed_s = 0.0 if self._ticked_s is None else now_s - self._ticked_s
            self._quiet_s += min(passed_s, ASKED_S_MAX)
            if self._quiet_s * 1000 >= self._idle_after_ms:
                self._watermark = replace(self._watermark, idle=True)
        self._ticked_s = now_s
        if now_s >= self._emit_at_s:
            self.emit_watermark()

    def emit_watermark(self) -> None:
        """Forward the watermark, if it has changed. The task calls this before each barrier."""
        self._emit_at_s = self._now() + self._time.watermark_interval_s
        if self._watermark != self._emitted:
            self._emitted = self._watermark
            self.forward(self._watermark)

    def _observe(self, batch: RecordBatch, times_ms: list[int]) -> None:
        self._quiet_s = 0.0
        remaining = iter(batch.values)
        try:
            found = self._generator.observe(batch.values, times_ms)
        except TidegateError:
            raise
        except Exception as error:
            next(remaining)
            raise user_code_error(self._pipeline, self._node, batch, remaining, error) from error
        before_ms = self._watermark.timestamp_ms
        if found is not None and found < before_ms:
            self._time.counters.backward_watermarks += 1
        self._watermark = Watermark(before_ms if found is None else max(before_ms, found))

    def _without_rejected(self, batch: RecordBatch) -> tuple[RecordBatch, list[int]]:
        kept: list[int] = []
        rejected: list[int] = []
        times_ms: list[int] = []
        for row, value in enumerate(batch.values):
            try:
                times_ms.append(instant_ms(self._event_time(value)))
                kept.append(row)
            except TidegateError:
                raise
            except Exception as error:
                if refused_resource(error) is not None:
                    raise  # a problem of the process, not of the record
                rejected.append(row)
        if rejected:
            self._emit_rejected(select(batch, rejected))
        return select(batch, kept), times_ms
