"""Sources and sinks of one name: a subclass may override them, and what would be lost is refused.

Each error names the file and the line of the declaration.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable

import pytest

from pipelines.order_totals import Order
from tidegate import Json, KafkaSink, KafkaSource, Pipeline, PipelineError, build
from tidegate.api.declarations.connector import Connector


class Copy(Pipeline, name=None):
    orders = KafkaSource("orders", value=Json(Order))
    copies = KafkaSink("copies", value=Json(Order))

    def define(self) -> None:
        self.orders.to(self.copies)


def targets(pipeline: type[Pipeline]) -> list[str]:
    nodes = build(pipeline).nodes.values()
    return [node.declaration.target for node in nodes if isinstance(node.declaration, Connector)]


def test_subclass_overrides_a_source_and_a_sink_for_the_define_of_its_base() -> None:
    class Other(Copy, name="other"):
        orders = KafkaSource("other-orders", value=Json(Order))
        copies = KafkaSink("other-copies", value=Json(Order))

    class Same(Copy, name="same"):
        pass

    assert targets(Other) == ["topic 'other-orders'", "topic 'other-copies'"]
    assert targets(Same) == ["topic 'orders'", "topic 'copies'"]


def test_subclass_may_extend_the_define_of_its_base() -> None:
    class More(Copy, name="more"):
        copies = KafkaSink("more-copies", value=Json(Order))

        def define(self) -> None:
            super().define()
            self.orders.filter(lambda order: order.amount > 0).to(self.copies)

    assert targets(More) == ["topic 'orders'", "topic 'more-copies'"]


def test_pipeline_may_have_abstract_methods() -> None:
    class Filtered(Copy, ABC, name=None):
        @abstractmethod
        def is_kept(self, order: Order) -> bool: ...

    class Paid(Filtered, name="paid"):
        def is_kept(self, order: Order) -> bool:
            return order.amount > 0

    assert targets(Paid) == ["topic 'orders'", "topic 'copies'"]


def assigned_twice() -> None:
    class Twice(Copy, name="twice"):
        copies = KafkaSink("first", value=Json(Order))
        copies = KafkaSink("second", value=Json(Order))  # noqa: PIE794


def hidden_by_a_method() -> None:
    class Hidden(Copy, name="hidden"):
        copies = KafkaSink("first", value=Json(Order))

        def copies(self) -> None:  # type: ignore[no-redef]  # noqa: F811
            pass


def two_names() -> None:
    class TwoNames(Copy, name="two"):
        results = Copy.copies


def sink_of_the_base() -> None:
    class Own(Copy, name="own"):
        copies = KafkaSink("own", value=Json(Order))

        def define(self) -> None:
            self.orders.to(Copy.copies)

    build(Own)


def source_of_the_base() -> None:
    class Own(Copy, name="own"):
        orders = KafkaSource("own", value=Json(Order))

        def define(self) -> None:
            super().orders.to(self.copies)

    build(Own)


def source_of_the_base_beside_its_own() -> None:
    """The second source would be the first one again, so each of its records would count twice."""

    class Own(Copy, name="own"):
        orders = KafkaSource("own", value=Json(Order))

        def define(self) -> None:
            self.orders.union(super().orders).to(self.copies)

    build(Own)


def sink_of_another_pipeline() -> None:
    class Other(Pipeline, name="other"):
        orders = KafkaSource("orders", value=Json(Order))

        def define(self) -> None:
            self.orders.to(Copy.copies)

    build(Other)


@pytest.mark.parametrize(
    ("mistake", "words"),
    [
        (assigned_twice, "Twice drops the declaration for topic 'first'"),
        (hidden_by_a_method, "Hidden drops the declaration for topic 'first'"),
        (two_names, "TwoNames.results is the same object as 'copies'"),
        (sink_of_the_base, "uses the declaration for topic 'copies', which Own.copies at "),
        (source_of_the_base, "uses the declaration for topic 'orders', which Own.orders at "),
        (source_of_the_base_beside_its_own, "uid 'orders' is already used by the step at "),
        (sink_of_another_pipeline, "topic 'copies', which is not an attribute of Other. Declare"),
    ],
    ids=lambda value: value.__name__ if callable(value) else "",
)
def test_declaration_that_would_be_lost_is_refused_with_its_place(
    mistake: Callable[[], None], words: str
) -> None:
    with pytest.raises(PipelineError) as caught:
        mistake()
    text = str(caught.value)
    assert words in text
    assert text.startswith("tests/api/test_same_names.py:")


def test_error_of_a_name_that_is_assigned_twice_has_the_line_that_is_dropped() -> None:
    with pytest.raises(PipelineError) as caught:
        assigned_twice()
    line = assigned_twice.__code__.co_firstlineno + 2
    assert str(caught.value).startswith(f"tests/api/test_same_names.py:{line}: ")


def test_declaration_that_a_function_makes_is_an_attribute_as_every_other() -> None:
    def source(topic: str) -> KafkaSource[Order]:
        return KafkaSource(topic, value=Json(Order))

    class Made(Copy, name="made"):
        orders = source("made-orders")

    assert targets(Made) == ["topic 'made-orders'", "topic 'copies'"]
