"""Bugs in windows that the simulator finds by the log of each key."""

from __future__ import annotations

import functools
import inspect
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.dataplane.state import test_window_tables as table_tests
from tests.dataplane.state.job import Step
from tests.dataplane.windows import subtasks as subtasks_of_step
from tests.dataplane.windows import test_session_tables as session_tests
from tests.mutants.finders import event_time_in
from tests.mutants.planting import Detector, Edit, Mutant, assert_found, mutant_params
from tests.simulator.plan import Plan
from tests.simulator.window_pipelines import CALENDAR, SESSION, SLIDING, TUMBLING
from tidegate.dataplane.state.window_tables import Table, WindowTables
from tidegate.dataplane.windows import accumulator_source
from tidegate.dataplane.windows.aligned import AlignedWindows
from tidegate.dataplane.windows.by_key import WindowsByKey
from tidegate.dataplane.windows.calendars import LocalTime
from tidegate.dataplane.windows.operator import WindowOperator
from tidegate.dataplane.windows.session_operator import SessionWindows
from tidegate.dataplane.windows.sliding_operator import SlidingWindows
from tidegate.dataplane.windows.table_operator import TableWindows

RUNS = 20
"""Runs of the simulator."""


def has_kind(plan: Plan, kind: str, *, by_window: bool | None = None) -> bool:
    """Whether a plan has windows of this kind, perhaps only with rows of their own, or without."""
    windows = None if plan.event_time is None else plan.event_time.windows
    if windows is None or windows.kind != kind:
        return False
    return by_window is None or (windows.process or windows.collects) == by_window


def has_lateness(plan: Plan) -> bool:
    """Whether windows of a plan stay in state for long after their end, and a restore has some."""
    event_time = plan.event_time
    if event_time is None or event_time.windows is None or event_time.idle_after_ms is not None:
        return False
    return event_time.windows.lateness_ms >= 1_000 and len(plan.job_runs) > 1


def fires_at_ends(plan: Plan) -> bool:
    """Whether each window of a plan fires once, at its end."""
    windows = None if plan.event_time is None else plan.event_time.windows
    if windows is None:
        return False
    return not (windows.lateness_ms or windows.early or windows.early_ms)


def drains(plan: Plan) -> bool:
    """Whether the last job run of a plan fires all windows."""
    return plan.event_time is not None and plan.event_time.drains


def tables(test: Callable[[Step], object]) -> Detector:
    """A test of the tables, with one window in each piece of a snapshot."""

    @functools.wraps(test)
    def run(_seed: int) -> None:
        with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
            patch.setattr(WindowTables, "piece", 1)
            step = table_tests.make_step(Path(folder))
            step.start(1)
            try:
                test(step)
            finally:
                step.stop()

    return run


def sessions(test: Callable[..., object]) -> Detector:
    """A test of sessions in a table that has room for all of them."""

    @functools.wraps(test)
    def run(_seed: int) -> None:
        with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
            patch.setattr(subtasks_of_step, "CACHE_ENTRIES", 1_000)
            try:
                test(*(Path(folder), patch)[: len(inspect.signature(test).parameters)])
            except KeyError as error:  # a session is removed twice
                raise AssertionError(str(error)) from error

    return run


SESSIONS = event_time_in("with sessions", lambda plan: has_kind(plan, SESSION))
PLAIN_SESSIONS = event_time_in(
    "with sessions in tables that fire at their ends only",
    lambda plan: has_kind(plan, SESSION, by_window=False) and fires_at_ends(plan),
)
SESSIONS_IN_ROWS = event_time_in(
    "that drain, with sessions in rows",
    lambda plan: drains(plan) and has_kind(plan, SESSION, by_window=True),
)
SLIDINGS = event_time_in("with sliding windows", lambda plan: has_kind(plan, SLIDING))
TUMBLINGS = event_time_in(
    "with tumbling windows in tables", lambda plan: has_kind(plan, TUMBLING, by_window=False)
)
LATE_TUMBLINGS = event_time_in(
    "with tumbling windows in tables and allowed lateness",
    lambda plan: has_kind(plan, TUMBLING, by_window=False) and has_lateness(plan),
)
LATENESS = event_time_in("with a long lateness and several job runs", has_lateness)
OWN_ROWS = event_time_in(
    "that drain, with windows in rows of their own",
    lambda plan: drains(plan) and has_kind(plan, TUMBLING, by_window=True),
)

JUDGED_FIRST = (
    Edit(
        SessionWindows.join,
        "if found:",
        "if found and not self.is_past(end_ms, self.lateness_ms):",
    ),
)
COUNT_LOST = (Edit(SessionWindows._merged, "newest.number += earlier.number", "pass"),)
ROW_STAYS = (Edit(WindowsByKey.fire_due, "cell.clear()", "pass"),)
FIRED_AGAIN = (
    Edit(
        accumulator_source._session_firings,
        "elif known(key := w.key) is w:",
        "elif (key := w.key):",
    ),
)
TIMER_BEHIND_THE_END = (
    Edit(
        accumulator_source._session_timer,
        "tick = at - at % tick_ms",
        "tick = at - at % tick_ms + tick_ms",
    ),
)
LATER_SESSIONS_LOST = (
    Edit(accumulator_source._session_firings, "later[:-1] or NO_OTHERS", "NO_OTHERS"),
)
SESSION_STAYS = (Edit(WindowTables.remove, "del table.windows[key]", "pass"),)
REMOVED_RETURNS = (
    Edit(WindowTables._put, "windows.pop(window.key, None)", "windows.get(window.key)"),
)
REMOVED_NOT_KEPT = (Edit(WindowTables.remove, "self.keep(table, keys)", "pass"),)
CHUNKS_STAY = (Edit(WindowTables.drop, "self._dropped += table.chunks", "pass"),)
OLD_CHUNKS_STAY = (Edit(WindowTables.begin_snapshot, "self._deletes += table.chunks", "pass"),)
FIRED_STORED = (Edit(Table.live_windows, "self.fired_count, None", "0, None"),)
NOT_COPIED = (Edit(WindowTables.keep, "copies[key] = copy_value(windows.get(key))", "pass"),)
OWN_ROW_STAYS = (Edit(AlignedWindows.fire_due, "self.clear(row)", "pass"),)
FIRED_END_LOST = (
    Edit(
        SlidingWindows.restore,
        "panes.fired_end = max(panes.fired_end, row.at_ms)",
        "pass",
    ),
)
COUNTED_TWICE = (
    Edit(
        TableWindows._add,
        "self._tables.window_count += len(windows) - before\n    return True",
        "self._tables.window_count += len(windows) - before\n    return not past",
    ),
)
IN_NEITHER = (Edit(SlidingWindows.add_batch, "if any(late):", "if all(late):"),)
PANE_LOST = (
    Edit(
        SlidingWindows.restore,
        "(panes.starts if row.filled else panes.marks).append(row.start_ms)",
        "if not (row.filled and panes.starts):\n"
        "        (panes.starts if row.filled else panes.marks).append(row.start_ms)",
    ),
)
LATENESS_LOST = (
    Edit(
        WindowOperator.open,
        "self.restore(row)",
        "self.restore(row)\n        self.lateness_ms = 0",
    ),
)

LOCAL_DAYS = event_time_in("with local days", lambda plan: has_kind(plan, CALENDAR))
DAY_OF_24_HOURS = (
    Edit(
        LocalTime._days,
        "self._midnight(first), self._midnight(self._next(first))",
        "self._midnight(first), self._midnight(first) + 86_400_000",
    ),
)

MUTANTS = [
    Mutant("a session is judged late before it is merged", JUDGED_FIRST, SESSIONS, RUNS, 2),
    Mutant("merged sessions forget how often they fired", COUNT_LOST, SESSIONS, RUNS, 2),
    Mutant("a session that has fired stays in its row", ROW_STAYS, SESSIONS_IN_ROWS, RUNS, 2),
    Mutant("a session that has fired stays in its table", SESSION_STAYS, SESSIONS, RUNS, 2),
    Mutant(
        "a session that has fired fires again at a second timer",
        FIRED_AGAIN,
        sessions(session_tests.test_timer_of_a_session_that_was_merged_and_has_fired_does_nothing),
        1,
        1,
    ),
    Mutant(
        "a session fires behind the watermark of its end",
        TIMER_BEHIND_THE_END,
        sessions(
            session_tests.test_session_fires_at_the_first_watermark_of_its_end_also_between_ticks
        ),
        1,
        1,
    ),
    Mutant(
        "a firing forgets the later sessions of a key", LATER_SESSIONS_LOST, PLAIN_SESSIONS, RUNS, 1
    ),
    Mutant(
        "a window that was removed returns with a restore",
        REMOVED_RETURNS,
        tables(
            table_tests.test_tombstone_stands_for_a_removed_window_until_the_table_is_stored_again
        ),
        1,
        1,
    ),
    Mutant(
        "a window that is removed while it is stored is lost",
        REMOVED_NOT_KEPT,
        tables(table_tests.test_window_removed_while_it_is_stored_is_in_that_snapshot_only),
        1,
        1,
    ),
    Mutant(
        "a table that has fired stays in checkpoints",
        CHUNKS_STAY,
        tables(table_tests.test_table_that_is_dropped_leaves_nothing_in_the_next_checkpoint),
        1,
        1,
    ),
    Mutant(
        "a window that has fired is stored behind its piece",
        FIRED_STORED,
        tables(table_tests.test_windows_that_have_fired_in_an_earlier_piece_are_not_stored),
        1,
        1,
    ),
    Mutant(
        "a window is stored as it is after the barrier",
        NOT_COPIED,
        tables(table_tests.test_snapshot_has_the_windows_as_they_were_at_the_barrier),
        1,
        1,
    ),
    Mutant(
        "chunks that are stored again stay",
        OLD_CHUNKS_STAY,
        tables(table_tests.test_long_chunks_are_stored_again_and_their_number_stays_small),
        1,
        1,
    ),
    Mutant("a window that is removed stays in its own row", OWN_ROW_STAYS, OWN_ROWS, RUNS, 2),
    Mutant("a sliding window fires again after a restore", FIRED_END_LOST, SLIDINGS, RUNS, 2),
    Mutant("a late record is in its window too", COUNTED_TWICE, LATE_TUMBLINGS, RUNS, 2),
    Mutant("a late record is neither in a window nor late", IN_NEITHER, SLIDINGS, RUNS, 2),
    Mutant("a local day always has 24 hours", DAY_OF_24_HOURS, LOCAL_DAYS, RUNS, 2),
    Mutant("a restore forgets panes", PANE_LOST, SLIDINGS, RUNS, 2),
    Mutant("a restore forgets the allowed lateness", LATENESS_LOST, LATENESS, RUNS, 2),
]


@pytest.mark.parametrize("mutant", mutant_params(MUTANTS))
def test_the_mutant_is_found(mutant: Mutant) -> None:
    assert_found(mutant)
