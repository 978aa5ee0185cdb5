"""The input of a drawn pipeline: events by source and partition, in their order.

A partition has a speed, so that partitions are ahead of each other, and pauses, so that sessions
end. Within the bound, an event is behind the newest one of its partition by at most the delay, and
some are exactly at this edge. Beyond it, a fifth of the events come later than that, by up to half
of the span.
"""

from __future__ import annotations

import random
from typing import Final

from integration.agreement.drawn.draws import Draw, SourceDraw
from integration.agreement.drawn.parts import Event

KEYS: Final = ("aa", "ab", "ba", "bb", "ca")
Partitions = dict[str, list[list[Event]]]
"""Events by source and partition."""


def records_of(draw: Draw, count: int) -> Partitions:
    """Return about this number of events of each source."""
    rng = random.Random(f"drawn records {draw.seed}")
    return {
        source.name: [
            _partition(rng, draw, source, number, count // len(source.speeds))
            for number in range(len(source.speeds))
        ]
        for source in draw.sources
    }


def usable(partitions: Partitions, *, filtered: bool) -> list[Event]:
    """Return the events that have an event time, and that the filter keeps."""
    events = [event for each in partitions.values() for events in each for event in events]
    return [
        event
        for event in events
        if event.at_ms is not None and (not filtered or event.amount % 5 != 0)
    ]


def _partition(
    rng: random.Random, draw: Draw, source: SourceDraw, number: int, count: int
) -> list[Event]:
    speed, delay_ms = source.speeds[number], source.strategy.delay_ms
    if not speed:
        return []
    step_ms = speed * draw.span_ms / count
    now_ms = float(draw.begin_ms)
    events: list[Event] = []
    for position in range(max(1, int(count * min(1.0, 4 * speed)))):
        now_ms += step_ms * rng.choice((0.0, 0.0, 0.3, 0.7, 1.0, 4.0))
        top_ms = int(now_ms) // 10 * 10
        at_ms: int | None = top_ms - 10 * rng.choice(
            (0, rng.randint(0, delay_ms // 10), delay_ms // 10)
        )
        if draw.beyond and rng.random() < 0.2:
            reach_ms = rng.choice((draw.span_ms // 30, draw.span_ms // 2))
            at_ms = top_ms - delay_ms - 10 * rng.randint(0, reach_ms // 10)
        if source.bad and rng.random() < 0.05:
            at_ms = None
        marked = rng.random() < 0.2
        events.append(
            Event(
                f"{source.name}-{number}-{position}",
                rng.choice(KEYS),
                rng.randrange(1, 1_000),
                rng.uniform(-1e6, 1e6),
                at_ms,
                top_ms - delay_ms - 1 if marked else None,
            )
        )
    return events
