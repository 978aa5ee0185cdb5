"""Timers of keyed functions: when they fire, in which order, in pieces, and after a restore.

The operator and the state are those of a job. The store is in memory.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.dataplane.test_operators import Collected, step
from tidegate.api.functions import Context, KeyedProcess, SideOutput
from tidegate.api.state.state import MapState, ValueState
from tidegate.api.time.timers import (
    EventTimer,
    EventTimers,
    Fired,
    ProcessingTimer,
    ProcessingTimers,
    for_keys,
)
from tidegate.dataplane.operators.timers import IN_A_ROW_MAX, TimedKeyedOperator
from tidegate.dataplane.refusals import Refusals
from tidegate.dataplane.state.backend import KeyedStateBackend
from tidegate.dataplane.time import timer_index
from tidegate.drivers.memory.store import MemoryStore
from tidegate.errors import UserCodeError
from tidegate.graph.stream_graph import MAIN, Edge, Node
from tidegate.ids import Uid
from tidegate.stream_elements import (
    MAX_MS,
    MIN_MS,
    NO_OFFSET,
    RecordBatch,
    TopicPartition,
    Watermark,
)

P0 = TopicPartition("orders", 0)
GROUPS = 8
Order = tuple[str, str, int | None]
"""A key, what the function does, and a time."""


class Job:
    """One function with its operator, its state and its outputs. `restart` restores the state."""

    def __init__(
        self, function: type[KeyedProcess[str, Order, Any]], path: Path, *, event_time: bool = True
    ) -> None:
        self.store: Any = MemoryStore(path)
        self._class, self._event_time = function, event_time
        self.out, self.side, self.forwarded = Collected(), Collected(), list[Watermark]()
        self.now_ms = 0
        self._watermark_ms = MIN_MS
        self._schemas: dict[str, list[str]] | None = None
        self._start()

    def _start(self, policy: Any = "fail") -> None:
        function = self._class()
        edge = Edge(node="orders", partitioning="key", key=lambda order: order[0], key_type=str)
        node: Node = step("keyed_process", function, uid="timed", inputs=(edge,))
        object.__setattr__(node, "event_time", self._event_time)
        states = for_keys(self._class.declared_states, str)
        self.state = KeyedStateBackend(
            Uid("timed"), states, str, GROUPS, range(GROUPS), self.store, 50, self._schemas
        )
        cast("Any", self.state).watermark_ms = self._watermark_ms
        emits: dict[str, Any] = {MAIN: self.out.append, "noted": self.side.append}
        self.operator = TimedKeyedOperator(
            "P",
            node,
            cast("Any", self.state),
            emits,
            Refusals("timed", policy),
            now_ms=lambda: self.now_ms,
        )
        self.operator.forward = self.forwarded.append

    def tolerate(self) -> None:
        """Skip records on which the function raises."""
        self._start("skip")

    def restart(self) -> None:
        """Take a checkpoint of the state, and continue from it in a new operator."""
        self.state.flush()
        self._schemas = self.state.schemas
        self._watermark_ms = cast("Any", self.state).watermark_ms
        self._start()

    def push(self, *orders: Order, at_ms: int = 0) -> None:
        times_ms = [at_ms] * len(orders) if self._event_time else None
        offsets = list(range(len(orders)))
        self.operator.process(RecordBatch(list(orders), offsets, P0, None, times_ms))

    def watermark(self, at_ms: int) -> None:
        self.operator.advance(Watermark(at_ms))
        self.settle()

    def settle(self) -> None:
        while self.operator.firing:
            self.operator.fire()

    def clock(self, now_ms: int) -> None:
        self.now_ms = now_ms
        while self.operator.next_processing_ms <= now_ms:
            self.operator.advance_processing_time(now_ms)

    def take(self) -> list[Any]:
        values = self.out.values()
        self.out.clear()
        return values


class Silence(KeyedProcess[str, Order, str]):
    """Reports a key for which no record came for some time, and how many came before."""

    count = ValueState(int, default=0)
    silence = EventTimer()
    noted = SideOutput(str)

    def process(self, order: Order, ctx: Context[str]) -> Iterator[str]:
        self.count.value += 1
        match order:
            case (_, "set", int(at_ms)):
                self.silence.set(at_ms)
            case (_, "cancel", _):
                self.silence.cancel()
            case (_, "raise", int(at_ms)):
                self.silence.set(at_ms)
                raise ValueError("refused")
            case _:
                pass
        yield f"{ctx.key} {order[1]}"

    def on_timer(self, fired: Fired, ctx: Context[str]) -> Iterator[str]:
        assert fired.of(Silence.silence)
        assert ctx.timestamp_ms == fired.at_ms
        assert self.silence.at_ms is None
        ctx.output(Silence.noted, f"noted {ctx.key}")
        yield f"{ctx.key} silent at {fired.at_ms} after {self.count.value}, w {ctx.watermark_ms}"


@pytest.fixture
def job(tmp_path: Path) -> Job:
    return Job(Silence, tmp_path / "store")


def test_timer_fires_when_the_watermark_reaches_it_and_its_result_has_its_time(job: Job) -> None:
    job.push(("a", "set", 100))
    job.watermark(99)
    assert job.take() == ["a set"]
    job.watermark(150)
    (batch,) = job.out
    assert batch.values == ["a silent at 100 after 1, w 150"]
    assert (batch.timestamps_ms, batch.offsets, batch.topic_partition) == ([100], [NO_OFFSET], None)
    assert job.side.values() == ["noted a"]
    assert job.side[0].timestamps_ms == [100]
    assert job.forwarded == [Watermark(99), Watermark(150)]


def test_timer_that_was_moved_or_cancelled_does_not_fire_at_its_former_time(job: Job) -> None:
    job.push(("a", "set", 100), ("b", "set", 100), ("a", "set", 300), ("b", "cancel", None))
    job.take()
    job.watermark(200)
    assert job.take() == []
    job.push(("b", "set", 250))
    job.take()
    job.watermark(300)
    assert job.take() == ["b silent at 250 after 3, w 300", "a silent at 300 after 2, w 300"]
    job.push(("a", "set", 1_000), ("a", "set", 400))
    job.take()
    job.watermark(500)
    assert job.take() == ["a silent at 400 after 4, w 500"]
    job.watermark(2_000)
    assert job.take() == []


def test_timer_in_the_past_fires_directly_after_the_call_that_set_it(job: Job) -> None:
    job.watermark(500)
    job.push(("a", "set", 500), ("a", "none", None), at_ms=600)
    assert job.take() == ["a set", "a silent at 500 after 1, w 500", "a none"]
    job.push(("a", "none", None), ("a", "set", 20), at_ms=700)
    assert [(batch.values, batch.timestamps_ms) for batch in job.out] == [
        (["a none", "a set"], [700, 700]),
        (["a silent at 20 after 4, w 500"], [20]),
    ]


def test_timer_set_by_a_call_that_raised_and_was_skipped_is_not_set(job: Job) -> None:
    job.tolerate()
    job.push(("a", "set", 100), ("a", "raise", 50), ("b", "raise", 60))
    job.watermark(70)
    assert job.take() == ["a set"]
    job.watermark(100)
    assert job.take() == ["a silent at 100 after 1, w 100"]


def test_timer_is_not_lost_after_a_call_that_set_it_to_the_past_and_was_undone(job: Job) -> None:
    job.tolerate()
    job.push(("a", "set", 10_000))
    job.watermark(100)
    job.push(("a", "raise", 50), ("b", "none", None), ("c", "raise", 60), ("b", "set", 90))
    job.push(("a", "set", 500), ("c", "set", 700))
    job.take()
    job.watermark(1_000)
    assert job.take() == ["a silent at 500 after 2, w 1000", "c silent at 700 after 1, w 1000"]


class Named(KeyedProcess[str, Order, str]):
    deadline = EventTimers(str)

    def process(self, order: Order, ctx: Context[str]) -> Iterable[str]:
        if order[2] is None:
            self.deadline.cancel(order[1])
        else:
            self.deadline.set(order[1], order[2])
        return ()

    def on_timer(self, fired: Fired, ctx: Context[str]) -> Iterable[str]:
        name: str | None = fired.name(Named.deadline)
        yield f"{ctx.key} {name} at {fired.at_ms}"


def test_policy_accepts_records_that_set_and_cancel_timers_by_name(tmp_path: Path) -> None:
    job = Job(Named, tmp_path / "store")
    job.tolerate()
    job.push(("a", "x", 500), ("a", "y", 600), ("a", "y", None), ("b", "x", 5), ("b", "x", None))
    job.watermark(1_000)
    assert job.take() == ["a x at 500"]


def test_cancelled_timers_leave_nothing_in_the_index(job: Job) -> None:
    for number in range(5_000):
        job.push((f"k{number}", "set", 1_000_000 + number), (f"k{number}", "cancel", None))
    index = job.state.timers["silence"]
    assert len(index) == 0
    assert len(index._times) <= timer_index.EMPTY_TIMES_MAX


class Unstorable(KeyedProcess[str, Order, str]):
    tick = EventTimer()
    seen = MapState(int, int)

    def process(self, order: Order, ctx: Context[str]) -> Iterable[str]:
        self.tick.set(0)
        yield ctx.key

    def on_timer(self, fired: Fired, ctx: Context[str]) -> Iterable[str]:
        self.seen.get(2**90)
        return ()


def test_error_of_state_in_a_timer_that_fires_at_once_does_not_refuse_the_record(
    tmp_path: Path,
) -> None:
    job = Job(Unstorable, tmp_path / "store")
    job.tolerate()
    job.watermark(100)
    with pytest.raises(UserCodeError, match=r"on_timer raised StateValueError: .* of key 'a'"):
        job.push(("a", "", None))


def test_timer_has_its_time_also_if_an_input_has_none(tmp_path: Path) -> None:
    job = Job(Silence, tmp_path / "store", event_time=False)
    job.push(("a", "set", 100))
    job.take()
    job.watermark(200)
    (batch,) = job.out
    assert (batch.values, batch.timestamps_ms) == (["a silent at 100 after 1, w 200"], None)


def test_time_of_a_timer_may_be_a_datetime_with_a_zone_and_nothing_else(job: Job) -> None:
    cell: Any = job.state.rows(["a"])[0][1]
    cell.set(datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC))
    assert cell.at_ms == 1_000
    with pytest.raises(TypeError, match="give milliseconds since the Unix epoch as an int"):
        cell.set("soon")
    with pytest.raises(TypeError, match="a datetime with a time zone"):
        cell.set(datetime(2026, 1, 1))  # noqa: DTZ001 - that is what is refused
    assert cell.at_ms == 1_000
    cell.set(MIN_MS + 60_000)
    assert cell.at_ms == -(1 << 62), "as ctx.watermark_ms + 60_000 before the first watermark"
    cell.set(MAX_MS + 60_000)
    assert cell.at_ms == 1 << 62


def test_burst_fires_in_pieces_and_the_watermark_is_forwarded_after_the_last(
    job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(TimedKeyedOperator, "piece", 2)
    job.push(*((key, "set", 10 + number) for number, key in enumerate("abcde")))
    job.take()
    job.operator.advance(Watermark(100))
    assert len(job.take()) == 2
    assert job.operator.firing
    assert job.forwarded == []
    job.operator.fire()
    assert len(job.take()) == 2
    job.operator.fire()
    assert job.take() == ["e silent at 14 after 1, w 100"]
    assert job.forwarded == [Watermark(100)]
    assert not job.operator.firing


def test_snapshot_between_two_pieces_holds_what_is_due_and_the_watermark(
    job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(TimedKeyedOperator, "piece", 2)
    job.push(*((key, "set", 10) for key in "abcde"))
    job.operator.advance(Watermark(100))
    before = job.take()[5:]
    job.restart()
    assert job.operator.firing, "what was due fires before the first record"
    job.push(("x", "none", None), at_ms=150)
    after = job.take()
    assert after[-1] == "x none"
    fired = [f"{key} silent at 10 after 1, w 100" for key in "abcde"]
    assert sorted(before + after[:-1]) == fired
    job.watermark(200)
    assert job.take() == []


def test_restored_timers_fire_at_their_times_and_fired_ones_do_not_fire_again(job: Job) -> None:
    job.push(("a", "set", 100), ("b", "set", 200), ("c", "set", 300), ("c", "cancel", None))
    job.watermark(150)
    job.take()
    job.restart()
    job.watermark(400)
    assert job.take() == ["b silent at 200 after 1, w 400"]


def test_end_of_the_input_fires_everything_and_is_not_stored(job: Job) -> None:
    job.push(("a", "set", 1 << 61))
    job.watermark(10)
    job.take()
    job.watermark(MAX_MS)
    assert job.take() == [f"a silent at {1 << 61} after 1, w {MAX_MS}"]
    assert cast("Any", job.state).watermark_ms == 10


class Periodic(KeyedProcess[str, Order, int]):
    tick = EventTimer()

    def process(self, order: Order, ctx: Context[str]) -> Iterable[int]:
        self.tick.set(order[2] or 0)
        return ()

    def on_timer(self, fired: Fired, ctx: Context[str]) -> Iterable[int]:
        self.tick.set(fired.at_ms + (1_000 if ctx.key == "often" else 0))
        yield fired.at_ms


def test_periodic_timer_catches_up_over_any_gap_and_its_key_stays_in_order(tmp_path: Path) -> None:
    job = Job(Periodic, tmp_path / "store")
    job.push(("often", "", 1_000))
    job.watermark(5_000_999)
    assert job.take() == list(range(1_000, 5_001_000, 1_000))


def test_timer_that_sets_itself_at_once_without_an_end_is_refused(tmp_path: Path) -> None:
    job = Job(Periodic, tmp_path / "store")
    job.push(("stuck", "", 1_000))
    words = f"on_timer has set a timer of key 'stuck' {IN_A_ROW_MAX:,} times in a row, and each"
    with pytest.raises(UserCodeError, match=words):
        job.watermark(2_000)


def test_periodic_timer_that_does_not_end_with_the_input_is_refused(tmp_path: Path) -> None:
    job = Job(Periodic, tmp_path / "store")
    job.push(("often", "", 1_000))
    with pytest.raises(UserCodeError, match="the job drains, so every timer is due"):
        job.watermark(MAX_MS)


class Raises(Periodic):
    def on_timer(self, fired: Fired, ctx: Context[str]) -> Iterable[int]:
        raise KeyError("wrong")


def test_error_of_a_timer_names_the_timer_and_the_key_and_no_policy_covers_it(
    tmp_path: Path,
) -> None:
    job = Job(Raises, tmp_path / "store")
    job.tolerate()
    job.push(("a", "", 1_000))
    with pytest.raises(
        UserCodeError, match=r"KeyError: 'wrong', on <timer tick at 1000> of key 'a'"
    ):
        job.watermark(2_000)


class Everything(KeyedProcess[str, Order, tuple[str, str, int]]):
    """Timers of all kinds, which the records set and cancel."""

    second = EventTimer()
    named = EventTimers(str)
    first = EventTimer()
    clock = ProcessingTimer()
    clocks = ProcessingTimers(int)

    def process(self, order: Order, ctx: Context[str]) -> Iterable[Any]:
        _, which, at_ms = order
        cell: Any = {"first": self.first, "second": self.second, "clock": self.clock}.get(which)
        if cell is not None:
            cell.cancel() if at_ms is None else cell.set(at_ms)
        elif which.isdigit():
            if at_ms is None:
                self.clocks.cancel(int(which))
            else:
                self.clocks.set(int(which), at_ms)
        elif at_ms is None:
            self.named.cancel(which)
        else:
            self.named.set(which, at_ms)
        return ()

    def on_timer(self, fired: Fired, ctx: Context[str]) -> Iterable[Any]:
        kind = type(self)
        name = fired.name(kind.named) or fired.name(kind.clocks)
        timers = ("first", "second", "clock")
        one = next((each for each in timers if fired.of(getattr(kind, each))), "")
        yield ctx.key, str(name or one), fired.at_ms


def test_timers_of_a_key_fire_by_time_then_declaration_then_name(tmp_path: Path) -> None:
    job = Job(Everything, tmp_path / "store")
    for which, at_ms in [("first", 9), ("z", 9), ("a", 9), ("second", 9), ("b", 5), ("first", 7)]:
        job.push(("k", which, at_ms))
    job.watermark(10)
    assert [(name, at_ms) for _, name, at_ms in job.take()] == [
        ("b", 5),
        ("first", 7),
        ("second", 9),
        ("a", 9),
        ("z", 9),
    ]


def test_processing_timers_fire_by_the_clock_and_have_the_time_after_the_watermark(
    tmp_path: Path,
) -> None:
    job = Job(Everything, tmp_path / "store")
    job.watermark(40)
    job.push(("k", "clock", 1_000), ("k", "7", 2_000), at_ms=50)
    job.clock(999)
    assert job.take() == []
    job.clock(5_000)
    assert job.out[0].timestamps_ms == [41]
    job.restart()
    job.clock(6_000)
    assert job.take() == [("k", "clock", 1_000), ("k", "7", 2_000)]


def test_result_of_a_processing_timer_in_a_drain_has_the_time_after_the_last_watermark(
    tmp_path: Path,
) -> None:
    job = Job(Everything, tmp_path / "store")
    job.watermark(40)
    job.push(("k", "clock", 1_000), at_ms=50)
    job.watermark(MAX_MS)
    job.clock(1_000)
    assert job.out[-1].timestamps_ms == [41]


def test_processing_timers_need_no_event_time(tmp_path: Path) -> None:
    job = Job(Everything, tmp_path / "store", event_time=False)
    job.push(("k", "clock", 1_000))
    job.clock(1_000)
    (batch,) = job.out
    assert (batch.values, batch.timestamps_ms) == ([("k", "clock", 1_000)], None)


EVENT = ("first", "second", "x", "y")
ORDERS = st.tuples(
    st.sampled_from("abc"), st.sampled_from(EVENT), st.one_of(st.none(), st.integers(0, 60))
)
ACTIONS = st.one_of(
    st.lists(ORDERS, min_size=1, max_size=5), st.integers(0, 60), st.sampled_from(["restart"])
)


@given(st.lists(ACTIONS, max_size=25), st.integers(1, 3))
def test_each_timer_fires_exactly_once_at_its_last_time_whatever_restarts(
    tmp_path_factory: pytest.TempPathFactory, actions: list[Any], piece: int
) -> None:
    """The model is a dict of the times that are set. Nothing is due in it after a watermark."""
    job = Job(Everything, tmp_path_factory.mktemp("job") / "store")
    waiting: dict[tuple[str, str], int] = {}
    watermark_ms, due = MIN_MS, Counter[tuple[str, str, int]]()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(TimedKeyedOperator, "piece", piece)
        for action in [*actions, 1_000]:
            if action == "restart":
                job.restart()
            elif isinstance(action, int):
                watermark_ms = max(watermark_ms, action)
                job.watermark(action)
                for (key, name), at_ms in list(waiting.items()):
                    if at_ms <= watermark_ms:
                        due[key, name, at_ms] += 1
                        del waiting[key, name]
            else:
                job.push(*action)
                for key, name, at_ms in action:
                    waiting.pop((key, name), None)
                    if at_ms is not None and at_ms <= watermark_ms:
                        due[key, name, at_ms] += 1
                    elif at_ms is not None:
                        waiting[key, name] = at_ms
            assert Counter(job.out.values()) == due
