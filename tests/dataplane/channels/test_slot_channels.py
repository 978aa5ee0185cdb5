"""The channels of whole slots, from a plan: all arrives where the plan says, and only there."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.dataplane.channels.parts import Network, PlainColumn, no_loss
from tidegate.dataplane.channels.frames import control_frame, credit_frame
from tidegate.dataplane.channels.input_gate import InputChannel
from tidegate.dataplane.channels.slot_channels import SlotChannels
from tidegate.errors import ExchangeError, InternalError
from tidegate.graph.key_groups import key_group, subtask_of
from tidegate.graph.plan import plan
from tidegate.graph.stream_graph import Edge, StreamGraph
from tidegate.ids import Attempt, CheckpointId, VertexId
from tidegate.stream_elements import Barrier, EndOfInput, RecordBatch, StreamElement, TopicPartition

MAX_PARALLELISM = 128
TOTALS = VertexId("totals")
ORDERS = VertexId("orders")
PAYMENTS = VertexId("payments")
BARRIER = Barrier(CheckpointId(Attempt(1), 1))


def graph() -> StreamGraph:
    """Two sources by key into one step, whose results go forward into a sink of its own vertex."""
    made = StreamGraph("joined")
    for source in (ORDERS, PAYMENTS):
        made.add("source", (), location="x:1", uid=source, record_type=str)
    by_key = [
        Edge(
            node=source,
            partitioning="key",
            key=lambda value: value[:2],
            key_type=str,
            record_type=list[str],
        )
        for source in (ORDERS, PAYMENTS)
    ]
    made.add("keyed_process", tuple(by_key), location="x:2", uid=TOTALS)
    made.add("sink", (Edge(node=TOTALS), Edge(node=ORDERS)), location="x:3", uid="out")
    return made


class Slots:
    """All slots of a job on one network."""

    def __init__(self, parallelism: int, initial_credit: int = 8) -> None:
        self.network = Network()
        self.asked: list[object] = []
        exchanges = [self.network.exchange(ordinal) for ordinal in range(parallelism)]
        self.exchanges = exchanges
        logical = graph()
        self.plan = plan(logical, parallelism, MAX_PARALLELISM)
        self.slots = [
            SlotChannels(
                self.plan,
                logical,
                ordinal=ordinal,
                initial_credit=initial_credit,
                exchange=exchange,
                column_codec=self._column_codec,
                key_encoder=lambda _: str.encode,
            )
            for ordinal, exchange in enumerate(exchanges)
        ]
        addresses = [exchange.address for exchange in exchanges]
        for slot in self.slots:
            slot.connect(addresses, post=lambda action: action(), on_lost=no_loss)

    def _column_codec(self, of: object) -> PlainColumn:
        self.asked.append(of)
        return PlainColumn()


def records(source: str, ordinal: int, keys: list[int]) -> RecordBatch:
    values = [f"{key:02d}-{source}-{ordinal}-{number}" for number, key in enumerate(keys)]
    return RecordBatch(values, list(range(len(keys))), TopicPartition(source, ordinal))


@given(st.integers(1, 4), st.lists(st.integers(0, 50), max_size=100))
def test_every_record_reaches_the_owner_of_its_key_once_and_in_order(
    parallelism: int, keys: list[int]
) -> None:
    slots = Slots(parallelism)
    for ordinal, slot in enumerate(slots.slots):
        for source in (ORDERS, PAYMENTS):
            (record_writer,) = (
                record_writer
                for edge, record_writer in slot.record_writers(source)
                if edge.target == TOTALS
            )
            record_writer.emit(records(source, ordinal, keys))
            record_writer.emit_control(BARRIER)
            record_writer.emit_control(EndOfInput())
    arrived: dict[TopicPartition, list[str]] = defaultdict(list)
    controls = []
    while slots.network.deliver() or any(slot.gate(TOTALS).available() for slot in slots.slots):
        for ordinal, slot in enumerate(slots.slots):
            for channel, element in _drain(slot):
                if isinstance(element, RecordBatch):
                    assert element.topic_partition == TopicPartition(
                        channel.edge.source_node, channel.sender
                    )
                    assert {_owner(value[:2], parallelism) for value in element.values} == {ordinal}
                    arrived[element.topic_partition].extend(element.values)
                else:
                    controls.append(element)
    assert controls.count(EndOfInput()) == controls.count(BARRIER) == 2 * parallelism**2
    for ordinal in range(parallelism):
        for source in (ORDERS, PAYMENTS):
            sent = records(source, ordinal, keys).values
            got = arrived[TopicPartition(source, ordinal)]
            # Stable sorts: equal where each key's records kept their order.
            assert sorted(got, key=_key) == sorted(sent, key=_key)


def _drain(slot: SlotChannels) -> Iterator[tuple[InputChannel, StreamElement]]:
    gate = slot.gate(TOTALS)
    while (found := gate.next_element()) is not None:
        yield gate.channels[found[0]], found[1]


def _key(value: str) -> str:
    return value[:2]


def test_input_gates_and_record_writers_follow_the_plan() -> None:
    slots = Slots(3)
    slot = slots.slots[1]
    assert len(slot.gate(ORDERS)) == 0
    ways = [(channel.edge.source_node, channel.sender) for channel in slot.gate(TOTALS).channels]
    assert ways == [(s, n) for s in ("orders", "payments") for n in range(3)]
    out = slot.gate(VertexId("out"))
    assert [(c.edge.source_node, c.edge.partitioning, c.sender) for c in out.channels] == [
        ("totals", "forward", 1),
        ("orders", "forward", 1),
    ]
    assert [(edge.target_node, edge.partitioning) for edge, _ in slot.record_writers(ORDERS)] == [
        ("totals", "key"),
        ("out", "forward"),
    ]
    assert slot.record_writers(VertexId("out")) == []
    assert slots.exchanges[1].peers == {0: "memory:0", 2: "memory:2"}
    # Once for each edge that leaves the slot, with its record type; forward edges never do.
    assert slots.asked == [list[str]] * 2 * 3


def test_one_slot_needs_no_codec_and_no_peer() -> None:
    slots = Slots(1)
    assert slots.asked == []
    assert slots.exchanges[0].peers == {}


def test_blocked_channel_does_not_stop_other_channels() -> None:
    slots = Slots(2, initial_credit=2)
    gate = slots.slots[1].gate(TOTALS)
    mine = next(key for key in range(100) if _owner(f"{key:02d}", 2) == 1)
    blocked = next(c for c in gate.channels if c.edge.source_node == "orders" and c.sender == 0)
    gate.block(blocked.index)
    orders = next(o for e, o in slots.slots[0].record_writers(ORDERS) if e.partitioning == "key")
    payments = next(
        o for e, o in slots.slots[0].record_writers(PAYMENTS) if e.partitioning == "key"
    )
    emitted = flowed = 0
    for _ in range(50):
        if orders.writable():
            orders.emit(records("orders", 0, [mine] * 600))
            emitted += 1
        assert payments.writable()
        payments.emit(records("payments", 0, [mine] * 600))
        while slots.network.deliver():
            pass
        while (found := gate.next_element()) is not None:
            assert isinstance(found[1], RecordBatch)
            assert topic_of(found[1]) == "payments"
            flowed += len(found[1])
        slots.network.deliver()
        payments.flush()
    assert flowed >= 48 * 600
    assert emitted <= 5
    assert blocked.depth == 2
    gate.unblock_all()
    released = 0
    while slots.network.deliver() or gate.available():
        orders.flush()
        while (found := gate.next_element()) is not None:
            if isinstance(found[1], RecordBatch) and topic_of(found[1]) == "orders":
                released += len(found[1])
    assert released == emitted * 600


def _owner(key: str, parallelism: int) -> int:
    group = key_group(key.encode(), MAX_PARALLELISM)
    return subtask_of(group, parallelism, MAX_PARALLELISM)


@pytest.mark.parametrize("payload", [control_frame(BARRIER), credit_frame(1), b"\x02\x01\x00\x00"])
def test_frame_of_an_unknown_channel_is_refused(payload: bytes) -> None:
    slot = Slots(2).slots[0]
    forward = next(e.index for e, _ in slot.record_writers(ORDERS) if e.partitioning == "forward")
    for peer, number in ((1, forward), (1, 99), (5, 0), (0, 0)):
        with pytest.raises(ExchangeError, match="does not have"):
            slot.on_frames(peer, [(number, payload)])


def test_slot_refuses_credit_for_frames_that_were_never_sent() -> None:
    slot = Slots(2).slots[0]
    number = next(e.index for e, _ in slot.record_writers(ORDERS) if e.partitioning == "key")
    with pytest.raises(InternalError, match="credits"):
        slot.on_frames(1, [(number, credit_frame(1))])


@dataclass(frozen=True)
class Order:
    customer: str
    amount: Decimal


def test_records_of_a_declared_type_arrive_as_that_type() -> None:
    network = Network()
    logical = StreamGraph("typed")
    logical.add("source", (), location="x:1", uid=ORDERS, record_type=Order)
    edge = Edge(
        node=ORDERS,
        partitioning="key",
        key=lambda order: order.customer,
        key_type=str,
        record_type=Order,
    )
    logical.add("keyed_process", (edge,), location="x:2", uid=TOTALS)
    slots = [
        SlotChannels(
            plan(logical, 2, MAX_PARALLELISM),
            logical,
            ordinal=ordinal,
            initial_credit=2,
            exchange=network.exchange(ordinal),
        )
        for ordinal in range(2)
    ]
    for slot in slots:
        slot.connect(["memory:0", "memory:1"], post=lambda action: action(), on_lost=no_loss)
    sent = [Order(f"customer-{n}", Decimal(n) / 7) for n in range(50)]
    ((_, record_writer),) = slots[0].record_writers(ORDERS)
    record_writer.emit(RecordBatch(list(sent), list(range(50)), TopicPartition("orders", 0)))
    record_writer.flush()
    network.deliver()
    got = [
        value
        for slot in slots
        for _, element in _drain(slot)
        if isinstance(element, RecordBatch)
        for value in element.values
    ]
    assert sorted(got, key=lambda order: order.amount) == sent
    assert {type(value) for value in got} == {Order}


def topic_of(batch: RecordBatch) -> str:
    assert batch.topic_partition is not None
    return batch.topic_partition.topic
