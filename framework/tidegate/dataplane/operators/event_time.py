"""Event time inside a chain: how a watermark goes from step to step, and what a function sees.

The chain sets `forward` of each operator. An operator notes the watermark, emits what is due, and
forwards the watermark, so it reaches a step only after everything that is before it.
"""

from __future__ import annotations

from collections.abc import Callable

from tidegate.errors import PipelineError
from tidegate.stream_elements import MIN_MS, NEVER, Watermark

Advance = Callable[[Watermark], None]


def no_reader(_watermark: Watermark) -> None:
    """Do nothing: no step reads the results."""


class ForwardsTime:
    """The base of an operator that has no time of its own: it forwards every watermark."""

    has_timers = False
    forward: Advance = staticmethod(no_reader)
    """Function that passes a watermark on to everything behind the step. The chain sets it."""

    @property
    def firing(self) -> bool:
        """False: nothing is due."""
        return False

    @property
    def next_processing_ms(self) -> int:
        """NEVER: nothing is due at any time of the clock."""
        return NEVER

    def fire(self) -> None:
        """Do nothing: nothing is due."""

    def set_piece(self, count: int) -> None:
        """Do nothing: nothing is due in pieces."""

    def advance_processing_time(self, now_ms: int) -> None:
        """Do nothing: nothing is due at any time."""

    def advance(self, watermark: Watermark) -> None:
        """Forward the watermark."""
        self.forward(watermark)


class TimedContext:
    """The part of a function's context that has times. A subclass has the two attributes."""

    __slots__ = ()
    time: RecordTime
    offset: int
    """The offset of the record, or its row number if the batch has event times."""

    @property
    def timestamp_ms(self) -> int:
        """Return the event time of the record. PipelineError if it has none."""
        return self.time.timestamp_ms(self.offset)

    @property
    def watermark_ms(self) -> int:
        """Return the watermark of the step."""
        return self.time.watermark_ms

    @property
    def processing_time_ms(self) -> int:
        """Return the time of the slot's clock."""
        return self.time.now_ms()


class RecordTime:
    """The event times of the batch that a function processes, and the watermark of its step."""

    __slots__ = ("now_ms", "timestamps_ms", "watermark_ms")

    def __init__(self, now_ms: Callable[[], int], watermark_ms: int = MIN_MS) -> None:
        self.now_ms = now_ms
        """Function that returns the time of the slot's clock."""
        self.timestamps_ms: list[int] | None = None
        """The event times of the batch; None if its source declares no event time."""
        self.watermark_ms = watermark_ms
        """The watermark. It never goes back."""

    def advance(self, watermark: Watermark) -> None:
        """Note a watermark."""
        self.watermark_ms = max(self.watermark_ms, watermark.timestamp_ms)

    def timestamp_ms(self, row: int) -> int:
        """Return the event time of a record of the batch. PipelineError if it has none.

        A batch with event times is processed by row numbers, so `row` is one.
        """
        if self.timestamps_ms is None:
            raise PipelineError(
                "ctx.timestamp_ms: the records of this step have no event time. Give each source "
                "in front of it event_time= or watermarks=, for example "
                "watermarks=BoundedOutOfOrderness('10 s')."
            )
        return self.timestamps_ms[row]
