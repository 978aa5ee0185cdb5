"""Bugs in windows that the simulator finds by the log of each key."""

from __future__ import annotations

import pytest

from tests.mutants.finders import event_time_in
from tests.mutants.planting import Edit, Mutant, assert_found, mutant_params
from tidegate.dataplane.windows import accumulator_source
from tidegate.dataplane.windows.aligned import AlignedWindows
from tidegate.dataplane.windows.by_key import AlignedByKey
from tidegate.dataplane.windows.operator import WindowOperator
from tidegate.dataplane.windows.session_operator import SessionWindows
from tidegate.dataplane.windows.sliding_operator import SlidingWindows
from tidegate.sim.plan import Plan
from tidegate.sim.window_pipelines import SESSION, SLIDING, TUMBLING

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


def drains(plan: Plan) -> bool:
    """Whether the last job run of a plan fires all windows."""
    return plan.event_time is not None and plan.event_time.drains


SESSIONS = event_time_in("with sessions", lambda plan: has_kind(plan, SESSION))
SLIDINGS = event_time_in("with sliding windows", lambda plan: has_kind(plan, SLIDING))
TUMBLINGS = event_time_in(
    "with tumbling windows in rows of keys", lambda plan: has_kind(plan, TUMBLING, by_window=False)
)
LATENESS = event_time_in("with a long lateness and several job runs", has_lateness)
OWN_ROWS = event_time_in(
    "that drain, with windows in rows of their own",
    lambda plan: drains(plan) and has_kind(plan, TUMBLING, by_window=True),
)

JUDGED_FIRST = (
    Edit(
        SessionWindows._join,
        "if found:",
        "if found and not self.is_past(end_ms, self.lateness_ms):",
    ),
)
COUNT_LOST = (Edit(SessionWindows._merged, "newest.number += earlier.number", "pass"),)
ROW_STAYS = (
    Edit(accumulator_source._functions, '"            cell.clear()",', '"            pass",'),
)
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
        AlignedByKey.add_batch,
        "in_time = [one and not two for one, two in zip(past, late, strict=True)]",
        "in_time = past",
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

MUTANTS = [
    Mutant("a session is judged late before it is merged", JUDGED_FIRST, SESSIONS, RUNS, 2),
    Mutant("merged sessions forget how often they fired", COUNT_LOST, SESSIONS, RUNS, 2),
    Mutant("a window that has fired stays in state", ROW_STAYS, TUMBLINGS, RUNS, 2),
    Mutant("a window that is removed stays in its own row", OWN_ROW_STAYS, OWN_ROWS, RUNS, 2),
    Mutant("a sliding window fires again after a restore", FIRED_END_LOST, SLIDINGS, RUNS, 2),
    Mutant("a late record is in its window too", COUNTED_TWICE, TUMBLINGS, RUNS, 2),
    Mutant("a late record is neither in a window nor late", IN_NEITHER, SLIDINGS, RUNS, 2),
    Mutant("a restore forgets panes", PANE_LOST, SLIDINGS, RUNS, 2),
    Mutant("a restore forgets the allowed lateness", LATENESS_LOST, LATENESS, RUNS, 2),
]


@pytest.mark.parametrize("mutant", mutant_params(MUTANTS))
def test_the_mutant_is_found(mutant: Mutant) -> None:
    assert_found(mutant)
