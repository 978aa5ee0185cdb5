"""The settings of a drawn pipeline. A seed draws them all.

A draw is within the bound, or beyond it. Within the bound no record is late, so the final results
are those of a batch, in every run. Beyond it, each run decides by its interleaving which records
are late, so only the fate of each record is compared. These features are not drawn, because their
results depend on the interleaving or on the clock:

- Within the bound, `with_timestamps` has a delay that covers the whole input, because records of
  several partitions are mixed there. A shorter delay is drawn beyond the bound.
- Event times are multiples of 10 ms and gaps of sessions are not. A record exactly at the end of a
  session joins it only if it comes before the watermark ends it.
- Windows and timers of processing time, also `Every` in processing time: the clock decides.
- Beyond the bound, each step writes the names of its records, because sums alone cannot say that no
  record is in two places. For the same reason `reduce` and windows of windows are within the bound.
- Sessions with `accumulate=False` beyond the bound: pieces of two sessions look like one.
- A partition never returns from idleness: whether it was idle is a question of time.
- A source without watermarks next to one with watermarks: its records may be late at any time.
- `max_ahead` compares with the time at which a record is written.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Final

FIRST, SECOND = "first", "second"
TUMBLING, SLIDING, SESSION, SESSION_OF = "tumbling", "sliding", "session", "session of record"
CALENDAR, GLOBAL = "calendar", "global"
WINDOWS, TIMERS, SIDES = "windows", "timers", "sides"
BOUNDED, MONOTONOUS, PUNCTUATED = "bounded", "monotonous", "punctuated"
FIELD, HEADER, KAFKA = "field", "header", "kafka"
ORDERED, REDUCED = "ordered", "reduced"

SPANS_MS: Final = (60_000, 18_000_000, 6 * 86_400_000)
"""The event time of the fastest partition: a minute, five hours and six days."""
CHANGES: Final = {
    "Europe/Berlin": 1_711_846_800_000,
    "America/St_Johns": 1_710_048_600_000,
    "Australia/Lord_Howe": 1_712_415_600_000,
    "UTC": 1_711_843_200_000,
}
"""A time in the middle of the input, by zone. Except for UTC, the clocks change there."""
NAMED: Final = ("names", "collected", ORDERED)
"""The parts of a result that say which records a window has."""
EXACT: Final = frozenset({"count", "sum", "min", "max", "mean"})
"""The parts whose accumulators do not depend on the order of records."""
PARTS: Final = (
    "names", "collected", "count", "sum", "weights", "mean", "min", "max", "first", "last", "top",
)  # fmt: skip
PARTS_MAX: Final = 5


@dataclass(frozen=True, slots=True)
class Strategy:
    """The event time and the watermarks of a source."""

    time: str
    kind: str
    delay_ms: int
    idle: bool
    """Whether a partition without records may become idle."""


@dataclass(frozen=True, slots=True)
class SourceDraw:
    """A source: its partitions, and where its event time is."""

    name: str
    strategy: Strategy
    speeds: tuple[float, ...]
    """The share of the span that each partition covers. 0 is a partition without records."""
    bad: bool
    """Whether some records have no usable event time."""


@dataclass(frozen=True, slots=True)
class Windows:
    """The windows of a step."""

    kind: str
    size_ms: int
    """The size of the windows, or the gap of sessions."""
    every_ms: int
    offset_ms: int
    unit: str
    zone: str


@dataclass(frozen=True, slots=True)
class Firing:
    """A trigger. `early` and `late` are numbers of records, or periods with a unit."""

    early: str
    late: str
    repeatedly: str
    accumulate: bool


@dataclass(frozen=True, slots=True)
class StepDraw:
    """A step with windows or timers."""

    uid: str
    kind: str
    windows: Windows | None = None
    firing: Firing | None = None
    lateness_ms: int = 0
    by_key: bool = True
    parts: tuple[str, ...] = ()
    """The aggregates, or `ORDERED` for a window function, or `REDUCED`."""
    wider_ms: int = 0
    """The size of the windows behind this step, or 0."""

    @property
    def named(self) -> str | None:
        """The part that says which records a window has."""
        return next((part for part in self.parts if part in NAMED), None)

    @property
    def accumulates(self) -> bool:
        """Whether a result has all records of its window."""
        return self.firing is None or self.firing.accumulate


@dataclass(frozen=True, slots=True)
class Draw:
    """A drawn pipeline with its input."""

    seed: int
    beyond: bool
    span_ms: int
    zone: str
    sources: tuple[SourceDraw, ...]
    filtered: bool
    passes: bool
    """Whether a keyed step of a coarser key comes first."""
    stamped_ms: int | None
    """The delay of `with_timestamps`, or None without it."""
    steps: tuple[StepDraw, ...]

    @property
    def begin_ms(self) -> int:
        """The first event time, about half of the span before the change of the clocks."""
        return CHANGES[self.zone] // 10 * 10 - self.span_ms // 20 * 10

    @property
    def same_watermarks(self) -> bool:
        """Whether all runs end with the same watermark at every step, also without a drain."""
        return self.stamped_ms is None and not any(each.strategy.idle for each in self.sources)

    def has_exact_state(self, step: StepDraw) -> bool:
        """Return whether the state of a step is the same after all runs, byte by byte."""
        if self.beyond or not self.same_watermarks:
            return False
        return step.kind != WINDOWS or (step.firing is None and set(step.parts) <= EXACT)


def draw(seed: int, *, beyond: bool | None = None) -> Draw:
    """Return the pipeline of a seed."""
    rng = random.Random(f"drawn pipeline {seed}")
    beyond = rng.random() < 0.5 if beyond is None else beyond
    span_ms, zone = rng.choice(SPANS_MS), rng.choice(sorted(CHANGES))
    stamped = rng.random() < 0.2
    delay_ms = rng.choice((0, span_ms // 100, span_ms // 20)) // 10 * 10
    names = (FIRST, SECOND) if rng.random() < 0.5 else (FIRST,)
    sources = tuple(_source(rng, name, delay_ms, stamped=stamped) for name in names)
    stamped_ms = None
    if stamped:
        stamped_ms = rng.choice((0, span_ms // 20, span_ms // 4)) if beyond else 4 * span_ms
    kinds = [
        rng.choice((WINDOWS, WINDOWS, WINDOWS, TIMERS, SIDES)) for _ in range(rng.choice((1, 2, 3)))
    ]
    kinds = [kind if kind != SIDES or len(names) > 1 else TIMERS for kind in kinds]
    return Draw(
        seed=seed,
        beyond=beyond,
        span_ms=span_ms,
        zone=zone,
        sources=sources,
        filtered=rng.random() < 0.3,
        passes=rng.random() < 0.3 and any(kind != SIDES for kind in kinds),
        stamped_ms=stamped_ms,
        steps=tuple(
            _window_step(rng, f"step{number}", span_ms, zone, beyond=beyond)
            if kind == WINDOWS
            else StepDraw(f"step{number}", kind)
            for number, kind in enumerate(kinds)
        ),
    )


def _source(rng: random.Random, name: str, delay_ms: int, *, stamped: bool) -> SourceDraw:
    speeds = [rng.choice((0.3, 0.7, 1.0)) for _ in range(3)]
    silent = rng.random() < 0.4
    if silent:
        speeds[rng.randrange(3)] = rng.choice((0.0, 0.05))
    kind = rng.choice((BOUNDED, BOUNDED, PUNCTUATED)) if delay_ms else MONOTONOUS
    time = FIELD if stamped else rng.choice((FIELD, FIELD, HEADER, KAFKA))
    strategy = Strategy(time, kind, delay_ms, idle=silent and rng.random() < 0.7)
    return SourceDraw(name, strategy, tuple(speeds), bad=time == FIELD and rng.random() < 0.3)


def _window_step(
    rng: random.Random, uid: str, span_ms: int, zone: str, *, beyond: bool
) -> StepDraw:
    windows = _windows(rng, span_ms, zone)
    firing = _firing(rng, windows, beyond=beyond)
    parts = _parts(rng)
    plain = not beyond and firing is None and windows.kind != GLOBAL
    if plain and rng.random() < 0.15:
        parts = (REDUCED,)
    elif rng.random() < 0.2:
        parts = (ORDERED,)
    needs_names = beyond or not (firing is None or firing.accumulate)
    if needs_names and not any(part in NAMED for part in parts):
        parts = (rng.choice(("names", "collected")), *parts[: PARTS_MAX - 1])
    return StepDraw(
        uid,
        WINDOWS,
        windows,
        firing,
        lateness_ms=rng.choice((0, 0, span_ms // 20, span_ms // 3))
        if windows.kind != GLOBAL
        else 0,
        by_key=rng.random() < 0.75,
        parts=parts,
        wider_ms=span_ms // 2 if plain and "sum" in parts and rng.random() < 0.5 else 0,
    )


def _windows(rng: random.Random, span_ms: int, zone: str) -> Windows:
    kind = rng.choice((TUMBLING, TUMBLING, SLIDING, SLIDING, SESSION, SESSION_OF, CALENDAR, GLOBAL))
    if kind == SESSION_OF and span_ms > SPANS_MS[0]:
        kind = SESSION
    size_ms = span_ms // rng.choice((4, 10, 25))
    every_ms = size_ms // rng.choice((2, 3, 10)) if kind == SLIDING else size_ms
    if kind == SLIDING and rng.random() < 0.7:
        size_ms = size_ms // every_ms * every_ms
    if kind == SESSION:
        size_ms = span_ms // rng.choice((50, 100, 200)) // 10 * 10 + 5
    days = span_ms > SPANS_MS[1]
    unit = rng.choice(("day", "day", "week", "month")) if days else "hour"
    offset_ms = rng.choice((0, 0, size_ms // 3)) if kind in (TUMBLING, SLIDING) else 0
    return Windows(kind, size_ms, every_ms, offset_ms, unit, zone)


def _firing(rng: random.Random, windows: Windows, *, beyond: bool) -> Firing | None:
    def repeat() -> str:
        return rng.choice(("1", "2", "5", f"{max(1, windows.size_ms // 3)} ms"))

    if windows.kind == SLIDING or (windows.kind != GLOBAL and rng.random() < 0.4):
        return None
    sessions = windows.kind in (SESSION, SESSION_OF)
    accumulate = rng.random() < 0.6 or (sessions and beyond)
    if windows.kind == GLOBAL or rng.random() < 0.2:
        return Firing("", "", repeat(), accumulate)
    early = repeat() if rng.random() < 0.6 else ""
    return Firing(early, repeat() if rng.random() < 0.5 else "", "", accumulate)


def _parts(rng: random.Random) -> tuple[str, ...]:
    if rng.random() < 0.3:  # parts with an exact state
        return tuple(rng.sample(sorted(EXACT), rng.randint(1, len(EXACT))))
    return tuple(rng.sample(PARTS, rng.randint(1, PARTS_MAX)))
