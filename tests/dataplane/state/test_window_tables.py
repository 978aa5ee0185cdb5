"""Tables of windows: what a checkpoint stores of them, and what a restore finds.

The backend, the uploader and the restore are the real ones, at any parallelism.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from copy import deepcopy
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.dataplane.state.job import MAX_PARALLELISM, Step, declare
from tests.dataplane.windows.subtasks import PARTITION, Checkpoint, Subtasks
from tidegate import (
    BoundedOutOfOrderness,
    Json,
    KafkaSink,
    KafkaSource,
    Last,
    Pipeline,
    Tumbling,
    ValueState,
    build,
)
from tidegate.api.state.keys import key_encoder
from tidegate.api.state.tables import TableState
from tidegate.dataplane.state.backend import KeyedStateBackend
from tidegate.dataplane.state.window_tables import Table, WindowTables
from tidegate.errors import CorruptCheckpointError, StateValueError
from tidegate.graph.key_groups import key_group, subtask_of
from tidegate.ports.kv import StoreCheckpoint
from tidegate.protocol.subtask_snapshot import KeyedSnapshot
from tidegate.stream_elements import RecordBatch

SPANS = [(0, 10), (10, 20), (-20, -10)]
KEYS = [f"k{number}" for number in range(12)]

Content = dict[tuple[int, int], dict[str, int]]
"""The totals by span and key."""


class Total(msgspec.Struct, gc=False):
    key: str
    total: int


def key_of_group(key: Any) -> bytes:
    return key_encoder(str)(key[0])


@pytest.fixture
def step(tmp_path: Path) -> Iterator[Step]:
    made = make_step(tmp_path)
    made.start(1)
    yield made
    made.stop()


def make_step(folder: Path) -> Step:
    states = declare(rows=ValueState(int, default=0))
    tables = {"tables": TableState("tables", Total, str, lambda key: Total(key, -1))}
    key_type: Any = tuple[str, int, int]
    return Step(folder, {**states, **tables}, key_type=key_type, group_bytes=key_of_group)


def tables_of(step: Step, subtask: int = 0) -> WindowTables:
    tables = step.subtasks[subtask].tables
    assert tables is not None
    return tables


def add(tables: WindowTables, span: tuple[int, int], totals: dict[str, int]) -> Table:
    """Add to the totals of keys, as an operator does."""
    table = tables.tables.get(span) or tables.new(span)
    tables.touch(table, list(totals))
    for key, total in totals.items():
        if key in table.windows:
            table.windows[key].total += total
        else:
            table.windows[key] = Total(key, total)
            tables.window_count += 1
    return table


def content(step: Step) -> Content:
    """The content of all subtasks."""
    found: Content = {}
    for index in range(len(step.subtasks)):
        for span, table in tables_of(step, index).tables.items():
            totals = found.setdefault(span, {})
            totals.update({key: window.total for key, window in table.windows.items()})
    return found


def restored(step: Step, snapshots: list[KeyedSnapshot], parallelism: int = 1) -> Content:
    step.start(parallelism, snapshots)
    for index in range(parallelism):
        tables_of(step, index).restore()
    return content(step)


def without_empty(content: Content) -> Content:
    """The content without tables that have no windows: a restore does not find them."""
    return {span: totals for span, totals in content.items() if totals}


def finish(step: Step, state: KeyedStateBackend) -> list[KeyedSnapshot]:
    """Store the rest of the snapshot that one subtask has begun."""
    while (frozen := state.save_next()) is None:
        pass
    return [step.uploaders[0].upload(frozen, state.schemas, state.stored_names)]


def chunks(step: Step) -> int:
    """Number of chunks in the store of the first subtask."""
    return len(list(step.subtasks[0]._store.scan(b"\x00", b"\xff")))


@pytest.fixture
def one_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each piece of a snapshot has one window, or one chunk."""
    monkeypatch.setattr(WindowTables, "piece", 1)


@pytest.mark.usefixtures("one_at_a_time")
def test_snapshot_has_the_windows_as_they_were_at_the_barrier(step: Step) -> None:
    tables, state = tables_of(step), step.subtasks[0]
    add(tables, (0, 10), dict.fromkeys(KEYS, 1))
    state.begin_snapshot()
    for key in KEYS:
        add(tables, (0, 10), {key: 5, f"new-{key}": 1})
        state.save_next()
    assert restored(step, finish(step, state)) == {(0, 10): dict.fromkeys(KEYS, 1)}


@pytest.mark.usefixtures("one_at_a_time")
def test_change_of_a_result_that_shares_its_window_changes_no_snapshot(tmp_path: Path) -> None:
    """A step behind owns the results of a last firing, while the snapshot is still stored."""

    class Newest(msgspec.Struct):
        key: str
        numbers: list[int]

    class Newests(Pipeline, name="newests"):
        clicks = KafkaSource(
            "clicks",
            value=Json(Newest),
            event_time=lambda _: 1,
            watermarks=BoundedOutOfOrderness("0 s"),
        )
        results = KafkaSink("results", value=Json(Newest))

        def define(self) -> None:
            windows = self.clicks.key_by(lambda click: click.key).window(Tumbling("10 ms"))
            newest: Any = Last(lambda click: click, returns=Newest)
            windows.aggregate(newest, uid="w", into=lambda _, result: result).to(self.results)

    results: list[Newest] = []
    windows = Subtasks(tmp_path, build(Newests).nodes["w"], cache_entries=100)
    (operator,) = windows.operators
    operator.results._emit = lambda batch: results.extend(batch.values)
    records: list[Any] = [Newest(key, [1]) for key in KEYS]
    operator.process(RecordBatch(records, range(len(KEYS)), PARTITION, None, [1] * len(KEYS)))
    state = windows._step.subtasks[0]
    state.begin_snapshot()
    state.save_next()
    windows.advance(9)
    for result in results:
        result.numbers.append(2)
    snapshots = finish(windows._step, state)
    results.clear()
    windows.start(1, Checkpoint(snapshots, 9, [], []))
    windows.operators[0].results._emit = lambda batch: results.extend(batch.values)
    windows.fire_all()
    assert [result.numbers for result in results] == [[1]] * len(KEYS)


@pytest.mark.usefixtures("one_at_a_time")
def test_table_that_is_dropped_while_it_is_stored_is_in_that_snapshot_only(
    step: Step,
) -> None:
    tables, state = tables_of(step), step.subtasks[0]
    table = add(tables, (0, 10), dict.fromkeys(KEYS, 1))
    state.begin_snapshot()
    state.save_next()
    tables.drop(table)
    first = finish(step, state)
    state.begin_snapshot()
    second = finish(step, state)
    assert chunks(step) == 0
    assert restored(step, first) == {(0, 10): dict.fromkeys(KEYS, 1)}
    assert restored(step, second) == {}


def test_table_that_is_dropped_leaves_nothing_in_the_next_checkpoint(step: Step) -> None:
    tables = tables_of(step)
    table = add(tables, (0, 10), dict.fromkeys(KEYS, 1))
    add(tables, (10, 20), {"a": 1})
    step.snapshot()
    tables.drop(table)
    saved = step.snapshot()
    assert chunks(step) == 1
    assert restored(step, saved) == {(10, 20): {"a": 1}}


def test_windows_that_a_caller_takes_while_they_are_stored_are_its_own(step: Step) -> None:
    tables, state = tables_of(step), step.subtasks[0]
    table = add(tables, (0, 10), {"a": 1})
    state.begin_snapshot()
    (taken,) = tables.take(table)
    taken.total = 9
    assert tables.window_count == 0
    assert restored(step, finish(step, state)) == {(0, 10): {"a": 1}}


def test_windows_that_have_fired_in_an_earlier_piece_are_not_stored(step: Step) -> None:
    tables = tables_of(step)
    table = add(tables, (0, 10), dict.fromkeys(KEYS, 1))
    step.snapshot()
    tables.fired(table, 5)
    assert restored(step, step.snapshot()) == {(0, 10): dict.fromkeys(KEYS[5:], 1)}


def test_long_chunks_are_stored_again_and_their_number_stays_small(
    step: Step,
) -> None:
    tables = tables_of(step)
    table = add(tables, (0, 10), dict.fromkeys(KEYS, 1))
    step.snapshot()
    whole, stored = chunks(step), []
    for _ in range(30):
        add(tables, (0, 10), {"k3": 1})
        step.snapshot()
        stored.append(table.stored_count)
    assert stored[:12] == list(range(13, 25))
    assert stored[12] == len(KEYS), "the chunks before it are gone"
    assert max(stored) <= 2 * len(KEYS)
    assert chunks(step) <= whole + len(KEYS)
    totals = restored(step, step.snapshot())[(0, 10)]
    assert totals == {**dict.fromkeys(KEYS, 1), "k3": 31}


def test_lists_of_changed_keys_are_not_longer_than_the_table(step: Step) -> None:
    tables = tables_of(step)
    table = add(tables, (0, 10), dict.fromkeys(KEYS, 1))
    step.snapshot()
    for _ in range(100):
        add(tables, (0, 10), {"k3": 1})
        assert sum(map(len, map(list, table.changed))) <= len(KEYS)
    assert restored(step, step.snapshot())[(0, 10)]["k3"] == 101


def test_flush_finds_a_window_that_cannot_be_stored(step: Step) -> None:
    wrong: Any = "text"
    table = add(tables_of(step), (0, 10), {"a": 1, "b": 1})
    table.windows["b"].total = wrong
    with pytest.raises(StateValueError, match=r"State 'tables' of .* for key 'b': .*total"):
        step.subtasks[0].flush()


def test_stored_windows_that_cannot_be_read_name_the_step(step: Step) -> None:
    add(tables_of(step), (0, 10), {"a": 1})
    saved = step.snapshot()
    step.start(1, saved)
    store = step.subtasks[0]._store
    (store_key, data), *_ = store.scan(b"\x00", b"\xff")
    store.write([(store_key, data[:-1])], ())
    with pytest.raises(CorruptCheckpointError, match="state 'tables' of step 'running-total'"):
        tables_of(step).restore()


@pytest.mark.usefixtures("one_at_a_time")
def test_tombstone_stands_for_a_removed_window_until_the_table_is_stored_again(
    step: Step,
) -> None:
    tables = tables_of(step)
    table = add(tables, (0, 10), dict.fromkeys(KEYS, 1))
    step.snapshot()
    tables.remove(table, ["k3"])
    saved = step.snapshot()
    assert (table.stored_count, tables.window_count) == (len(KEYS) + 1, len(KEYS) - 1)
    tables.remove(table, KEYS[4:])
    step.snapshot()
    assert table.stored_count == 3, "the tombstones are gone"
    assert "k3" not in restored(step, saved)[(0, 10)]
    assert tables_of(step).window_count == len(KEYS) - 1


@pytest.mark.usefixtures("one_at_a_time")
def test_window_removed_while_it_is_stored_is_in_that_snapshot_only(step: Step) -> None:
    tables, state = tables_of(step), step.subtasks[0]
    table = add(tables, (0, 10), dict.fromkeys(KEYS, 1))
    step.snapshot()
    add(tables, (0, 10), {"k1": 1, "k2": 1, "k3": 1})
    state.begin_snapshot()
    for key in ("k1", "k2", "k3"):
        tables.remove(table, [key])
        add(tables, (0, 10), {key: 7})
        state.save_next()
    tables.remove(table, ["k2"])
    first = finish(step, state)
    second = step.snapshot()
    ones = dict.fromkeys(KEYS, 1)
    assert restored(step, first) == {(0, 10): {**ones, "k1": 2, "k2": 2, "k3": 2}}
    del ones["k2"]
    assert restored(step, second) == {(0, 10): {**ones, "k1": 7, "k3": 7}}


@pytest.mark.usefixtures("one_at_a_time")
@pytest.mark.parametrize("pieces", [0, 1, 2])
def test_window_made_again_while_its_tombstone_is_stored_is_in_the_next_snapshot(
    step: Step, pieces: int
) -> None:
    tables, state = tables_of(step), step.subtasks[0]
    table = add(tables, (0, 10), dict.fromkeys(KEYS, 1))
    step.snapshot()
    tables.remove(table, ["k3"])
    state.begin_snapshot()
    for _ in range(pieces):
        state.save_next()
    add(tables, (0, 10), {"k3": 7})
    first = finish(step, state)
    second = step.snapshot()
    assert "k3" not in restored(step, first)[(0, 10)]
    assert restored(step, second)[(0, 10)]["k3"] == 7


def test_removed_and_made_again_between_two_barriers_is_the_new_window(step: Step) -> None:
    tables = tables_of(step)
    table = add(tables, (0, 10), dict.fromkeys(KEYS, 1))
    step.snapshot()
    tables.remove(table, ["k3"])
    add(tables, (0, 10), {"k3": 7})
    assert restored(step, step.snapshot()) == {(0, 10): {**dict.fromkeys(KEYS, 1), "k3": 7}}


def test_table_without_windows_leaves_no_chunks(step: Step) -> None:
    tables = tables_of(step)
    table = add(tables, (0, 10), dict.fromkeys(KEYS, 1))
    step.snapshot()
    tables.remove(table, KEYS)
    step.snapshot()
    assert chunks(step) == 0


def test_tombstones_without_windows_are_deleted_behind_a_restore(step: Step) -> None:
    tables = tables_of(step)
    table = add(tables, (0, 10), dict.fromkeys(KEYS, 1))
    step.snapshot()
    removed = [key for key in KEYS if owner_of(key, 2) == 0]
    assert 0 < len(removed) <= len(KEYS) / 2
    tables.remove(table, removed)
    restored(step, step.snapshot(), parallelism=2)
    assert tables_of(step).tables == {}
    step.snapshot()
    assert chunks(step) == 0


STEPS = st.one_of(
    st.tuples(
        st.just("add"),
        st.sampled_from(SPANS),
        st.dictionaries(st.sampled_from(KEYS), st.integers(1, 9), min_size=1),
    ),
    st.tuples(
        st.just("remove"), st.sampled_from(SPANS), st.lists(st.sampled_from(KEYS), unique=True)
    ),
    st.tuples(st.just("drop"), st.sampled_from(SPANS)),
    st.tuples(st.just("begin")),
    st.tuples(st.just("save")),
    st.tuples(st.just("restore"), st.integers(1, 3)),
)


class Snapshots:
    """Snapshots of all subtasks that are taken while the windows continue to change."""

    def __init__(self, step: Step) -> None:
        self._step = step
        self._frozen: dict[KeyedStateBackend, StoreCheckpoint] = {}

    def begin(self) -> None:
        self.finish()
        self._frozen.clear()
        for state in self._step.subtasks:
            state.begin_snapshot()

    def save_some(self) -> None:
        for state in self._step.subtasks:
            if state not in self._frozen and (frozen := state.save_next()) is not None:
                self._frozen[state] = frozen

    def finish(self) -> list[KeyedSnapshot]:
        """Finish the snapshot that was begun last."""
        while self._step.subtasks and len(self._frozen) < len(self._step.subtasks):
            self.save_some()
        return [
            uploader.upload(self._frozen[state], state.schemas, state.stored_names)
            for state, uploader in zip(self._step.subtasks, self._step.uploaders, strict=True)
        ]


@pytest.mark.hypothesis
@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(steps=st.lists(STEPS, max_size=40), piece=st.sampled_from([1, 3, 100]))
def test_restore_finds_the_content_of_the_last_barrier(steps: list[Any], piece: int) -> None:
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(WindowTables, "piece", piece)
        step = make_step(Path(folder))
        step.start(1)
        now: Content = {}
        at_barrier: Content = {}
        snapshots = Snapshots(step)
        for state in step.subtasks:
            state.begin_snapshot()
        for name, *arguments in steps:
            if name == "add":
                add_everywhere(step, *arguments)
                known = now.setdefault(arguments[0], {})
                for key, total in arguments[1].items():
                    known[key] = known.get(key, 0) + total
            elif name == "remove":
                remove_everywhere(step, now, *arguments)
            elif name == "drop":
                drop_everywhere(step, *arguments)
                now.pop(arguments[0], None)
            elif name == "begin":
                snapshots.begin()
                at_barrier = deepcopy(now)
            elif name == "save":
                snapshots.save_some()
            else:
                found = restored(step, snapshots.finish(), *arguments)
                assert without_empty(found) == without_empty(at_barrier)
                now = deepcopy(at_barrier)
                snapshots = Snapshots(step)
                for state in step.subtasks:
                    state.begin_snapshot()
        step.stop()


def add_everywhere(step: Step, span: tuple[int, int], totals: dict[str, int]) -> None:
    """Add to the totals of keys, each in the subtask that owns it."""
    for key, total in totals.items():
        add(tables_of(step, owner_of(key, len(step.subtasks))), span, {key: total})


def owner_of(key: str, parallelism: int) -> int:
    group = key_group(key_of_group((key,)), MAX_PARALLELISM)
    return subtask_of(group, parallelism, MAX_PARALLELISM)


def remove_everywhere(step: Step, now: Content, span: tuple[int, int], keys: list[str]) -> None:
    """Remove the windows of these keys, as far as there are any, also from `now`."""
    left = now.get(span, {})
    for key in keys:
        left.pop(key, None)
    for index in range(len(step.subtasks)):
        tables = tables_of(step, index)
        if table := tables.tables.get(span):
            tables.remove(table, [key for key in keys if key in table.windows])


def drop_everywhere(step: Step, span: tuple[int, int]) -> None:
    for index in range(len(step.subtasks)):
        tables = tables_of(step, index)
        if table := tables.tables.get(span):
            tables.drop(table)
