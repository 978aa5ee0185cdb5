"""Mistakes in `with_timestamps`: each is a PipelineError when the pipeline is built."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from pipelines.order_totals import CustomerTotal, Order
from tidegate import (
    Count,
    HeaderTime,
    Json,
    KafkaSink,
    KafkaSource,
    Monotonous,
    Pipeline,
    PipelineError,
    Tumbling,
    build,
)


class Base(Pipeline, name=None):
    orders = KafkaSource("orders", value=Json(Order))
    totals = KafkaSink("totals", value=Json(CustomerTotal))


def stamped(event_time: Any, watermarks: Any, uid: Any = "stamp") -> type[Pipeline]:
    class Stamps(Base, name="stamps"):
        def define(self) -> None:
            times = self.orders.with_timestamps(event_time, watermarks=watermarks, uid=uid)
            times.map(to_total).to(self.totals)

    return Stamps


def stamped_without_uid() -> type[Pipeline]:
    class Stamps(Base, name="stamps"):
        def define(self) -> None:
            orders: Any = self.orders
            orders.with_timestamps(len, watermarks=Monotonous())

    return Stamps


def timed_rejections() -> type[Pipeline]:
    class Rejections(Pipeline, name="rejections"):
        orders = KafkaSource("orders", value=Json(Order), watermarks=Monotonous())
        good = KafkaSink("good", value=Json(Order), timestamps="event_time")
        bad = KafkaSink("bad", value=Json(Order), timestamps="event_time")

        def define(self) -> None:
            times = self.orders.with_timestamps(
                lambda order: 1, watermarks=Monotonous(), uid="stamp"
            )
            times.to(self.good)
            times.rejected.to(self.bad)

    return Rejections


def windowed_rejections() -> type[Pipeline]:
    class Windows(Pipeline, name="windows"):
        orders = KafkaSource("orders", value=Json(Order), watermarks=Monotonous())
        counts = KafkaSink("counts", value=Json(int))

        def define(self) -> None:
            stamped = self.orders.with_timestamps(
                lambda order: 1, watermarks=Monotonous(), uid="stamp"
            )
            windows = stamped.rejected.key_by(lambda order: "all", returns=str).window(
                Tumbling("1 h")
            )
            windows.aggregate(Count(), uid="counts", into=lambda w, count: count).to(self.counts)

    return Windows


def to_total(order: Order) -> CustomerTotal:
    raise NotImplementedError


CASES: dict[str, tuple[Callable[[], object], str]] = {
    "header of a step": (
        lambda: build(stamped(HeaderTime("at"), Monotonous())),
        "HeaderTime is for event_time= of a source",
    ),
    "event time of a step that is no function": (
        lambda: build(stamped("at_ms", Monotonous())),
        "with_timestamps: event_time='at_ms' must be a function from a record to its time",
    ),
    "watermarks of a step that are no strategy": (
        lambda: build(stamped(len, "10 s")),
        "with_timestamps: watermarks='10 s' must be a strategy",
    ),
    "max_ahead of a step": (
        lambda: build(stamped(len, Monotonous(max_ahead="1 h"))),
        "max_ahead compares event_time with Kafka's timestamp, and the records of a step have none",
    ),
    "time of a step without a name": (
        lambda: build(stamped(len, Monotonous(), None)),
        "with_timestamps: uid=None must be a name",
    ),
    "time of a step without uid=": (
        lambda: build(stamped_without_uid()),
        "A step with state needs a name of its own",
    ),
    "windows of rejected records": (
        lambda: build(windowed_rejections()),
        "windows need event time, and the rejected records of step 'stamp'",
    ),
    "event times of rejected records": (
        lambda: build(timed_rejections()),
        "the records of 'stamp' have no event time",
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_mistake_is_a_pipeline_error_with_the_place_and_the_remedy(case: str) -> None:
    run, words = CASES[case]
    with pytest.raises(PipelineError) as caught:
        run()
    assert words in str(caught.value)
    assert "test_wrong_timestamps.py:" in str(caught.value)
