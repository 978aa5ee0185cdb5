"""Each step owns the records that it gets, wherever the steps run.

Goal: a step that changes a record in place changes nothing that another step gets. Method: one
pipeline whose steps change, keep and repeat records, for each kind of record class. It runs at
parallelism 1, at parallelism 2 (where half of the records cross an exchange) and in a PipelineTest,
and the three outputs must be equal. Then single cases, and what must cost nothing.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import Any, TypedDict

import msgspec
import pydantic
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.dataplane.slots import RunningSlots
from tidegate import (
    Context,
    Json,
    KafkaSink,
    KafkaSource,
    KeyedProcess,
    Pipeline,
    Process,
    ProcessContext,
    SideOutput,
    Utf8,
    ValueState,
)
from tidegate.api.records.copying import copy_value, copy_values, immutable
from tidegate.dataplane.operators.fan_out import Target, fan_out
from tidegate.errors import UserCodeError
from tidegate.graph.stream_graph import UNKNOWN
from tidegate.stream_elements import RecordBatch, TopicPartition
from tidegate.testing import PipelineTest


@dataclasses.dataclass
class PlainOrder:
    customer: str
    number: int
    tags: list[str]


@dataclasses.dataclass(slots=True)
class SlottedOrder:
    customer: str
    number: int
    tags: list[str]


class StructOrder(msgspec.Struct):
    customer: str
    number: int
    tags: list[str]


class FrozenOrder(msgspec.Struct, frozen=True):
    """Frozen, but its list is not."""

    customer: str
    number: int
    tags: list[str]


class ModelOrder(pydantic.BaseModel):
    customer: str
    number: int
    tags: list[str]


class DictOrder(TypedDict):
    customer: str
    number: int
    tags: list[str]


KINDS: list[Any] = [PlainOrder, SlottedOrder, StructOrder, FrozenOrder, ModelOrder, DictOrder]


def tags_of(order: Any) -> list[str]:
    tags: list[str] = order["tags"] if isinstance(order, dict) else order.tags
    return tags


def customer_of(order: Any) -> str:
    found: str = order["customer"] if isinstance(order, dict) else order.customer
    return found


def marked(order: Any) -> Any:
    tags_of(order).append("marked")
    return order


def pipeline_of(kind: Any) -> type[Pipeline]:
    """Steps that change, keep and repeat records of a class."""

    def twice(order: Any) -> Any:
        return [order, order]

    class Keeps(KeyedProcess[str, kind, kind]):
        last = ValueState(kind | None, default=None)

        def process(self, order: Any, ctx: Context[str]) -> Iterable[Any]:
            del ctx
            if self.last.value is not None:
                tags_of(order).append(f"after {len(tags_of(self.last.value))}")
            self.last.value = order
            yield order
            tags_of(order).append("kept")

    class Splits(Process[kind, kind]):
        copies = SideOutput(kind)

        def process(self, order: Any, ctx: ProcessContext) -> Iterable[Any]:
            ctx.output(self.copies, order)
            ctx.output(self.copies, order)
            return (order,)

    class Shared(Pipeline, name="shared"):
        orders = KafkaSource("orders", value=Json(kind))
        changed = KafkaSink("changed", value=Json(kind))
        plain = KafkaSink("plain", value=Json(kind))
        taken = KafkaSink("taken", value=Json(kind), record_key=lambda order: tags_of(order).pop())
        repeated = KafkaSink("repeated", value=Json(kind))
        main = KafkaSink("main", value=Json(kind))
        side = KafkaSink("side", value=Json(kind))

        def define(self) -> None:
            self.orders.to(self.taken)
            self.orders.map(marked, returns=kind).to(self.changed)
            self.orders.to(self.plain)
            repeated = self.orders.flat_map(twice, returns=kind)
            repeated.key_by(customer_of).process(Keeps(), uid="repeats").to(self.repeated)
            split = self.orders.process(Splits())
            split.map(marked, returns=kind).to(self.main)
            side = split.side_output(Splits.copies)
            side.key_by(customer_of).process(Keeps(), uid="sides").to(self.side)

    return Shared


PIPELINES = {kind: pipeline_of(kind) for kind in KINDS}
SINKS = ("changed", "plain", "taken", "repeated", "main", "side")

batches = st.lists(
    st.lists(st.tuples(st.sampled_from("abcdef"), st.integers(0, 9)), min_size=1, max_size=5),
    min_size=1,
    max_size=4,
)


def by_customer(written: Iterable[bytes | None]) -> list[bytes]:
    """Only records of one key have an order."""
    values = [value for value in written if value is not None]
    return sorted(values, key=lambda value: str(msgspec.json.decode(value)["customer"]))


def in_slots(kind: Any, parallelism: int, given: list[list[tuple[str, int]]]) -> dict[str, Any]:
    slots = RunningSlots(PIPELINES[kind], parallelism)
    for number, orders in enumerate(given):
        values = [kind(customer=c, number=n, tags=["new"]) for c, n in orders]
        slots.push(0, "orders", values, first=100 * number)
    return {name: by_customer(slots.written[name]) for name in SINKS}


def in_a_test(kind: Any, given: list[list[tuple[str, int]]]) -> dict[str, Any]:
    pipeline: Any = PIPELINES[kind]
    with PipelineTest(pipeline) as test:
        for orders in given:
            values = [kind(customer=c, number=n, tags=["new"]) for c, n in orders]
            test.source(pipeline.orders).push(*values)
        encode = Json(kind).encoder()
        return {
            name: by_customer(map(encode, test.sink(getattr(pipeline, name)).read()))
            for name in SINKS
        }


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=25, deadline=None)
@given(given=batches)
def test_output_is_equal_at_parallelism_1_and_2_and_in_pipeline_test(
    kind: Any, given: list[list[tuple[str, int]]]
) -> None:
    alone = in_slots(kind, 1, given)
    assert in_slots(kind, 2, given) == alone
    assert in_a_test(kind, given) == alone
    assert (
        alone["plain"]
        == alone["taken"]
        == by_customer(
            msgspec.json.encode({"customer": c, "number": n, "tags": ["new"]})
            for orders in given
            for c, n in orders
        )
    )


def test_branch_that_changes_records_in_place_does_not_change_other_branches() -> None:
    slots = RunningSlots(PIPELINES[PlainOrder], 1)
    slots.push(0, "orders", [PlainOrder("a", 1, ["new"])])
    (plain,) = slots.written["plain"]
    assert msgspec.json.decode(plain or b"") == {"customer": "a", "number": 1, "tags": ["new"]}


class Counts(KeyedProcess[str, PlainOrder, PlainOrder]):
    """Keeps each record in a state that cannot change, and gives it on."""

    seen = ValueState(int, default=0)

    def process(self, order: PlainOrder, ctx: Context[str]) -> Iterable[PlainOrder]:
        del ctx
        self.seen.value += 1
        order.tags.append(str(self.seen.value))
        return (order,)


TABLE = {"a": PlainOrder("a", 1, [])}


class Looked(Pipeline, name="looked"):
    customers = KafkaSource("customers", value=Utf8())
    counted = KafkaSink("counted", value=Json(PlainOrder))

    def define(self) -> None:
        found = self.customers.map(TABLE.__getitem__, returns=PlainOrder)
        found.key_by(lambda order: order.customer).process(Counts(), uid="c").to(self.counted)


@pytest.mark.parametrize("parallelism", [1, 2])
def test_object_held_by_a_map_is_not_changed_by_a_step_after_a_shuffle(parallelism: int) -> None:
    TABLE["a"].tags.clear()
    slots = RunningSlots(Looked, parallelism)
    for ordinal in range(parallelism):
        slots.push(ordinal, "customers", ["a"])
        slots.push(ordinal, "customers", ["a"], first=1)
    tags = [msgspec.json.decode(value or b"")["tags"] for value in slots.written["counted"]]
    assert tags == [[str(n)] for n in range(1, 2 * parallelism + 1)]
    assert TABLE["a"].tags == []


# --- what must cost nothing -----------------------------------------------------------------------


class Frozen(msgspec.Struct, frozen=True):
    number: int
    names: tuple[str, ...] = ()


def refused(batch: object) -> RecordBatch:
    raise AssertionError(f"copied: {batch}")


def batch(*values: object) -> RecordBatch:
    return RecordBatch(list(values), list(range(len(values))), TopicPartition("orders", 0))


def test_records_that_cannot_change_are_never_copied() -> None:
    got: list[RecordBatch] = []
    targets = [Target(got.append, reads_only=False)] * 3
    sent = batch(Frozen(1))
    fan_out(targets, Frozen, shared=True, copies=refused)(sent)
    assert len(got) == 3
    assert all(each is sent for each in got)


def test_single_reader_of_a_source_gets_the_batch_without_a_copy() -> None:
    got: list[RecordBatch] = []
    emit = got.append
    only = [Target(emit, reads_only=False)]
    assert fan_out(only, PlainOrder, shared=False, copies=refused) is emit


def test_fan_out_calls_the_read_only_sink_first_and_copies_nothing() -> None:
    order: list[str] = []
    targets = [
        Target(lambda _: order.append("map"), reads_only=False),
        Target(lambda _: order.append("sink"), reads_only=True),
    ]
    fan_out(targets, PlainOrder, shared=False, copies=refused)(batch(PlainOrder("a", 1, [])))
    assert order == ["sink", "map"]


class FrozenCounts(KeyedProcess[str, Frozen, Frozen]):
    seen = ValueState(int, default=0)

    def process(self, record: Frozen, ctx: Context[str]) -> Iterable[Frozen]:
        del ctx
        return (record,)


class Untyped(Pipeline, name="untyped"):
    """Only the keyed step says what the map gives."""

    words = KafkaSource("words", value=Utf8())
    out = KafkaSink("out", value=Json(Frozen))

    def define(self) -> None:
        records: Any = self.words.map(lambda word: Frozen(len(word)))
        keyed = records.key_by(lambda record: str(record.number), returns=str)
        keyed.process(FrozenCounts(), uid="counts").to(self.out)


def test_frozen_type_declared_by_the_only_reader_avoids_copies(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("tidegate.dataplane.chain.copy_values", refused)
    slots = RunningSlots(Untyped, 1)
    slots.push(0, "words", ["a"])
    assert slots.written["out"] == [b'{"number":1,"names":[]}']


# --- copies ---------------------------------------------------------------------------------------


class Outer(msgspec.Struct, frozen=True):
    inner: PlainOrder
    union: StructOrder | None
    anything: Any
    by_name: dict[str, list[int]]
    pair: tuple[list[int], int]


@pytest.mark.parametrize(
    "value",
    [
        *(kind(customer="a", number=1, tags=["x"]) for kind in KINDS),
        Outer(PlainOrder("a", 1, ["x"]), StructOrder("a", 1, ["x"]), [{1}], {"a": [1]}, ([1], 2)),
        [[1], [2]],
        {"a": {"b": [1]}},
        (1, [2]),
        {1, 2},
    ],
    ids=lambda value: type(value).__name__,
)
def test_copied_value_is_equal_and_shares_no_mutable_object(value: Any) -> None:
    copied = copy_value(value)
    assert copied == value
    assert type(copied) is type(value)
    assert not set(_changeable(copied)) & set(_changeable(value))


def _changeable(value: Any) -> Iterable[int]:
    """The ids of all objects inside that can change in place."""
    if isinstance(value, (list, dict, set)) or (
        hasattr(value, "customer") and not isinstance(value, FrozenOrder)
    ):
        yield id(value)
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, (list, tuple)):
        for item in value:
            yield from _changeable(item)
    for name in ("tags", "inner", "union", "anything", "by_name", "pair"):
        if hasattr(value, name):
            yield from _changeable(getattr(value, name))


def test_dataclass_attributes_that_are_not_init_fields_are_copied() -> None:
    @dataclasses.dataclass
    class Noted:
        number: int
        notes: list[str] = dataclasses.field(init=False, default_factory=list)

    noted = Noted(1)
    noted.notes.append("x")
    copied = copy_value(noted)
    copied.notes.append("y")
    assert noted.notes == ["x"]
    assert copied.notes == ["x", "y"]


@dataclasses.dataclass(frozen=True)
class FrozenNoted:
    notes: list[str] = dataclasses.field(init=False, default_factory=list)


class FrozenOpen(pydantic.BaseModel, frozen=True, extra="allow"):
    number: int = 0


class FrozenPrivate(pydantic.BaseModel, frozen=True):
    _notes: list[str] = pydantic.PrivateAttr(default_factory=list)


class FrozenLoose(msgspec.Struct, frozen=True, dict=True):
    number: int = 0


class Loose(msgspec.Struct, dict=True):
    number: int = 0


def open_model() -> FrozenOpen:
    return FrozenOpen.model_validate({"notes": []})


def loose(kind: type[Any]) -> Any:
    made = kind()
    made.__dict__["notes"] = []
    return made


@pytest.mark.parametrize(
    ("value", "name"),
    [
        (FrozenNoted(), "notes"),
        (open_model(), "notes"),
        (FrozenPrivate(), "_notes"),
        (loose(FrozenLoose), "notes"),
        (loose(Loose), "notes"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_parts_that_are_no_fields_are_copied_also_of_a_frozen_record(value: Any, name: str) -> None:
    assert not immutable(type(value))
    copied = copy_value(value)
    getattr(copied, name).append("y")
    assert (getattr(value, name), getattr(copied, name)) == ([], ["y"])


def test_copy_values_returns_the_same_list_for_immutable_values() -> None:
    for values in (["a", "b"], [1, 2.5, None], [Frozen(1)]):
        assert copy_values(values) is values


@pytest.mark.parametrize(
    ("of", "said"), [(Frozen, True), (str, True), (PlainOrder, False), (UNKNOWN, False)]
)
def test_immutable_tells_which_types_can_change(of: object, said: bool) -> None:
    assert immutable(of) is said


class Generators(Pipeline, name="generators"):
    words = KafkaSource("words", value=Utf8())
    first = KafkaSink("first", value=Utf8())
    second = KafkaSink("second", value=Utf8())

    def define(self) -> None:
        letters = self.words.map(lambda word: [word] if word == "a" else (each for each in word))
        letters.map("".join, returns=str).to(self.first)
        letters.map("".join, returns=str).to(self.second)


def test_a_failed_copy_names_step_class_record_and_remedy() -> None:
    with pytest.raises(UserCodeError) as raised:
        RunningSlots(Generators, 1).push(0, "words", ["a", "bc"], first=7)
    said = str(raised.value)
    for part in ("step 'map-1'", "test_record_sharing.py:", "a generator that", "words-0", "8"):
        assert part in said
    assert "frozen" in said
