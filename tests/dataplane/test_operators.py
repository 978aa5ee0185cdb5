"""Steps as they run: fused loops, process and keyed functions, and what a failing one says."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import pytest

from tidegate.api.functions import Context, KeyedProcess, Process, ProcessContext, SideOutput
from tidegate.api.state.state import Cell, MapState, ValueState
from tidegate.dataplane.operators.keyed import KeyedOperator
from tidegate.dataplane.operators.process import ProcessOperator
from tidegate.dataplane.operators.stateless import FusedSteps
from tidegate.dataplane.time.timer_index import TimerIndex
from tidegate.errors import BadRecordError, UserCodeError
from tidegate.graph.stream_graph import MAIN, Edge, Node
from tidegate.protocol.subtask_snapshot import KeyedSnapshot
from tidegate.stream_elements import MIN_MS, RecordBatch, TopicPartition

TOPIC_PARTITION = TopicPartition("orders", 3)


def batch(*values: object, keys: list[bytes | None] | None = None) -> RecordBatch:
    return RecordBatch(list(values), list(range(100, 100 + len(values))), TOPIC_PARTITION, keys)


def step(kind: str, function: object, number: int = 1, **fields: Any) -> Node:
    return Node(
        id=f"{kind}-{number}",
        kind=kind,
        inputs=fields.pop("inputs", ()),
        uid=fields.pop("uid", None),
        options={},
        location=f"pipeline.py:{number}",
        function=function,
    )


class Collected(list[RecordBatch]):
    def values(self) -> list[object]:
        return [value for each in self for value in each.values]

    def offsets(self) -> list[int]:
        return [offset for each in self for offset in each.offsets]


def test_fused_steps_keep_offsets_and_source_keys_parallel_to_the_values() -> None:
    out = Collected()
    steps = [
        step("filter", lambda v: v % 2 == 0),
        step("map", lambda v: v * 10, 2),
        step("flat_map", lambda v: [v] * (v // 20), 3),
    ]
    FusedSteps("P", steps, out.append).process(
        batch(1, 2, 3, 4, 5, keys=[b"a", b"b", None, b"d", b"e"])
    )
    assert out.values() == [20, 40, 40]
    assert out.offsets() == [101, 103, 103]
    assert out[0].keys == [b"b", b"d", b"d"]
    assert out[0].topic_partition == TOPIC_PARTITION


def doubled(value: int) -> int:
    return value * 2


def is_paid(value: int) -> bool:
    return value > 2


class Parts:
    def __call__(self, value: int) -> list[int]:
        return [value, value + 1]


FUSED = """\
def run(remaining, offsets, keys, out_values, out_offsets, out_keys):
    add_value, add_offset = out_values.append, out_offsets.append
    u2 = None
    if keys is None:
        for v, o in zip(remaining, offsets):
            v0 = f0(v)  # map-1: doubled, pipeline.py:1
            if not f1(v0): continue  # filter-1: is_paid, pipeline.py:1
            r2 = f2(v0)  # flat_map-1: Parts, pipeline.py:1
            if r2.__class__ is not u2: u2 = g2(r2)
            for v2 in r2:
                add_value(v2)
                add_offset(o)
    else:
        add_key = out_keys.append
        for v, o, k in zip(remaining, offsets, keys):
            v0 = f0(v)  # map-1: doubled, pipeline.py:1
            if not f1(v0): continue  # filter-1: is_paid, pipeline.py:1
            r2 = f2(v0)  # flat_map-1: Parts, pipeline.py:1
            if r2.__class__ is not u2: u2 = g2(r2)
            for v2 in r2:
                add_value(v2)
                add_offset(o)
                add_key(k)
"""


def test_source_of_a_fused_loop_is_readable() -> None:
    out = Collected()
    steps = [step("map", doubled), step("filter", is_paid), step("flat_map", Parts())]
    fused = FusedSteps("P", steps, out.append)
    assert fused.source == FUSED
    fused.process(batch(1, 2, 3))
    assert out.values() == [4, 5, 6, 7]


@pytest.mark.parametrize("name", ["a\nraise SystemExit", "a\x0c", "a\x00", "a\udc80", "a\r", "ü"])
def test_function_name_with_special_characters_stays_a_comment_in_the_fused_loop(name: str) -> None:
    def function(value: int) -> int:
        return value + 1

    function.__qualname__ = name
    out = Collected()
    fused = FusedSteps("P", [step("map", function)], out.append)
    assert len(fused.source.splitlines()) == FUSED.count("\n") - 9
    fused.process(batch(1))
    assert out.values() == [2]


def test_batch_that_a_filter_empties_is_not_emitted() -> None:
    out = Collected()
    FusedSteps("P", [step("filter", lambda _: False)], out.append).process(batch(1, 2))
    assert out == []


def test_a_filter_behind_a_flat_map_drops_single_results() -> None:
    out = Collected()
    steps = [step("flat_map", range), step("filter", lambda v: v != 1, 2)]
    FusedSteps("P", steps, out.append).process(batch(3, 2))
    assert out.values() == [0, 2, 0]


@pytest.mark.parametrize("failing", [0, 1, 2])
def test_error_of_a_fused_step_names_step_source_line_and_record(failing: int) -> None:
    def maybe(number: int) -> Callable[[int], Any]:
        def function(value: int) -> Any:
            if number == failing and value == 12:
                message = "no twelve"
                raise ValueError(message)
            return [value] if number == 2 else value

        return function

    kinds = ["map", "filter", "flat_map"]
    steps = [step(kind, maybe(i), i) for i, kind in enumerate(kinds)]
    with pytest.raises(UserCodeError) as caught:
        FusedSteps("Totals", steps, Collected().append).process(batch(10, 11, 12, 13))
    message = str(caught.value)
    assert f"step '{kinds[failing]}-{failing}' (pipeline.py:{failing})" in message
    assert "orders-3 at offset 102" in message
    assert "ValueError: no twelve" in message
    assert isinstance(caught.value.__cause__, ValueError)


def test_errors_of_tidegate_pass_through_unchanged() -> None:
    def refuse(_: object) -> object:
        raise BadRecordError("known")

    with pytest.raises(BadRecordError, match=r"^known$"):
        FusedSteps("P", [step("map", refuse)], Collected().append).process(batch(1))


class Split(Process[int, str]):
    odd = SideOutput(int)
    never_read = SideOutput(int)

    def process(self, record: int, ctx: ProcessContext) -> Iterable[str]:
        if record % 2:
            ctx.output(self.odd, record)
            ctx.output(self.never_read, record)
        else:
            yield str(record)
            yield str(record)


def test_results_and_side_outputs_carry_the_offset_of_their_record() -> None:
    main, odd = Collected(), Collected()
    operator = ProcessOperator(
        "P", step("process", Split()), {MAIN: main.append, "odd": odd.append}, now_ms=no_clock
    )
    operator.process(batch(1, 2, 3))
    assert (main.values(), main.offsets()) == (["2", "2"], [101, 101])
    assert (odd.values(), odd.offsets()) == ([1, 3], [100, 102])


def test_a_side_output_of_another_function_is_refused() -> None:
    class Other(Process[int, int]):
        def process(self, record: int, ctx: ProcessContext) -> Iterable[int]:
            ctx.output(Split.odd, record)
            return ()

    operator = ProcessOperator(
        "P", step("process", Other()), {MAIN: Collected().append}, now_ms=no_clock
    )
    with pytest.raises(UserCodeError, match="Side output 'odd' is not declared"):
        operator.process(batch(1))


def test_process_that_returns_a_bare_str_is_refused_when_results_are_str() -> None:
    class Bare(Process[int, str]):
        def process(self, record: int, ctx: ProcessContext) -> Iterable[str]:
            return "abc"

    operator = ProcessOperator(
        "P", step("process", Bare()), {MAIN: Collected().append}, now_ms=no_clock
    )
    with pytest.raises(UserCodeError, match="returned a str, not an iterable of results"):
        operator.process(batch(1))


def no_clock() -> int:
    return 0


class Dict(dict[object, tuple[Cell, ...]]):
    """Keyed state in a dict: the loop is what is tested here."""

    watermark_ms = MIN_MS
    timers: Mapping[str, TimerIndex] = MappingProxyType({})

    def __init__(self, function: KeyedProcess[Any, Any, Any]) -> None:
        super().__init__()
        self._states = type(function).declared_states
        self.asked: list[list[object]] = []

    def rows(self, keys: Sequence[object]) -> list[Any]:
        self.asked.append(list(keys))
        for key in keys:
            if key not in self:
                self[key] = tuple(state.new_cell() for state in self._states.values())
        rows = [self[key] for key in keys]
        return [row[0] for row in rows] if len(self._states) == 1 else rows

    def why_not(self, row: Any, images: Sequence[object]) -> str:
        raise NotImplementedError

    def snapshot(
        self, done: Callable[[KeyedSnapshot], None], failed: Callable[[str], None]
    ) -> None:
        raise NotImplementedError

    def close(self) -> None:
        pass


def keyed(function: KeyedProcess[Any, Any, Any], out: Collected) -> tuple[KeyedOperator, Dict]:
    node = step(
        "keyed_process",
        function,
        uid="total",
        inputs=(Edge(node="orders", partitioning="key", key=lambda record: record[0]),),
    )
    state = Dict(function)
    return KeyedOperator("Totals", node, state, {MAIN: out.append}, now_ms=no_clock), state


class Total(KeyedProcess[str, tuple[str, int], tuple[str, int]]):
    total = ValueState(int, default=0)

    def process(self, record: tuple[str, int], ctx: Context[str]) -> Iterable[tuple[str, int]]:
        self.total.value += record[1]
        yield ctx.key, self.total.value


def test_each_record_sees_the_state_of_its_own_key() -> None:
    out = Collected()
    operator, state = keyed(Total(), out)
    operator.process(batch(("a", 1), ("b", 5), ("a", 2)))
    assert out.values() == [("a", 1), ("b", 5), ("a", 3)]
    assert out.offsets() == [100, 101, 102]
    assert state.asked == [["a", "b", "a"]]


class Order(list[Any]):
    """A record that can have a weak reference."""


def test_keyed_operator_holds_no_record_after_its_batch() -> None:
    operator, _ = keyed(Total(), Collected())
    order = Order(("a", 1))
    known = weakref.ref(order)
    operator.process(batch(order))
    del order
    assert known() is None


def test_keyed_function_uses_several_states_by_name() -> None:
    class Two(KeyedProcess[str, tuple[str, int], int]):
        count = ValueState(int, default=0)
        seen = MapState(int, bool)

        def process(self, record: tuple[str, int], ctx: Context[str]) -> Iterable[int]:
            if record[1] in self.seen:
                return ()
            self.seen[record[1]] = True
            self.count.value += 1
            return (self.count.value,)

    out = Collected()
    operator, _ = keyed(Two(), out)
    operator.process(batch(("a", 7), ("a", 7), ("b", 7), ("a", 8)))
    assert out.values() == [1, 1, 2]


@dataclass
class Stats:
    count: int = 0


@dataclass(frozen=True)
class Report:
    of: Stats


class Counting(KeyedProcess[str, tuple[str, int], Report]):
    stats = ValueState(Stats, factory=Stats)
    seen = SideOutput(Stats)

    def process(self, record: tuple[str, int], ctx: Context[str]) -> Iterable[Report]:
        self.stats.value.count += record[1]
        ctx.output(self.seen, self.stats.value)
        yield Report(self.stats.value)


def test_result_that_holds_a_state_value_does_not_see_later_changes() -> None:
    main, seen = Collected(), Collected()
    function = Counting()
    node = step(
        "keyed_process",
        function,
        uid="stats",
        inputs=(Edge(node="orders", partitioning="key", key=lambda record: record[0]),),
    )
    ports = {MAIN: main.append, "seen": seen.append}
    KeyedOperator("P", node, Dict(function), ports, now_ms=no_clock).process(
        batch(("a", 1), ("a", 2), ("b", 7))
    )
    assert main.values() == [Report(Stats(1)), Report(Stats(3)), Report(Stats(7))]
    assert seen.values() == [Stats(1), Stats(3), Stats(7)]


def test_assignment_over_a_state_attribute_is_refused_before_the_batch_ends() -> None:
    class Wrong(Total):
        def process(self, record: tuple[str, int], ctx: Context[str]) -> Iterable[tuple[str, int]]:
            self.total = record[1]  # type: ignore[assignment]  # what the test is about
            return ()

    operator, _ = keyed(Wrong(), Collected())
    with pytest.raises(UserCodeError, match=r"self\.total\.value = "):
        operator.process(batch(("a", 1)))


def test_error_in_key_function_or_process_names_step_uid_and_record() -> None:
    operator, _ = keyed(Total(), Collected())
    with pytest.raises(UserCodeError, match=r"uid 'total' .* orders-3 at offset 101"):
        operator.process(batch(("a", 1), 5))
    with pytest.raises(UserCodeError, match=r"TypeError.* orders-3 at offset 100"):
        operator.process(batch(("a", "text")))
