"""The pipelines of simulated clusters whose event time comes from `with_timestamps`.

Their source has no event time and no strategy. A step in its chain gives each record its time, and
has the watermark of all records that its subtask reads. Records without a usable time go to a sink
of their own, so the oracle sees that each of them comes out once.

A run draws the strategy (`stamped_plan.py`) and patches `STRATEGY`, because a pipeline is declared
before the run.
"""

from __future__ import annotations

from typing import Final

from tests.simulator import pipelines
from tests.simulator.pipelines import IN_A, OUT_A, OUT_B, Event, Shape
from tests.simulator.timed_pipelines import (
    REJECTED,
    STAMP,
    Entry,
    TimedEvent,
    Watch,
    event_ms,
    has_time,
)
from tests.simulator.window_pipelines import no_result, windowed
from tidegate.api.connectors.kafka_sink import KafkaSink
from tidegate.api.connectors.kafka_source import KafkaSource
from tidegate.api.pipeline import Pipeline
from tidegate.api.records.formats import Json
from tidegate.api.steps.streams import Stream
from tidegate.api.time.watermarks import BoundedOutOfOrderness

STRATEGY = BoundedOutOfOrderness("0 s")
"""The strategy of the run."""


def _rejected(event: TimedEvent) -> Entry:
    pipelines.work()
    return Entry(event.name, event.key, event.amount, event.key, kind=REJECTED)


def stamped(events: Stream[TimedEvent], rejected: KafkaSink[Entry]) -> Stream[TimedEvent]:
    """Return the records with event times. Those without a usable one go to a sink."""
    timed = events.with_timestamps(event_ms, watermarks=STRATEGY, uid=STAMP)
    timed.rejected.map(_rejected).to(rejected)
    return timed


class Stamped(Pipeline, name="stamped"):
    """Event times in the middle, and one step with timers."""

    events = KafkaSource(IN_A, value=Json(TimedEvent))
    entries = KafkaSink(OUT_A, value=Json(Entry), record_key=lambda entry: entry.key)
    rejected = KafkaSink(OUT_B, value=Json(Entry), record_key=lambda entry: entry.key)

    def define(self) -> None:
        by_key = stamped(self.events, self.rejected).key_by(lambda event: event.key)
        by_key.process(Watch(), uid="watch").to(self.entries)


class WindowedStamped(Pipeline, name="windowed-stamped"):
    """Event times in the middle, and one step with windows."""

    events = KafkaSource(IN_A, value=Json(TimedEvent))
    entries = KafkaSink(OUT_A, value=Json(Entry), record_key=lambda entry: entry.key)
    rejected = KafkaSink(OUT_B, value=Json(Entry), record_key=lambda entry: entry.key)

    def define(self) -> None:
        windowed(stamped(self.events, self.rejected)).to(self.entries)


def _if_timed(event: Event) -> tuple[str, ...]:
    return (event.name,) if has_time(event) else ()


def _if_untimed(event: Event) -> tuple[str, ...]:
    return () if has_time(event) else (event.name,)


STAMPED: Final = Shape(
    Stamped, (IN_A,), {OUT_A: _if_timed, OUT_B: _if_untimed}, frozenset(), timed=True
)
"""A shape that replaces `Watched` in some runs."""

WINDOWED_STAMPED: Final = Shape(
    WindowedStamped, (IN_A,), {OUT_A: no_result, OUT_B: _if_untimed}, frozenset(), timed=True
)
"""A shape that replaces `Windowed` in some runs."""
