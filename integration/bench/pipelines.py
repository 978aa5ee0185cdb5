"""Defines the workloads of the benchmark as pipelines: pass-through, transform, sums by key."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from integration.bench.data import THRESHOLD, WINDOW_MS, Click, ClickWithFee
from integration.bench.window_feed import Visit, VisitCount
from tidegate import (
    BoundedOutOfOrderness,
    Context,
    Count,
    Json,
    KafkaSink,
    KafkaSource,
    KeyedProcess,
    Monotonous,
    Pipeline,
    Raw,
    Session,
    Sum,
    Tumbling,
    ValueState,
)

KEY = 20
"""Length of the shuffle key of undecoded records. The key is the production time of a record."""


class UserTotal(msgspec.Struct, frozen=True, gc=False):
    """Number and sum of the payments of a user so far."""

    user: str
    count: int
    total: float


class Total(msgspec.Struct, gc=False):
    """State of the running total. It changes in place."""

    count: int = 0
    total: float = 0.0


class WindowTotal(msgspec.Struct, frozen=True, gc=False):
    """Sum of the payments of a user in one window."""

    user: str
    start: int
    total: float


class SessionTotal(msgspec.Struct, frozen=True, gc=False):
    """Sum of the payments of a user in one session."""

    user: str
    start: int
    end: int
    total: float


class Window(msgspec.Struct, gc=False):
    """State of the open window of a user. It changes in place."""

    start: int = -1
    total: float = 0.0


def with_fee(click: ClickWithFee) -> ClickWithFee:
    """Set the fee of a record that has no other reader, as the loop does."""
    click.fee = round(click.amount * 0.02, 2)
    return click


class RunningTotal(KeyedProcess[str, Click, UserTotal]):
    """A step that emits the count and the sum of each user."""

    paid = ValueState(Total, factory=Total)

    def process(self, click: Click, ctx: Context[str]) -> Iterable[UserTotal]:
        paid = self.paid.value
        paid.count += 1
        paid.total += click.amount
        return (UserTotal(ctx.key, paid.count, paid.total),)


class WindowedTotal(KeyedProcess[str, Click, WindowTotal]):
    """A step that sums per user and window. The user's first record after a window emits it."""

    window = ValueState(Window, factory=Window)

    def process(self, click: Click, ctx: Context[str]) -> Iterable[WindowTotal]:
        window = self.window.value
        start = click.ts - click.ts % WINDOW_MS
        if window.start == start:
            window.total += click.amount
            return ()
        ended = WindowTotal(ctx.key, window.start, window.total)
        window.start, window.total = start, click.amount
        return (ended,) if ended.start >= 0 else ()


class Tumbled(Pipeline, name="bench-tumbling"):
    """A pipeline that sums per user and tumbling window of event time."""

    clicks = KafkaSource(
        "bench-in",
        value=Json(Click),
        event_time=lambda click: click.ts,
        watermarks=BoundedOutOfOrderness("1 s"),
    )
    sums = KafkaSink("bench-tumbling", value=Json(WindowTotal), record_key=lambda w: w.user)

    def define(self) -> None:
        by_user = self.clicks.key_by(lambda click: click.user)
        by_user.window(Tumbling("10 s")).aggregate(
            Sum(lambda click: click.amount),
            into=lambda w, total: WindowTotal(w.key, w.start_ms, total),
            uid="sum-by-window",
        ).to(self.sums)


class Sessions(Pipeline, name="bench-sessions"):
    """A pipeline that sums per user and session of event time."""

    clicks = KafkaSource(
        "bench-in",
        value=Json(Click),
        event_time=lambda click: click.ts,
        watermarks=BoundedOutOfOrderness("1 s"),
    )
    sessions = KafkaSink("bench-sessions", value=Json(SessionTotal), record_key=lambda s: s.user)

    def define(self) -> None:
        by_user = self.clicks.key_by(lambda click: click.user)
        by_user.window(Session("10 s")).aggregate(
            Sum(lambda click: click.amount),
            into=lambda w, total: SessionTotal(w.key, w.start_ms, w.end_ms, total),
            uid="sum-by-session",
        ).to(self.sessions)


class Passthrough(Pipeline, name="bench-passthrough"):
    """A pipeline that writes the same bytes that it reads."""

    clicks = KafkaSource("bench-in", value=Raw())
    copies = KafkaSink("bench-passthrough", value=Raw())

    def define(self) -> None:
        self.clicks.to(self.copies)


class CopiesAtLeastOnce(Pipeline, name="bench-at-least-once"):
    """A pipeline that writes the same bytes that it reads, visible at once."""

    clicks = KafkaSource("bench-in", value=Raw())
    copies = KafkaSink("bench-passthrough", value=Raw(), guarantee="at_least_once")

    def define(self) -> None:
        self.clicks.to(self.copies)


class Passing(KeyedProcess[bytes, bytes, bytes]):
    """A step that emits each record unchanged."""

    def process(self, value: bytes, ctx: Context[bytes]) -> Iterable[bytes]:
        del ctx
        return (value,)


class ShuffledAtLeastOnce(Pipeline, name="bench-shuffled"):
    """A pipeline that writes the same bytes, and shuffles records by their first bytes."""

    clicks = KafkaSource("bench-in", value=Raw())
    copies = KafkaSink("bench-passthrough", value=Raw(), guarantee="at_least_once")

    def define(self) -> None:
        (
            self.clicks.key_by(lambda value: value[:KEY])
            .process(Passing(), uid="passing")
            .to(self.copies)
        )


class CountedVisits(Pipeline, name="bench-counted-visits"):
    """A pipeline that counts per user and window. The results are visible at once."""

    visits = KafkaSource(
        "bench-visits",
        value=Json(Visit),
        event_time=lambda visit: visit.at_ms,
        watermarks=Monotonous(),
    )
    counts = KafkaSink("bench-counts", value=Json(VisitCount), guarantee="at_least_once")

    def define(self) -> None:
        by_user = self.visits.key_by(lambda visit: visit.user)
        by_user.window(Tumbling("1 s")).aggregate(
            Count(),
            into=lambda w, count: VisitCount(w.key, w.start_ms, count),
            uid="count-by-window",
        ).to(self.counts)


class Transform(Pipeline, name="bench-transform"):
    """A pipeline that decodes, drops half of the records, adds a field and encodes."""

    clicks = KafkaSource("bench-in", value=Json(ClickWithFee))
    paying = KafkaSink("bench-transform", value=Json(ClickWithFee))

    def define(self) -> None:
        self.clicks.filter(lambda click: click.amount > THRESHOLD).map(with_fee).to(self.paying)


class Totals(Pipeline, name="bench-total"):
    """The running total per user in durable state. Each record emits one update."""

    clicks = KafkaSource("bench-in", value=Json(Click))
    totals = KafkaSink("bench-total", value=Json(UserTotal), record_key=lambda total: total.user)

    def define(self) -> None:
        (
            self.clicks.key_by(lambda click: click.user)
            .process(RunningTotal(), uid="running-total")
            .to(self.totals)
        )


class Windows(Pipeline, name="bench-windows"):
    """The sums per user and window, in a plain process function."""

    clicks = KafkaSource("bench-in", value=Json(Click))
    windows = KafkaSink(
        "bench-windows", value=Json(WindowTotal), record_key=lambda total: total.user
    )

    def define(self) -> None:
        (
            self.clicks.key_by(lambda click: click.user)
            .process(WindowedTotal(), uid="windowed-total")
            .to(self.windows)
        )


class TransformAtLeastOnce(Pipeline, name="bench-transform-loose"):
    """The transform without transactions."""

    clicks = KafkaSource("bench-in", value=Json(ClickWithFee))
    paying = KafkaSink("bench-transform", value=Json(ClickWithFee), guarantee="at_least_once")

    def define(self) -> None:
        self.clicks.filter(lambda click: click.amount > THRESHOLD).map(with_fee).to(self.paying)


class TotalsAtLeastOnce(Pipeline, name="bench-total-loose"):
    """The running total per user without transactions."""

    clicks = KafkaSource("bench-in", value=Json(Click))
    totals = KafkaSink(
        "bench-total",
        value=Json(UserTotal),
        record_key=lambda total: total.user,
        guarantee="at_least_once",
    )

    def define(self) -> None:
        (
            self.clicks.key_by(lambda click: click.user)
            .process(RunningTotal(), uid="running-total")
            .to(self.totals)
        )
