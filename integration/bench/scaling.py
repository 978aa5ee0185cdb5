"""Measures the throughput of the running total with one slot and with two.

The records of half of the keys go from one slot to the other. A figure is the number of records
between the first and the last commit of a run, by the time between both. Other columns have the
cores that the job and the broker used in that time: a machine without a free core says nothing
about tidegate.
"""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from typing import Final

from integration.bench.cost import SECOND, Rig, Run
from integration.bench.page import Table
from integration.bench.workloads import CHECKED, WORKLOADS

SLOTS: Final = {"total": 1, "shuffle": 2}
"""Workloads that differ in their number of slots only."""
GOAL: Final = 1.7


@dataclass(frozen=True, slots=True)
class Throughput:
    """The work of a run between its first and its last commit."""

    records_per_s: float
    job_cores: float
    broker_cores: float


def throughput(run: Run) -> Throughput:
    """Return the throughput of a run. RuntimeError if it was too short for two commits."""
    if run.span is None or run.span.last_s <= run.span.first_s:
        raise RuntimeError("The run had fewer than two commits. Give more records.")
    seconds = run.span.last_s - run.span.first_s
    tree_s, broker_s = run.usage.between(run.span.first_s, run.span.last_s)
    return Throughput(run.span.records / seconds, tree_s / seconds, broker_s / seconds)


def measure_scaling(rig: Rig, rounds: int) -> Table:
    """Measure both numbers of slots in turns."""
    found: dict[int, list[Throughput]] = {slots: [] for slots in SLOTS.values()}
    for _ in range(rounds):
        for name, slots in SLOTS.items():
            run = rig.once("tidegate", WORKLOADS[name], "bench-in", rig.count, SECOND)
            found[slots].append(throughput(run))
    return table(found)


def table(found: dict[int, list[Throughput]]) -> Table:
    """Return the table of the medians."""
    rows = []
    one = statistics.median(each.records_per_s for each in found[1])
    for slots, runs in found.items():
        rate = statistics.median(each.records_per_s for each in runs)
        rows.append(
            [
                str(slots),
                f"{rate:,.0f}",
                "" if slots == 1 else f"{rate / one:.2f}",
                "" if slots == 1 else str(GOAL),
                f"{statistics.median(each.job_cores for each in runs):.2f}",
                f"{statistics.median(each.broker_cores for each in runs):.2f}",
            ]
        )
    titles = ("slots", "records/s", "x one slot", "goal", "cores of the job", "cores of the broker")
    note = (
        "The running total, between the first and the last commit of a run. The goal holds where "
        f"the job and the broker do not use all cores. {CHECKED} Figures are medians of "
        f"{len(found[1])} rounds."
    )
    return Table("Throughput by slots", titles, rows, note)
