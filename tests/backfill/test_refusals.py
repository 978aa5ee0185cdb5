"""What a backfill refuses before it runs anything, and that everything else is known to run."""

from __future__ import annotations

from typing import Any, get_args

import msgspec
import pytest

from tests.graph.test_plan import graph
from tidegate import Json, KafkaSink, KafkaSource, Pipeline, build
from tidegate.backfill.refusals import (
    PARTITIONINGS,
    refuse_records_without_schema,
    refuse_unknown_steps,
    refuse_unread_sources,
)
from tidegate.errors import RefusedError
from tidegate.graph.operator_kinds import OPERATOR_KINDS, OperatorKind
from tidegate.graph.stream_graph import Edge, Exchange, StreamGraph


class Order(msgspec.Struct, frozen=True):
    customer: str


class TwoStarts(Pipeline, name="two-starts"):
    whole = KafkaSource("whole", value=Json(Order))
    newest = KafkaSource("newest", value=Json(Order), starting_offsets="latest")
    out = KafkaSink("out", value=Json(Order))

    def define(self) -> None:
        self.whole.union(self.newest).to(self.out)


def begins(*sources: str) -> frozenset[str]:
    return frozenset(sources)


def test_waves_run_every_kind_of_step_and_every_exchange() -> None:
    """A kind that does not run in waves needs a sentence in the guide, and its name here."""
    assert all(kind.runs_in_waves for kind in OPERATOR_KINDS.values())
    assert set(get_args(Exchange)) == PARTITIONINGS


def test_pipelines_of_known_steps_are_not_refused() -> None:
    refuse_unknown_steps(build(TwoStarts))
    refuse_unknown_steps(graph(a="", b="a*", c="b*+a*"))


def test_a_step_of_a_kind_that_waves_do_not_run_is_refused_by_its_uid(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(OPERATOR_KINDS, "window", OperatorKind(runs_in_waves=False))
    made = StreamGraph("test")
    made.add("source", (), location="job.py:3", uid="orders")
    made.add("window", (Edge(node="orders"),), location="job.py:7", uid="hourly")
    with pytest.raises(RefusedError, match=r"job.py:7: 'hourly' is a step of the kind 'window'"):
        refuse_unknown_steps(made)


def test_step_behind_an_unknown_exchange_is_refused_by_its_uid() -> None:
    made, broadcast = StreamGraph("test"), "broadcast"
    exchange: Any = broadcast
    made.add("source", (), location="job.py:3", uid="rules")
    made.add("map", (Edge(node="rules", partitioning=exchange),), location="job.py:8", uid="apply")
    with pytest.raises(RefusedError, match=r"job.py:8: 'apply' is reached by .* 'broadcast'"):
        refuse_unknown_steps(made)


class Plain:
    """A type without a schema."""


class Shared(Pipeline, name="shared"):
    """Two steps with one sink, and one of them does not say what it returns."""

    orders = KafkaSource("orders", value=Json(Order))
    out = KafkaSink("out", value=Json(Order))

    def define(self) -> None:
        self.orders.map(lambda order: Order(order.customer)).to(self.out)
        self.orders.map(lambda order: Order(order.customer), returns=Order).to(self.out)


def test_results_of_no_declared_type_are_refused_in_front_of_a_step_with_several_inputs() -> None:
    with pytest.raises(RefusedError, match=r"'map-1' is not declared. 'out' has several"):
        refuse_records_without_schema(build(Shared))


def test_results_without_a_schema_are_refused_in_front_of_a_step_with_several_inputs() -> None:
    made = StreamGraph("test")
    made.add("source", (), location="job.py:3", uid="a")
    made.add("source", (), location="job.py:4", uid="b")
    inputs = (Edge(node="a", record_type=Order), Edge(node="b", record_type=Plain))
    made.add("map", inputs, location="job.py:7", uid="c")
    with pytest.raises(RefusedError, match=r"job.py:4: .* results of 'b' is of no use here: Plain"):
        refuse_records_without_schema(made)


def test_a_known_type_and_a_single_input_are_not_refused() -> None:
    refuse_records_without_schema(build(TwoStarts))
    refuse_records_without_schema(graph(a="", b="a", c="b"))


def test_a_source_that_begins_at_the_end_of_its_topic_is_refused() -> None:
    with pytest.raises(RefusedError, match=r"source .newest. has starting_offsets=.latest.") as e:
        refuse_unread_sources(build(TwoStarts), begins("whole", "newest"))
    assert "nothing of topic 'newest'" in str(e.value)


def test_source_at_latest_is_accepted_if_it_continues_from_a_checkpoint() -> None:
    refuse_unread_sources(build(TwoStarts), begins("whole"))
