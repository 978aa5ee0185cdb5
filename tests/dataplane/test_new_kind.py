"""A new kind of operator needs the files that ARCHITECTURE.md lists, and no others.

The tests add two toys and run them in pipelines. Each has one entry in `OPERATOR_KINDS` and one in
`OPERATORS`. No other table and no other module learns of them.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
import pytest

from tests.dataplane.slots import RunningSlots
from tidegate import Json, KafkaSink, KafkaSource, Pipeline, build
from tidegate.api.functions import Context, KeyedProcess
from tidegate.api.state.state import ValueState
from tidegate.api.steps.streams import Stream
from tidegate.backfill.refusals import refuse_unknown_steps
from tidegate.config import Config
from tidegate.controlplane.journal.job_plan import state_metadata
from tidegate.dataplane.operator_registry import OPERATORS, ChainBuilder, OperatorEntry
from tidegate.dataplane.operators.event_time import ForwardsTime
from tidegate.dataplane.operators.keyed import KeyedOperator
from tidegate.dataplane.operators.stateless import Emit
from tidegate.errors import InternalError, RefusedError
from tidegate.graph.operator_kinds import OPERATOR_KINDS, OperatorKind
from tidegate.graph.plan import plan
from tidegate.graph.stream_graph import MAIN, Edge, Node, StreamGraph
from tidegate.stream_elements import RecordBatch
from tidegate.testing import PipelineTest


class Order(msgspec.Struct, frozen=True):
    customer: str
    cents: int


class Total(msgspec.Struct, frozen=True):
    customer: str
    cents: int


class EverySecond(ForwardsTime):
    """The operator of the toy kind `every_second`: it drops the other records."""

    opened = closed = 0

    def __init__(self, emit: Emit) -> None:
        self._emit, self._count = emit, 0

    def open(self) -> None:
        type(self).opened += 1

    def process(self, batch: RecordBatch) -> None:
        chosen = [i for i in range(len(batch)) if (self._count + i) % 2 == 0]
        self._count += len(batch)
        values, offsets = list(batch.values), list(batch.offsets)
        self._emit(
            RecordBatch(
                [values[i] for i in chosen], [offsets[i] for i in chosen], batch.topic_partition
            )
        )

    def close(self) -> None:
        type(self).closed += 1


def build_every_second(chain: ChainBuilder, node: Node) -> EverySecond:
    return EverySecond(chain.outputs(node, MAIN, maker=node))


class Twice(KeyedOperator):
    """The operator of the toy kind `keyed_twice`: it processes each batch twice."""

    def process(self, batch: RecordBatch) -> None:
        super().process(batch)
        super().process(batch)


def build_twice(chain: ChainBuilder, node: Node) -> Twice:
    return Twice(chain.pipeline, node, chain.state(node), chain.ports(node), now_ms=chain.now_ms)


class Sum(KeyedProcess[str, Order, Total]):
    cents = ValueState(int, default=0)

    def process(self, order: Order, ctx: Context[str]) -> Iterator[Total]:
        self.cents.value += order.cents
        yield Total(ctx.key, self.cents.value)


class Sampled(Pipeline, name="sampled"):
    orders = KafkaSource("orders", value=Json(Order))
    totals = KafkaSink("totals", value=Json(Total))

    def define(self) -> None:
        graph = self.orders.graph
        every = graph.add("every_second", self.orders.edges, location="toy.py:1", record_type=Order)
        edges = (Edge(node=every.id, record_type=Order),)
        stream: Stream[Order] = Stream(graph, edges, Order)
        stream.key_by(lambda order: order.customer).process(Sum(), uid="sum").to(self.totals)


class Doubled(Pipeline, name="doubled"):
    orders = KafkaSource("orders", value=Json(Order))
    totals = KafkaSink("totals", value=Json(Total))

    def define(self) -> None:
        self.orders.key_by(lambda order: order.customer).process(Sum(), uid="sum").to(self.totals)
        step = self.orders.graph.nodes["sum"]
        # The API of a real kind adds this node itself.
        self.orders.graph.nodes["sum"] = Node(
            **{name: getattr(step, name) for name in step.__slots__} | {"kind": "keyed_twice"}
        )


@pytest.fixture(autouse=True)
def _toys(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(OPERATOR_KINDS, "every_second", OperatorKind(runs_in_waves=False))
    monkeypatch.setitem(OPERATORS, "every_second", OperatorEntry(build=build_every_second))
    monkeypatch.setitem(OPERATOR_KINDS, "keyed_twice", OperatorKind(runs_in_waves=True, keyed=True))
    monkeypatch.setitem(OPERATORS, "keyed_twice", OperatorEntry(build=build_twice))
    monkeypatch.setattr(EverySecond, "opened", 0)
    monkeypatch.setattr(EverySecond, "closed", 0)


def orders(count: int) -> list[Order]:
    return [Order("ann", cents) for cents in range(1, count + 1)]


def test_stateless_operator_of_a_new_kind_runs_in_pipeline_test() -> None:
    with PipelineTest(Sampled) as test:
        test.source(Sampled.orders).push(*orders(5))
        assert [total.cents for total in test.sink(Sampled.totals).read()] == [1, 4, 9]
        assert (EverySecond.opened, EverySecond.closed) == (1, 0)
    assert EverySecond.closed == 1


def test_operator_of_a_new_kind_runs_in_slots_that_exchange_records() -> None:
    slots = RunningSlots(Sampled, 2)
    slots.push(0, "orders", orders(5))
    written = [msgspec.json.decode(value or b"")["cents"] for value in slots.written["totals"]]
    assert written == [1, 4, 9]


def test_stateful_operator_of_a_new_kind_is_part_of_checkpoints_and_restores() -> None:
    graph = build(Doubled)
    facts = state_metadata(graph, plan(graph, 1, 128), Config())
    assert [(step.uid, list(step.states)) for step in facts.steps] == [("sum", ["cents"])]
    chains = RunningSlots(Doubled, 1).chains()
    assert {uid for chain in chains for uid in chain.keyed} == {"sum"}
    with PipelineTest(Doubled) as test:
        test.source(Doubled.orders).push(Order("ann", 3))
        assert [total.cents for total in test.sink(Doubled.totals).read()] == [3, 6]


def test_a_backfill_refuses_a_new_kind_that_does_not_run_in_waves() -> None:
    refuse_unknown_steps(build(Doubled))
    with pytest.raises(RefusedError, match=r"'every_second-1' is a step of the kind"):
        refuse_unknown_steps(build(Sampled))


def test_stream_graph_refuses_a_step_of_an_unknown_kind() -> None:
    with pytest.raises(InternalError, match=r"no kind of step is named 'windowed'; the kinds are"):
        StreamGraph("toy").add("windowed", (), location="toy.py:1")


def test_chain_refuses_a_step_kind_that_has_no_operator(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delitem(OPERATORS, "every_second")
    with pytest.raises(
        InternalError, match=r"'every_second-1' is of the kind 'every_second', which has no"
    ):
        PipelineTest(Sampled)
