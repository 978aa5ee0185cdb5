"""Mistakes in the declaration of windows: each is one PipelineError with file, line and remedy."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import msgspec
import pytest

import tidegate
from tidegate import (
    AfterWatermark,
    Aggregate,
    BoundedOutOfOrderness,
    Calendar,
    Collect,
    Count,
    Every,
    EveryCount,
    Global,
    Json,
    KafkaSink,
    KafkaSource,
    Mean,
    Min,
    Pipeline,
    PipelineError,
    Repeatedly,
    Session,
    SideOutput,
    Sliding,
    Sum,
    TopN,
    Tumbling,
    ValueState,
    WindowContext,
    WindowProcess,
    build,
)
from tidegate.api.windows.windows import Assigner


class Sale(msgspec.Struct, frozen=True):
    shop: str
    amount: int
    weight: float
    at_ms: int
    paid: bool
    clerk: str | None = None


class Shelf:
    """A class without a schema."""


class Everything(Aggregate[Sale, Shelf, int]):
    def create(self) -> Shelf:
        return Shelf()

    def add(self, accumulator: Shelf, record: Sale, /) -> Shelf:
        return accumulator

    def merge(self, accumulator: Shelf, other: Shelf, /) -> Shelf:
        return accumulator

    def result(self, accumulator: Shelf, /) -> int:
        return 0


class Incomplete(Aggregate[Sale, int, int]):
    def create(self) -> int:
        return 0


class Untyped(Aggregate[Any, Any, Any]):
    def create(self) -> Any:
        return 0

    def add(self, accumulator: Any, record: Any, /) -> Any:
        return accumulator

    def merge(self, accumulator: Any, other: Any, /) -> Any:
        return accumulator

    def result(self, accumulator: Any, /) -> Any:
        return accumulator


class OwnWindows(Assigner[Sale]):
    def windows_of(self, record: Sale, timestamp_ms: int) -> Iterable[tuple[int, int]]:
        return ()


class Seen(WindowProcess[str, Sale, int]):
    seen = ValueState(int, default=0)

    def process(self, records: Any, ctx: WindowContext[str]) -> Iterable[int]:
        return ()


class LateOutput(WindowProcess[str, Sale, int]):
    late = SideOutput(Sale)

    def process(self, records: Any, ctx: WindowContext[str]) -> Iterable[int]:
        return ()


def windows(assigner: Any = None, **options: Any) -> Callable[[Any], Any]:
    return lambda self: self.by_shop().window(
        Tumbling("1 h") if assigner is None else assigner(), **options
    )


def aggregated(*aggregates: Callable[[], Any], into: Any = len) -> Callable[[Any], Any]:
    return lambda self: windows()(self).aggregate(
        *[one() for one in aggregates], into=into, uid="w"
    )


def no_watermarks(self: Any) -> Any:
    by_shop = self.plain.key_by(lambda sale: sale.shop)
    return by_shop.window(Tumbling("1 h")).aggregate(Count(), into=lambda w, n: n, uid="w")


# As users without a type checker call them.
calendar: Any = lambda unit: Calendar(unit, zone="UTC")  # noqa: E731
repeated: Any = Repeatedly
summed: Any = Sum
top: Any = lambda by: TopN(2, by)  # noqa: E731

CASES: dict[str, tuple[Callable[[Any], Any], str]] = {
    "no watermarks": (no_watermarks, "source 'plain' (tests/api/test_wrong_windows.py:"),
    "no watermarks, remedy": (no_watermarks, "Give it watermarks=BoundedOutOfOrderness('10 s')"),
    "a duration in words": (windows(lambda: Tumbling("1 hour")), "'1 hour' is not a duration"),
    "no size": (windows(lambda: Tumbling("0 s")), "must be at least 1 ms"),
    "lateness": (windows(allowed_lateness="soon"), "allowed_lateness: 'soon' is not a duration"),
    "slides beyond its size": (windows(lambda: Sliding("1 s", "2 s")), "would be in none"),
    "too many panes": (windows(lambda: Sliding("30 d", "1001 ms")), "100,000 are allowed"),
    "gap of 0": (windows(lambda: Session("0 s")), "must be at least 1 ms"),
    "unknown zone": (windows(lambda: Calendar("day", zone="Berlin")), "such as 'Europe/Berlin'"),
    "zone outside": (windows(lambda: Calendar("day", zone="../UTC")), "such as 'Europe/Berlin'"),
    "unknown unit": (windows(lambda: calendar("decade")), "unit='decade'"),
    "class for an assigner": (windows(lambda: Tumbling), "Tumbling is not an assigner"),
    "own assigner": (windows(OwnWindows), "an assigner of your own, which is not supported"),
    "global without a trigger": (windows(Global), "needs trigger=Repeatedly(...)"),
    "global that waits": (
        windows(Global, trigger=AfterWatermark()),
        "needs trigger=Repeatedly(...)",
    ),
    "trigger of sliding windows": (
        windows(lambda: Sliding("2 s", "1 s"), trigger=AfterWatermark(early=EveryCount(1))),
        "Other triggers of sliding windows are not supported",
    ),
    "no trigger": (windows(trigger=EveryCount(3)), "is not a trigger, such as AfterWatermark()"),
    "event time of the clock": (
        windows(
            lambda: Tumbling("1 s", time="processing"),
            trigger=Repeatedly(Every("1 s", time="event")),
        ),
        "never fires",
    ),
    "late by the clock": (
        windows(lambda: Tumbling("1 s", time="processing"), allowed_lateness="1 s"),
        "allowed_lateness has no meaning there",
    ),
    "count of nothing": (lambda _: EveryCount(0), "EveryCount(0): give a whole number"),
    "no repeat": (lambda _: repeated("1 s"), "'1 s' is not EveryCount(...) or Every(...)"),
    "no aggregate": (aggregated(), "aggregate takes 1 to 5 aggregates"),
    "class for an aggregate": (aggregated(lambda: Count), "Count is not an aggregate"),
    "unknown type": (
        aggregated(lambda: Sum(lambda sale: sale.amount * 2), into=lambda w, n: n),
        "say it with Sum(..., returns=Type)",
    ),
    "sum of bools": (
        aggregated(lambda: Sum(lambda sale: sale.paid), into=lambda w, n: n),
        "the sum of bools is an int",
    ),
    "sum of texts": (
        aggregated(lambda: Sum(lambda sale: sale.shop), into=lambda w, n: n),
        "no sum that is the same in any order",
    ),
    "least of None": (
        aggregated(lambda: Min(lambda sale: sale.clerk), into=lambda w, n: n),
        "None and other types cannot be compared",
    ),
    "mean of texts": (
        aggregated(lambda: Mean(lambda sale: sale.shop), into=lambda w, n: n),
        "the mean of floats and ints is a float",
    ),
    "no function": (aggregated(lambda: summed("amount"), into=lambda w, n: n), "takes a function"),
    "no limit": (lambda _: Collect(at_most=0), "give a whole number of at least 1"),
    "top by a name": (lambda _: top("amount"), "takes a function from a record"),
    "accumulator without a schema": (
        aggregated(Everything, into=lambda w, n: n),
        "the accumulator of Everything cannot be stored",
    ),
    "aggregate without merge": (
        aggregated(Incomplete, into=lambda w, n: n),
        "Incomplete has no method add()",
    ),
    "aggregate without types": (
        aggregated(Untyped, into=lambda w, n: n),
        "does not say the type of its accumulator",
    ),
    "into takes too little": (aggregated(Count, into=lambda w: w), "takes the window and 1 result"),
    "into is no function": (aggregated(Count, into=3), "is not a function of the window"),
    "state of sessions": (
        lambda self: windows(lambda: Session("1 s"))(self).process(Seen(), uid="w"),
        "declares state 'seen', and windows of the kind Session",
    ),
    "side output late": (
        lambda self: windows()(self).process(LateOutput(), uid="w"),
        "LateOutput.late is a side output",
    ),
    "class for a function": (
        lambda self: windows()(self).process(Seen, uid="w"),
        "an object of a class derived from WindowProcess",
    ),
    "evictor": (
        lambda self: windows()(self).process(Seen(), uid="w", keep=3),
        "keep= is not supported",
    ),
    "changes": (
        lambda self: windows()(self).with_retractions(),
        "with_retractions is not supported",
    ),
    "reduce with a name": (
        lambda self: windows()(self).reduce("max", uid="w"),
        "reduce takes a function of two records",
    ),
}


def declared(define: Callable[[Any], Any]) -> Callable[[], object]:
    class Sales(Pipeline, name="sales"):
        sales = KafkaSource(
            "sales",
            value=Json(Sale),
            event_time=lambda sale: sale.at_ms,
            watermarks=BoundedOutOfOrderness("1 s"),
        )
        plain = KafkaSource("plain", value=Json(Sale))
        out = KafkaSink("out", value=Json(int))

        def by_shop(self) -> Any:
            return self.sales.key_by(lambda sale: sale.shop)

        def define(self) -> None:
            define(self)

    return lambda: build(Sales)


@pytest.mark.parametrize("case", CASES)
def test_mistake_in_windows_is_refused_with_file_line_and_remedy(case: str) -> None:
    define, words = CASES[case]
    with pytest.raises(PipelineError) as caught:
        declared(define)()
    assert words in str(caught.value)
    assert str(caught.value).startswith("tests/api/test_wrong_windows.py:")
    assert "\n" not in str(caught.value), "one paragraph"


@pytest.mark.parametrize("name", ["Distinct", "ApproxDistinct", "Quantiles", "KeepLast", "Trigger"])
def test_names_that_are_not_supported_say_so(name: str) -> None:
    with pytest.raises(PipelineError, match=rf"{name} is not supported\. "):
        getattr(tidegate, name)
