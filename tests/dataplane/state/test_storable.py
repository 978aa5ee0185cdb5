"""Values that no checkpoint can store: found before they are written, by state and key.

A value that would come back as another one is not stored either.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any, cast

import msgspec
import pytest

from tests.api.record_kinds import Rule, Word
from tests.dataplane.state.job import UID, declare, taken
from tests.dataplane.test_operators import Collected, batch, step
from tidegate.api.functions import Context, KeyedProcess
from tidegate.api.state.state import ListState, MapState, State, ValueState
from tidegate.api.state.wire import StateCodec
from tidegate.dataplane.operators.keyed import Images, KeyedOperator
from tidegate.dataplane.refusals import Refusals
from tidegate.dataplane.state.backend import KeyedStateBackend
from tidegate.drivers.memory.store import MemoryStore
from tidegate.errors import PipelineError, StateValueError, is_recoverable
from tidegate.graph.stream_graph import MAIN, Edge
from tidegate.stream_elements import MIN_MS

BIG = 2**70


class Order(msgspec.Struct):
    name: str
    amounts: list[int]


@pytest.fixture
def store(tmp_path: Path) -> Iterator[MemoryStore]:
    store = MemoryStore(tmp_path / "store")
    yield store
    store.close()


def keyed(store: MemoryStore, **states: State) -> KeyedStateBackend:
    made = KeyedStateBackend(UID, declare(**states), str, 8, range(8), store, 100)
    cast("Any", made).watermark_ms = MIN_MS  # as the state of a step has it
    return made


def assign(cell: Any, value: Any) -> None:
    cell.value = value


def append(cell: Any, value: Any) -> None:
    cell.append(value)


def put(cell: Any, pair: Any) -> None:
    cell[pair[0]] = pair[1]


def value_of(of: Any, default: Any) -> State:
    return ValueState(of, default=default)


ORDER_OF: Any = Order  # which takes anything
ORDERS = ValueState(Order, factory=lambda: Order("", []))
WRONG: list[tuple[Any, Any, Any, str]] = [
    (lambda: value_of(int, 0), assign, "5", "it is a str, not an int"),
    (lambda: value_of(int, 0), assign, True, "it is a bool, not an int"),
    (lambda: value_of(int, 0), assign, 1.5, "it is a float, not an int"),
    (lambda: value_of(str, ""), assign, "\ud800", "UnicodeEncodeError: "),
    (lambda: value_of(Decimal, Decimal(0)), assign, "five", "it is a str, not a Decimal"),
    (lambda: value_of(Decimal, Decimal(0)), assign, 7, "it is an int, not a Decimal"),
    (lambda: value_of(str, ""), assign, Word.A, "it is a Word, and only a str itself is kept"),
    (lambda: ValueState(list[int], factory=list), assign, (1, 2), "it is a tuple, not a list[int]"),
    (lambda: ValueState(dict[str, int], factory=dict), assign, Counter("a"), "it is a Counter, "),
    (
        lambda: value_of(datetime, datetime(2026, 1, 1, tzinfo=UTC)),
        assign,
        datetime(2026, 1, 1, tzinfo=Rule()),
        "it cannot be kept: the time zone <",
    ),
    (lambda: value_of(Any, None), assign, [Word.A], "declare its type"),
    (
        lambda: value_of(date, date(2026, 1, 1)),
        assign,
        datetime(2026, 1, 1, 5, tzinfo=UTC),
        "a datetime",
    ),
    (lambda: ORDERS, assign, ORDER_OF("a", ["1"]), ".amounts[0] is a str, not an int"),
    (lambda: ORDERS, assign, None, "it is a NoneType, not an Order"),
    (lambda: ListState(int), append, "5", "[0] is a str, not an int"),
    (lambda: ListState(Order), append, ORDER_OF(5, []), "[0].name is an int, not a str"),
    (lambda: MapState(int, str), put, (1, 5), "entry 1: [1] is an int, not a str"),
    (lambda: MapState(str, int), put, ("b", "5"), "entry 'b': [1] is a str, not an int"),
    (lambda: MapState(int, int), put, (BIG, 1), "is not an int of 64 bits"),
]


@pytest.mark.parametrize(("state", "change", "value", "what"), WRONG)
def test_flush_error_names_state_and_key_of_a_value_that_cannot_be_stored(
    store: MemoryStore, state: Any, change: Any, value: Any, what: str
) -> None:
    backend = keyed(store, found=state())
    good, bad = backend.rows(["a", "b"])
    change(bad, value)
    with pytest.raises(StateValueError) as caught:
        backend.flush()
    said = str(caught.value)
    assert said.startswith("State 'found' of step 'running-total' cannot be stored for key 'b': ")
    assert what in said
    assert list(store.scan(b"", b"\xff")) == []
    assert not is_recoverable(caught.value)
    assert good is not bad


@pytest.mark.parametrize(("state", "change", "value", "what"), WRONG)
def test_unstorable_state_value_is_found_right_after_the_call_of_its_record(
    store: MemoryStore, state: Any, change: Any, value: Any, what: str
) -> None:
    declared = state()
    backend = keyed(store, other=value_of(int, 0), found=declared)
    images = Images(backend.rows(["a"]), (False, not declared.types[-1].immutable))
    next(images)
    assert backend.why_not(images.row, images.images) == ""
    change(images.row[1], value)
    reason = backend.why_not(images.row, images.images)
    assert reason.startswith("state 'found' cannot be stored: ")
    assert what in reason
    images.undo()
    backend.flush()


def test_snapshot_error_names_state_and_key_of_a_value_that_cannot_be_stored(
    store: MemoryStore,
) -> None:
    backend = keyed(store, total=value_of(int, 0), name=value_of(str, ""))
    rows = backend.rows(["a", "b"])
    rows[1][1].value = 5
    with pytest.raises(StateValueError, match=r"State 'name' .* for key 'b': it is an int"):
        taken(backend)


@pytest.mark.parametrize(
    ("state", "change", "value", "read"),
    [
        (lambda: value_of(float, 0.0), assign, 5, 5),
        (lambda: value_of(int, 0), assign, -BIG, -BIG),
        (lambda: ORDERS, assign, Order("a", [BIG, 1]), Order("a", [BIG, 1])),
    ],
)
def test_value_is_restored_as_it_was_stored(
    store: MemoryStore, state: Any, change: Any, value: Any, read: Any
) -> None:
    backend = keyed(store, found=state())
    (cell,) = backend.rows(["a"])
    change(cell, value)
    backend.flush()
    again = KeyedStateBackend(
        UID, declare(found=state()), str, 8, range(8), store, 100, schemas=backend.schemas
    )
    (cell,) = again.rows(["a"])
    assert cell.value == read
    assert type(cell.value) is type(read)


def test_big_ints_in_list_and_map_states_are_restored(store: MemoryStore) -> None:
    states = {"many": ListState(int), "by": MapState(str, int)}
    backend = keyed(store, **states)
    many, by = backend.rows(["a"])[0]
    many.append(BIG)
    by["x"] = -BIG
    backend.flush()
    again = KeyedStateBackend(UID, declare(**states), str, 8, range(8), store, 100, backend.schemas)
    many, by = again.rows(["a"])[0]
    assert (list(many), by["x"]) == ([BIG], -BIG)


def test_lookup_of_a_map_key_that_cannot_be_encoded_names_the_state(store: MemoryStore) -> None:
    (cell,) = keyed(store, by=MapState(int, int)).rows(["a"])
    with pytest.raises(StateValueError, match="State 'by' cannot have the entry 1180"):
        cell.get(BIG)


def test_a_default_that_cannot_be_stored_is_refused(store: MemoryStore) -> None:
    wrong: Any = lambda: [1, "a"]  # noqa: E731
    with pytest.raises(PipelineError, match=r"default that cannot be stored: \[1\] is a str"):
        keyed(store, many=ValueState(list[int], factory=wrong))


def test_memory_error_during_encoding_is_not_reported_as_a_wrong_value(
    store: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    backend = keyed(store, total=value_of(int, 0))
    (cell,) = backend.rows(["a"])
    cell.value = 5

    def refused(_: object) -> bytes:
        raise MemoryError

    accessor: Any = backend._accessors[0]
    monkeypatch.setattr(accessor, "_encode", refused)
    with pytest.raises(MemoryError):
        backend.flush()
    monkeypatch.setattr(accessor._storable, "_codec", StateCodec(refused, lambda _: 0, ""))
    with pytest.raises(MemoryError):
        accessor.why_not(5)


def test_old_items_of_a_list_state_are_not_checked_again(store: MemoryStore) -> None:
    (cell,) = keyed(store, many=ListState(int)).rows(["a"])
    cell.append(1)
    image = cell.image(mutable=False)
    cell.append(2)
    assert cell.changed_since(image, mutable=False) == [[2]]
    cell.replace([3])
    assert cell.changed_since(image, mutable=False) == [[3]]


def test_old_entries_of_a_map_state_are_not_checked_again(store: MemoryStore) -> None:
    (cell,) = keyed(store, by=MapState(int, str)).rows(["a"])
    cell[1], cell[2], cell[3] = "a", "b", "c"
    image = cell.image(mutable=False)
    cell[2] = "d"
    del cell[3]
    assert cell.changed_since(image, mutable=False) == [(2, "d")]


class Asks(KeyedProcess[str, int, int]):
    by = MapState(int, int)

    def process(self, number: int, ctx: Context[str]) -> Iterable[int]:
        self.by[number] = self.by.get(number, 0) + 1
        yield number


def asking(store: MemoryStore, policy: Any) -> tuple[KeyedOperator, Collected]:
    """The operator over the state that jobs have, and what it emits."""
    out, state = Collected(), cast("Any", keyed(store, by=Asks.by))
    inputs = (Edge(node="numbers", partitioning="key", key=lambda _: "a"),)
    node = step("keyed_process", Asks(), uid="asks", inputs=inputs)
    refusals = Refusals("asks", policy)
    return KeyedOperator("P", node, state, {MAIN: out.append}, refusals, now_ms=lambda: 0), out


def test_error_names_the_record_that_looks_up_a_map_key_that_cannot_be_encoded(
    store: MemoryStore,
) -> None:
    operator, _ = asking(store, "fail")
    with pytest.raises(StateValueError) as caught:
        operator.process(batch(1, BIG, 2))
    said = str(caught.value)
    assert said.startswith("P: step uid 'asks' (")
    assert "State 'by' cannot have the entry 1180" in said
    assert "The record came from orders-3 at offset 101. " in said


def test_policy_refuses_a_record_that_looks_up_a_map_key_that_cannot_be_encoded(
    store: MemoryStore,
) -> None:
    operator, out = asking(store, "skip")
    operator.process(batch(1, BIG, 2))
    assert [value for each in out for value in each.values] == [1, 2]
