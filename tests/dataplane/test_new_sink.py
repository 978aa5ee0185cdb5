"""A new sink needs the files that ARCHITECTURE.md lists, and no others.

`file_sink.py` is a toy: a declaration, a writer and one entry in `SINK_WRITERS`. No other table and
no other module learns of it. `integration/connectors/test_new_sink.py` runs it on a real broker,
with kills.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, cast

import pytest

from tests.dataplane.file_sink import Copies, FileSink, FileSinkWriter, Order
from tidegate import Json, KafkaSink, KafkaSource, Pipeline, build
from tidegate.api.connectors.kafka_names import kafka_nodes
from tidegate.dataplane.refusals import Refusals
from tidegate.dataplane.sinks.registry import SINK_WRITERS, make_sink_writer
from tidegate.dataplane.subtask_context import SubtaskContext
from tidegate.errors import InternalError, PipelineError, UserCodeError
from tidegate.graph.stream_graph import Node
from tidegate.testing import PipelineTest

WRITERS = cast("dict[Any, Any]", SINK_WRITERS)


class Both(Pipeline, name="both"):
    """Two chains end at one file sink, and one of them at a Kafka sink too."""

    orders = KafkaSource("orders", value=Json(Order))
    more = KafkaSource("more", value=Json(Order))
    lines = FileSink("lines", value=Json(Order))
    copies = KafkaSink("copies", value=Json(Order))

    def define(self) -> None:
        self.orders.to(self.lines)
        self.more.to(self.lines)
        self.orders.to(self.copies)


class WrongType(Pipeline, name="wrong-type"):
    orders = KafkaSource("orders", value=Json(Order))
    lines = FileSink("lines", value=Json(Order))

    def define(self) -> None:
        amounts = self.orders.map(lambda order: order.amount, returns=int)
        amounts.to(self.lines)  # type: ignore[arg-type]


class WrongField(Pipeline, name="wrong-field"):
    orders = KafkaSource("orders", value=Json(Order))
    lines = FileSink("lines", value=Json(Order, validate="all"))

    def define(self) -> None:
        self.orders.map(unchecked, returns=Order).to(self.lines)


class AtNobody(Pipeline, name="at-nobody"):
    orders = KafkaSource("orders", value=Json(Order))
    lines = FileSink("lines", value=Json(Order))
    not_used = FileSink("others", value=Json(Order))

    def define(self) -> None:
        self.orders.to(self.lines)


class Promises(Pipeline, name="promises"):
    orders = KafkaSource("orders", value=Json(Order))
    lines = FileSink("lines", value=Json(Order))
    cast("Any", lines).guarantee = "exactly_once"

    def define(self) -> None:
        self.orders.to(self.lines)


def unchecked(order: Order) -> Order:
    return Order(order.customer, cast("int", "ten"))


def sink_node(pipeline: type[Pipeline], name: str) -> Node:
    return build(pipeline).nodes[name]


def test_new_sink_class_receives_the_records_of_a_pipeline_test() -> None:
    with PipelineTest(Copies) as test:
        test.source(Copies.orders).push(Order("ann", 2), Order("bob", 3))
        assert test.sink(Copies.lines).read() == [Order("ann", 4), Order("bob", 6)]


def test_two_chains_write_to_one_new_sink_next_to_a_kafka_sink() -> None:
    with PipelineTest(Both) as test:
        test.source(Both.orders).push(Order("ann", 1))
        test.source(Both.more).push(Order("bob", 2))
        assert test.sink(Both.lines).read() == [Order("ann", 1), Order("bob", 2)]
        assert test.sink(Both.copies).read() == [Order("ann", 1)]


def test_a_stream_of_another_type_is_refused_with_the_target_of_the_new_sink() -> None:
    with pytest.raises(PipelineError, match="the sink for folder 'lines' takes records of Order"):
        build(WrongType)


def test_sink_without_transactions_is_refused_if_it_promises_exactly_once() -> None:
    refused = r"sink 'lines' has guarantee='exactly_once', but a FileSink has no transactions\. Use"
    with pytest.raises(PipelineError, match=refused):
        build(Promises)


def test_malformed_name_of_a_transaction_system_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FileSink, "transaction_system", "My-System")
    with pytest.raises(PipelineError, match="'My-System' of FileSink must be 1 to 32 lower-case"):
        build(Copies)


def test_a_new_sink_that_no_chain_ends_at_is_refused() -> None:
    with pytest.raises(PipelineError, match=r"AtNobody\.not_used is declared and not used"):
        build(AtNobody)


def test_a_wrong_field_does_not_reach_a_new_sink_that_checks_all_fields() -> None:
    with PipelineTest(WrongField) as test, pytest.raises(UserCodeError, match="amount"):
        test.source(WrongField.orders).push(Order("ann", 1))


def test_the_kafka_nodes_are_the_nodes_with_a_topic() -> None:
    assert [node.id for node in kafka_nodes(build(Both))] == ["orders", "more", "copies"]


def test_sink_class_without_a_writers_entry_uses_the_writer_of_its_base_class() -> None:
    class Special(FileSink[Any]):
        pass

    made: list[object] = []

    def make(sink: FileSink[Any], *others: object) -> FileSinkWriter:
        made.extend((sink, *others))
        return cast("FileSinkWriter", None)

    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(WRITERS, FileSink, make)
        special = Special("lines", value=Json(Order))
        node = replace(sink_node(Copies, "lines"), declaration=special)
        make_sink_writer(node, cast("SubtaskContext", None), Refusals("lines"))
    assert made[:2] == [special, "lines"]


def test_a_sink_whose_class_has_no_writer_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(WRITERS, FileSink)
    node = sink_node(Copies, "lines")
    with pytest.raises(InternalError, match=r"sink 'lines' \(.*\): no writer .* for FileSink"):
        make_sink_writer(node, cast("SubtaskContext", None), Refusals("lines"))
