"""A pipeline that stores every form of event time, and an input that shows what a restore lost.

The storage is taken in the steady part of the input. The parts, with their minutes of event time:

- Short visits begin, then long ones. Then one record in each partition is at minute 55, so all
  watermarks are at minute 45. The short visits are over, and the long ones are still open. So one
  checkpoint has stored the sessions of the short visits, and a later one has removed them.
- The steady records have minutes 45 to 50, so no watermark moves.
- Between more of these come records that have waited since minute 41 or 43. Some are late for the
  stored watermarks. If a restore lost the watermarks of steps, they would be in time.
- One record in each partition ends all windows that are open by then. It does not move the
  watermark of `with_timestamps`, so that windows behind that step stay open in the last checkpoint.

No result depends on the order in which partitions are read.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final, cast

import msgspec

from integration.agreement.inputs import Record, route_of_each_partition
from tidegate import (
    BoundedOutOfOrderness,
    Calendar,
    Context,
    Count,
    EventTimer,
    EventTimers,
    Fired,
    Json,
    KafkaSink,
    KafkaSource,
    KeyedProcess,
    Pipeline,
    Session,
    Sliding,
    Sum,
    Tumbling,
    ValueState,
    Window,
    WindowContext,
    WindowProcess,
)

MINUTE_MS: Final = 60_000
BEGIN_MS: Final = 1_760_054_400_000
STORED_WATERMARK_MS: Final = BEGIN_MS + 45 * MINUTE_MS - 1
"""The watermark of every partition and step when the storage is taken."""
ALARM_MS: Final = 60 * MINUTE_MS


class Visit(msgspec.Struct, frozen=True):
    """A page view. No two have the same name."""

    name: str
    user: str
    at_ms: int
    seen_at_ms: int | None
    """The time for `with_timestamps`."""
    counts: bool
    """Whether it belongs to a session."""
    cents: int


class Row(msgspec.Struct, frozen=True):
    """A result of a step for a key."""

    step: str
    key: str
    start_ms: int
    end_ms: int
    firing: str
    number: int
    values: list[int]
    names: list[str] = []


class Alarm(KeyedProcess[str, Visit, Row]):
    """One result for each user, an hour after the first visit, and one for each hundred cents."""

    visits = ValueState(int, default=0)
    first_ms = ValueState(int | None, default=None)
    alarm = EventTimer()
    reminders = EventTimers(str)

    def process(self, visit: Visit, _ctx: Context[str]) -> Iterable[Row]:
        self.visits.value += 1
        if self.first_ms.value is None or visit.at_ms < self.first_ms.value:
            self.first_ms.value = visit.at_ms
            self.alarm.set(visit.at_ms + ALARM_MS)
        self.reminders.set(str(visit.cents // 100), BEGIN_MS + ALARM_MS + visit.cents // 100)
        return ()

    def on_timer(self, fired: Fired, ctx: Context[str]) -> Iterable[Row]:
        name = "alarm" if fired.of(Alarm.alarm) else str(fired.name(Alarm.reminders))
        yield Row("alarm", ctx.key, fired.at_ms, fired.at_ms, name, 0, [self.visits.value])


class Names(WindowProcess[str, Visit, Row]):
    """The names of the visits of a window, and how often the window has fired."""

    firings = ValueState(int, default=0)

    def process(self, records: Sequence[Visit], ctx: WindowContext[str], /) -> Iterable[Row]:
        self.firings.value += 1
        names = sorted(visit.name for visit in records)
        yield _row("names", ctx.window, self.firings.value, names=names)


def _row(step: str, window: Window[Any], *values: int, names: Sequence[str] = ()) -> Row:
    return Row(
        step,
        window.key or "",
        window.start_ms,
        window.end_ms,
        window.firing,
        window.number,
        list(values),
        list(names),
    )


class EventTimes(Pipeline, name="event-times"):
    """Windows of each layout, timers, and a step with its own time."""

    visits = KafkaSource(
        "visits",
        value=Json(Visit),
        event_time=lambda visit: visit.at_ms,
        watermarks=BoundedOutOfOrderness("10 min"),
    )
    rows = KafkaSink("rows", value=Json(Row), record_key=lambda row: f"{row.step}/{row.key}")
    late = KafkaSink("late", value=Json(Visit), record_key=lambda visit: visit.name)
    own_late = KafkaSink("own-late", value=Json(Visit), record_key=lambda visit: visit.name)
    rejected = KafkaSink("rejected", value=Json(Visit), record_key=lambda visit: visit.name)

    def define(self) -> None:
        users = self.visits.key_by(lambda visit: visit.user)
        minutes = users.window(Tumbling("1 min"), allowed_lateness="2 min").aggregate(
            Count(),
            Sum(lambda visit: visit.cents),
            uid="minutes",
            into=lambda w, count, cents: _row("minutes", w, count, cents),
            returns=Row,
        )
        minutes.to(self.rows)
        minutes.late.to(self.late)
        users.window(Sliding("10 min", "2 min")).aggregate(
            Count(), uid="sliding", into=lambda w, count: _row("sliding", w, count), returns=Row
        ).to(self.rows)
        users.window(Tumbling("10 min")).process(Names(), uid="names").to(self.rows)
        users.process(Alarm(), uid="alarm").to(self.rows)
        self.visits.window_all(Calendar("day", zone="Europe/Berlin")).aggregate(
            Count(), uid="days", into=lambda w, count: _row("days", w, count), returns=Row
        ).to(self.rows)
        sessions = self.visits.filter(lambda visit: visit.counts).key_by(lambda visit: visit.user)
        sessions.window(Session("30 min")).aggregate(
            Count(), uid="sessions", into=lambda w, count: _row("sessions", w, count), returns=Row
        ).to(self.rows)
        self._with_own_time()

    def _with_own_time(self) -> None:
        seen = self.visits.with_timestamps(
            lambda visit: cast("int", visit.seen_at_ms),
            watermarks=BoundedOutOfOrderness("10 min"),
            uid="seen",
        )
        seen.rejected.to(self.rejected)
        own = seen.key_by(lambda visit: visit.user).window(Tumbling("1 min"))
        minutes = own.aggregate(
            Count(),
            uid="own-minutes",
            into=lambda w, count: _row("own-minutes", w, count),
            returns=Row,
        )
        minutes.to(self.rows)
        minutes.late.to(self.own_late)


# --- the input ----------------------------------------------------------------------------------

PARTS: Final = (("short", 10), ("long", 20), ("early", 2), ("ahead", 1), ("steady", 57))
"""Names of users, and the number of their records in each partition, up to the records that have
waited.
"""
STEADY_FROM: Final = 33
STEADY_TO: Final = 90
"""The storage is taken when each partition is read between these offsets."""
WAITED: Final = 30
PER_PARTITION: Final = STEADY_TO + WAITED + 1


def visits() -> Iterator[Record]:
    """Yield the input: one record of each partition after the other."""
    routes = route_of_each_partition("visit")
    for offset in range(PER_PARTITION):
        for partition, route in enumerate(routes):
            visit = _visit(offset, partition)
            yield Record(route, str(visit["user"]).encode(), json.dumps(visit).encode())


ALL_VISITS: Final = 3 * PER_PARTITION


def _visit(offset: int, partition: int) -> dict[str, object]:
    number = 3 * offset + partition
    user, seconds = _user_and_seconds(offset, number)
    at_ms = BEGIN_MS + seconds * 1_000
    own_ms = None if number % 50 == 40 else at_ms
    ends = offset == PER_PARTITION - 1
    if ends:
        at_ms += 2 * 24 * 60 * MINUTE_MS
    return {
        "name": f"visit-{number}",
        "user": user,
        "at_ms": at_ms,
        "seen_at_ms": own_ms,
        "counts": ends or user.startswith(("short", "long")),
        "cents": number * 37 % 400,
    }


def _user_and_seconds(offset: int, number: int) -> tuple[str, int]:
    """Return the user of a record, and its time in seconds since the beginning."""
    if offset >= STEADY_TO:
        return _waited_or_steady(number)
    name, left = _part_of(offset)
    if name == "short":
        return f"short-{number % 6}", left * 60
    if name == "long":
        return f"long-{number % 60}", 20 * 60 + left * 30
    if name == "early":
        return f"patient-{number % 6}", 43 * 60 + 30
    if name == "ahead":
        return "ahead", 55 * 60
    return _steady(number)


def _part_of(offset: int) -> tuple[str, int]:
    """Return the name of the part that has an offset, and the offset in it."""
    left = offset
    for name, count in PARTS:
        if left < count:
            return name, left
        left -= count
    raise IndexError(offset)


def _waited_or_steady(number: int) -> tuple[str, int]:
    index = number - 3 * STEADY_TO
    if index % 4 == 1:
        return f"waited-{index % 5}", 41 * 60 + index % 50
    if index % 4 == 3 and index < 24:  # the second visit of each patient user: one more result
        return f"patient-{index // 4}", 43 * 60 + 40
    return _steady(number)


def _steady(number: int) -> tuple[str, int]:
    return f"steady-{number % 12}", 45 * 60 + number * 7 % 299
