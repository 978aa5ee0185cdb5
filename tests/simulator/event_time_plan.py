"""The plan of a run with event time: the pipeline, the strategy and the event times of all records.

The plan of the seed without event time (`plan.py`, `backfill_plan.py`) does not change, because
this module draws from a separate random stream. The times of records, the cluster, the job runs and
the faults stay. The records get event times, partitions and timers:

- Each partition has a speed, so that the partitions are ahead of each other.
- A record is out of order within the bound, at its edge, or beyond it.
- A partition may become silent. Then, and seldom otherwise, the strategy has `idle_after`.
- The pipeline has windows in half of the runs.
- Timers are set before, at and after the event time of their record, often at round times, so that
  many keys are due together.

These plans exclude faults with other rules: sinks that are written at least once, swapped storages
and clusters, and blackouts that outlast transactions.
"""

from __future__ import annotations

import contextlib
import random
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Final
from unittest.mock import patch

from tests.simulator import stamped_pipelines, window_pipelines
from tests.simulator.pipelines import Shape
from tests.simulator.plan import TOLERATED_OUTAGE_MS, Input, JobRun, Plan
from tests.simulator.timed_pipelines import (
    ALARM,
    ALARMS,
    DEADLINE,
    DEADLINES,
    SIDES,
    SILENCE,
    TIMED_SHAPES,
    EventTime,
    TimedEvent,
    TimerChange,
    Watched,
    WatchedUnion,
    WindowSettings,
)
from tests.simulator.window_pipelines import (
    SESSION,
    SLIDING,
    TUMBLING,
    WINDOW_SHAPES,
    WindowedTwice,
)
from tidegate.api.connectors.kafka_source import KafkaSource
from tidegate.api.time.watermarks import BoundedOutOfOrderness

DELAYS_MS: Final = (0, 50, 200, 600)
IDLE_AFTER_MS: Final = (200, 500, 1500)
SILENT: Final = 0.45
"""Share of the runs in which a partition becomes silent."""
SILENT_FROM: Final = (0.0, 0.2, 0.5)
"""From which part of the input on a partition is silent."""
ALARMED: Final = 0.8
"""Share of the runs with processing timers, among those of one pipeline without backfills."""
DRAINS: Final = 0.4
"""Share of the runs whose last job run drains: a bounded one, or one that the user stops."""
SIDED: Final = 0.5
"""Share of the runs with two sources whose step has two inputs."""
SPEEDS: Final = (0.3, 1.0, 1.0, 2.0)
STEP_MS: Final = 60.0
"""Longest event time between two records, in addition to the time between their writes."""
ROUND_MS: Final = 500
INTERVALS_MS: Final = {False: (50, 200, 400), True: (1, 20, 200)}
"""Times between two watermarks. With windows they are short, so that a record is late although the
job reads many records at once after a restart."""
POLLED: Final = "tidegate.dataplane.sources.kafka.BATCH_RECORDS"
POLLED_RECORDS: Final = (1, 2, 5, 20)
"""Numbers of records that a source of windows gets from one poll."""
WINDOWED: Final = 0.5
"""Share of the runs whose pipeline has windows."""
SIZES_MS: Final = (100, 500, 500, 2_000)
GAPS_MS: Final = (100, 300, 300, 1_000)
LATENESSES_MS: Final = (0, 0, 100, 500, 3_000)
LATE_FOR_WINDOWS: Final = 0.25
"""Share of the records of these runs that come when one of their windows may have ended."""
WINDOWED_SPEEDS: Final = (0.7, 1.0, 1.0, 1.5)
AFTER_MS: Final = (-300, 0, 1, 40, 200, 700, 2_500, 20_000)
"""Times of timers, in ms after their record."""
SKEW_MS_MAX: Final = 2_000
"""Largest error of a process's clock in runs with processing timers. Elsewhere it is an hour."""
WINDOWS_FIRED: Final = "tidegate.dataplane.windows.operator.WindowOperator.piece"
WINDOWS_STORED: Final = "tidegate.dataplane.state.window_tables.WindowTables.piece"
"""The piece in which windows are stored is as long as the one in which they fire."""
LIMITS: Final[Mapping[str, tuple[int, ...]]] = {
    "tidegate.dataplane.operators.timers.TimedKeyedOperator.piece": (1, 2, 5),
    WINDOWS_FIRED: (1, 2, 5),
}


def _limits(rng: random.Random) -> dict[str, int]:
    limits = {name: rng.choice(of) for name, of in LIMITS.items() if rng.random() < 0.5}
    if WINDOWS_FIRED in limits:
        limits[WINDOWS_STORED] = limits[WINDOWS_FIRED]
    return limits


def with_event_time(plan: Plan, rng: random.Random) -> Plan:
    """Return the plan with event time."""
    windowed = rng.random() < WINDOWED
    shape = rng.choice(WINDOW_SHAPES if windowed else TIMED_SHAPES)
    alarms = rng.random() < ALARMED and shape.pipeline is Watched and plan.waves is None
    partitions = {
        topic: plan.partitions.get(topic, 0) or rng.randint(1, 3)
        for topic in (*shape.sources, *shape.sinks)
    }
    silent = rng.random() < SILENT
    idles = rng.random() < (0.75 if silent else 0.2)
    event_time = EventTime(
        delay_ms=rng.choice(DELAYS_MS),
        idle_after_ms=rng.choice(IDLE_AFTER_MS) if idles else None,
        alarms=alarms,
        drains=rng.random() < DRAINS and plan.job_runs[-1].wave_offsets is None,
        partitions=tuple(
            (topic, number) for topic in shape.sources for number in range(partitions[topic])
        ),
        limits=_limits(rng) | ({POLLED: rng.choice(POLLED_RECORDS)} if windowed else {}),
        windows=_windows(rng, twice=shape.pipeline is WindowedTwice) if windowed else None,
    )
    checkpoint = {**plan.settings["checkpoint"], "tolerated_outage": TOLERATED_OUTAGE_MS}
    job = {**plan.settings["job"], "watermark_interval": rng.choice(INTERVALS_MS[windowed])}
    inputs = _Times(rng, event_time, silent=silent).of(plan.inputs)
    if shape.pipeline is WatchedUnion and rng.random() < SIDED:
        shape = SIDES
    elif alarms:
        shape = ALARMS
    return replace(
        plan,
        shape=shape,
        partitions=partitions,
        fault_rates=replace(plan.fault_rates, blackout=0.0),
        job_runs=draining(plan.job_runs) if event_time.drains else plan.job_runs,
        inputs=inputs,
        settings={**plan.settings, "checkpoint": checkpoint, "job": job},
        swaps=(None,) * len(plan.swaps),
        event_time=event_time,
    )


def _windows(rng: random.Random, *, twice: bool) -> WindowSettings:
    """Return the windows of a run."""
    kind = rng.choice((TUMBLING, SLIDING, SESSION))
    size_ms = rng.choice(GAPS_MS if kind == SESSION else SIZES_MS)
    every_ms = size_ms * rng.choice((1, 2, 3, 5, 8)) // 10 if kind == SLIDING else size_ms
    return WindowSettings(
        kind=kind,
        size_ms=size_ms,
        every_ms=every_ms,
        lateness_ms=rng.choice(LATENESSES_MS),
        process=rng.random() < 0.3,
        collects=rng.random() < 0.4,
        early=rng.choice((0, 0, 0, 2)) if kind != SLIDING else 0,
        late=rng.choice((1, 1, 2)) if kind != SLIDING else 1,
        twice=twice,
    )


def draining(job_runs: tuple[JobRun, ...]) -> tuple[JobRun, ...]:
    """Let the user stop the last job run with a drain, unless it ends at its bounds."""
    last = job_runs[-1]
    ends = "drain" if last.ends == "finished" else last.ends
    return (*job_runs[:-1], replace(last, ends=ends))


class _Times:
    """The partitions, the event times and the timers of the records of a run."""

    def __init__(self, rng: random.Random, event_time: EventTime, *, silent: bool) -> None:
        self._rng, self._event_time = rng, event_time
        places = event_time.partitions
        speeds = SPEEDS if event_time.windows is None else WINDOWED_SPEEDS
        self._speeds = {place: rng.choice(speeds) for place in places}
        self._silent = rng.choice(places) if silent and len(places) > 1 else None
        self._silent_from = rng.choice(SILENT_FROM)
        self._highest: dict[tuple[str, int], int] = {}
        """The highest event time of each partition."""

    def of(self, inputs: tuple[Input, ...]) -> tuple[Input, ...]:
        """Return the inputs with event times, in the same order."""
        counts: Counter[tuple[str, int]] = Counter()
        timed, passed_ms, before_s = [], 0.0, 0.0
        for number, each in enumerate(inputs):
            passed_ms += (each.at_s - before_s) * 1000 + STEP_MS * self._rng.random()
            before_s = each.at_s
            place = self._place(number / len(inputs))
            at_ms = self._event_ms(place, passed_ms, committed=each.committed)
            event = TimedEvent(
                f"{place[0]}-{place[1]}:{counts[place]}",
                each.event.key,
                each.event.amount,
                at_ms,
                tuple(self._changes(at_ms)),
                self._rng.choice((None, None, None, 0, 2)),
            )
            counts[place] += 1
            timed.append(Input(each.at_s, *place, event, each.committed))
        return tuple(timed)

    def _place(self, share: float) -> tuple[str, int]:
        places = [
            place
            for place in self._event_time.partitions
            if place != self._silent or share < self._silent_from
        ]
        return self._rng.choice(places)

    def _event_ms(self, place: tuple[str, int], passed_ms: float, *, committed: bool) -> int:
        rng, delay_ms = self._rng, self._event_time.delay_ms
        at_ms = int(self._speeds[place] * passed_ms)
        highest_ms = self._highest.get(place, at_ms)
        windows = self._event_time.windows
        late = windows is not None and bool(self._highest) and rng.random() < LATE_FOR_WINDOWS
        match rng.random():
            case _ if late and windows is not None:
                at_ms = self._late_ms(windows)
            case kind if kind < 0.08:
                at_ms = highest_ms - rng.randint(1, 3 * delay_ms + 100)  # most of these are late
            case kind if kind < 0.16:
                at_ms = highest_ms - delay_ms - rng.choice((0, 0, 1))  # the edge of the bound
            case kind if kind < 0.7:
                at_ms -= rng.randint(0, delay_ms)
        if committed:  # a source skips aborted records
            self._highest[place] = max(highest_ms, at_ms)
        return at_ms

    def _late_ms(self, windows: WindowSettings) -> int:
        """Return an event time for which windows have ended, and perhaps are removed."""
        rng = self._rng
        watermark_ms = min(self._highest.values()) - self._event_time.delay_ms - 1
        reach_ms = rng.choice((windows.size_ms, windows.size_ms + windows.lateness_ms))
        return watermark_ms - rng.choice((0, 100, 400)) - rng.randint(0, reach_ms + 200)

    def _changes(self, at_ms: int) -> Iterator[TimerChange]:
        rng = self._rng
        for _ in range(rng.choice((0, 1, 1, 2))):
            timer = SILENCE if rng.random() < 0.5 else DEADLINE
            name = "" if timer == SILENCE else rng.choice(DEADLINES)
            yield TimerChange(timer, name, self._timer_ms(at_ms))
        if self._event_time.alarms and rng.random() < 0.2:
            yield TimerChange(ALARM, "", rng.choice((None, 0, 30, 500, 2_000)))

    def _timer_ms(self, at_ms: int) -> int | None:
        rng = self._rng
        if rng.random() < 0.12:
            return None
        timer_ms = at_ms + rng.choice(AFTER_MS)
        return -(-timer_ms // ROUND_MS) * ROUND_MS if rng.random() < 0.5 else timer_ms


@contextlib.contextmanager
def patch_event_time(shape: Shape, event_time: EventTime | None) -> Iterator[None]:
    """Give the sources, or `with_timestamps`, the strategy of the run, and apply its limits."""
    with contextlib.ExitStack() as stack:
        if event_time is not None:
            idle_ms = event_time.idle_after_ms
            strategy = BoundedOutOfOrderness(
                f"{event_time.delay_ms} ms", idle_after=None if idle_ms is None else f"{idle_ms} ms"
            )
            if event_time.stamped:
                stack.enter_context(patch.object(stamped_pipelines, "STRATEGY", strategy))
            else:
                for source in vars(shape.pipeline).values():
                    if isinstance(source, KafkaSource):
                        stack.enter_context(patch.object(source, "watermarks", strategy))
            if event_time.windows is not None:
                stack.enter_context(patch.object(window_pipelines, "SETTINGS", event_time.windows))
            for name, size in event_time.limits.items():
                stack.enter_context(patch(name, size))
            windows = event_time.windows
            if event_time.alarms or (windows is not None and windows.processing):
                stack.enter_context(patch("tests.simulator.threads.SKEW_MS_MAX", SKEW_MS_MAX))
        yield
