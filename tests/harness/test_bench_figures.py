"""How the benchmark makes figures of runs: differences, medians, and when a run is void."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import pytest

from integration.bench import cpu_breakdown
from integration.bench.commits import Span
from integration.bench.cost import (
    ALWAYS_SHORT,
    LONG,
    SHORT,
    SMALL,
    Pace,
    Rig,
    Run,
    figure,
    measure_cost,
    measure_intervals,
    synchronous_ms,
    times,
)
from integration.bench.cpu_breakdown import Clocks
from integration.bench.exchange_micro import exchange_table
from integration.bench.process_tree import Sample, Usage
from integration.bench.workloads import (
    LOOP_SHAPE,
    SHAPE_TOLERANCE,
    WORKLOADS,
    Workload,
    deviations,
    slowness,
)

COUNT = 1_000_000 + SMALL


@dataclass
class FakeRig:
    """Runs nothing: a start costs 0.5 s of CPU and takes 2 s, a million records what is said."""

    cpu_s: dict[str, list[float]]
    """CPU seconds for a million records in each round, by kind and workload."""
    wall_s: float = 4.0
    count: int = COUNT
    span_s: float = 10.0
    """Seconds between the first and the last commit."""
    start_durations: list[Pace] = field(default_factory=list)

    def once(self, kind: str, workload: Workload, source: str, count: int, pace: Pace) -> Run:
        if source == "bench-small":
            assert count == SMALL
            return Run(Usage(cpu_s=0.5, wall_s=2.0, started_s=1.5, pss_max=900_000_000), [99])
        assert (source, count) == ("bench-in", COUNT)
        self.start_durations.append(pace)
        cpu_s = self.cpu_s[f"{kind} {workload.name}"].pop(0)
        wall_s = 2.0 + self.wall_s * {SHORT: 1.25, ALWAYS_SHORT: 2}.get(pace, 1)
        used = Usage(cpu_s=0.5 + cpu_s, wall_s=wall_s, started_s=9.0, pss_max=300_000_000)
        # Between its first and its last commit, a run reads half of the records. It pays 0.1 s more
        # for a million than the slope, and the broker pays half of that.
        between_s = (cpu_s + 0.1) / 2
        used.samples = [
            Sample(100.0, 1.0, 7.0),
            Sample(110.0, 1.0 + between_s, 7.0 + between_s / 2),
        ]
        each_ms = pace.interval_ms
        sync_ms = [each_ms // 100, each_ms // 50] if kind == "tidegate" else []
        return Run(used, sync_ms, Span(100.0, 100.0 + self.span_s, int(500_000 * self.span_s / 10)))


@dataclass
class CheckedRig:
    """Has topics by number, and notes which of them were checked."""

    scratch: Path
    count: int = COUNT
    made: list[str] = field(default_factory=list)
    checked: list[tuple[str, str, int]] = field(default_factory=list)

    def fresh(self, what: str) -> tuple[str, Path]:
        self.made.append(f"{what}-{len(self.made)}")
        return self.made[-1], self.scratch

    def check(self, workload: Workload, sink: str, count: int) -> None:
        self.checked.append((workload.name, sink, count))


class UnstartedRig(Rig):
    """Has no broker: its topics are names, and what it would read back is noted."""

    def __init__(self, scratch: Path) -> None:
        self.bootstrap, self.scratch, self.brokers = "nowhere:1", scratch, [4711]
        self.checked: list[tuple[str, str, int]] = []

    def fresh(self, what: str) -> tuple[str, Path]:
        return what, self.scratch

    def check(self, workload: Workload, sink: str, count: int) -> None:
        self.checked.append((workload.name, sink, count))

    def span(self, source: str, began_s: float) -> Span | None:
        return None


def rig(cpu_s: dict[str, list[float]], wall_s: float = 4.0) -> Rig:
    return cast("Rig", FakeRig(cpu_s, wall_s))


def rows_of(table: Any) -> dict[tuple[str, str], dict[str, str]]:
    return {
        (row[0], row[1]): dict(zip(table.columns[2:], row[2:], strict=True)) for row in table.rows
    }


def loops(*, total: float = LOOP_SHAPE["total"]) -> dict[str, list[float]]:
    """CPU seconds by kind and workload, as on the machine for which the goals were set, except for
    `total`.
    """
    cpu = {**LOOP_SHAPE, "total": total}
    return {f"{kind} {name}": [cpu[name]] for name in LOOP_SHAPE for kind in ("loop", "tidegate")}


def test_cost_figure_is_the_full_run_minus_the_small_run() -> None:
    found = figure(rig({"tidegate total": [6.5]}), "tidegate", WORKLOADS["total"])
    assert found.cpu_per_million == pytest.approx(6.5)
    assert found.records_per_s == pytest.approx(250_000)
    assert found.pss_mb == 300  # of the large run, in which there is something to hold
    assert found.start_s == 1.5  # of the small one, which does nothing else
    assert found.sync_ms == [10, 20]


@pytest.mark.parametrize("kind", ["loop", "tidegate"])
@pytest.mark.parametrize("status", [0, 1])
def test_output_of_each_run_is_checked_unless_the_run_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, status: int
) -> None:
    def measure(
        command: list[str], folder: Path, environment: dict[str, str], brokers: list[int]
    ) -> Usage:
        assert brokers == [4711]
        (folder / "output.log").write_text("what it said\n")
        return Usage(status=status)

    monkeypatch.setattr("integration.bench.cost.measure", measure)
    unstarted = UnstartedRig(tmp_path)
    if status == 0:
        run = unstarted.once(kind, WORKLOADS["total"], "bench-in", COUNT, Pace(100))
        assert run.sync_ms == []
        assert unstarted.checked == [("total", "out", COUNT)]
    else:
        with pytest.raises(RuntimeError, match="total ended with status 1:\nwhat it said"):
            unstarted.once(kind, WORKLOADS["total"], "bench-in", COUNT, Pace(100))


def test_rate_is_nan_if_the_wall_times_of_two_runs_differ_too_little() -> None:
    found = figure(rig({"loop total": [6.5]}, wall_s=0.09), "loop", WORKLOADS["total"])
    assert math.isnan(found.records_per_s)
    assert found.cpu_per_million == pytest.approx(6.5)


def test_cost_table_shows_the_median_and_the_cheapest_of_the_rounds() -> None:
    cpu = {"loop total": [4.0, 5.0, 9.0], "tidegate total": [9.0, 6.0, 8.0]}
    (table, _), holds = measure_cost(rig(cpu), ["total"], 3)
    assert holds  # one workload has no proportions
    assert not table.whole
    row = rows_of(table)["total", "tidegate"]
    assert (row["CPU s/M"], row["x loop"], row["goal"]) == ("8.00", "1.60", "1.3")
    assert (row["least"], row["x least"]) == ("6.00", "1.50")
    assert (row["records/s"], row["tree MB"], row["to slot s"]) == ("250,000", "300", "1.5")
    assert rows_of(table)["total", "loop"]["x loop"] == ""


def test_bill_has_the_cpu_of_tree_and_broker_between_the_commits() -> None:
    cpu = {"loop total": [4.0, 5.0, 9.0], "tidegate total": [9.0, 6.0, 8.0]}
    (_, table), _ = measure_cost(rig(cpu), ["total"], 3)
    assert not table.whole
    loop, job = rows_of(table)["total", "loop"], rows_of(table)["total", "tidegate"]
    assert (loop["tree, CPU s/M"], loop["more than the slope"]) == ("5.10", "0.10")
    assert (loop["x loop"], loop["goal"], loop["broker goal"]) == ("", "", "")
    assert (job["tree, CPU s/M"], job["x loop"]) == ("8.10", "1.59")
    assert (job["more than the slope"], job["goal"]) == ("0.10", "6.83")  # 1.3 x 5.10 + 0.2
    assert (loop["broker, CPU s/M"], job["broker, CPU s/M"]) == ("2.55", "4.05")
    assert (job["broker x loop"], job["broker goal"]) == ("1.59", "1.1")


def test_bill_of_a_run_with_too_few_commits_is_unknown() -> None:
    fake = FakeRig({"loop windows": [4.0], "tidegate windows": [5.0]}, span_s=0.4)
    (_, table), _ = measure_cost(cast("Rig", fake), ["windows"], 1)
    for row in rows_of(table).values():
        assert (row["tree, CPU s/M"], row["broker, CPU s/M"]) == ("?", "?")
        assert row["x loop"] in {"", "?"}
        assert (row["goal"], row["broker goal"]) == ("", "")


def test_run_is_valid_if_its_loop_costs_have_the_known_proportions() -> None:
    (table, _), holds = measure_cost(rig(loops()), list(LOOP_SHAPE), 1)
    assert holds
    assert "VOID" not in table.note
    assert "The loops take 1.0 x" in table.note


def test_run_is_void_if_its_loop_costs_do_not_have_the_known_proportions() -> None:
    (table, _), holds = measure_cost(rig(loops(total=2 * LOOP_SHAPE["total"])), list(LOOP_SHAPE), 1)
    assert not holds
    assert "VOID" in table.note


def test_slowness_is_the_mean_ratio_of_loop_costs_to_the_reference_machine() -> None:
    twice = {name: 2 * usual for name, usual in LOOP_SHAPE.items()}
    assert slowness(twice) == pytest.approx(2.0)
    total = LOOP_SHAPE["total"]
    assert slowness({**LOOP_SHAPE, "total": 3 * total}) == pytest.approx(5 / 3)


def test_loop_cost_deviations_are_relative_to_the_mean_slowness() -> None:
    even = deviations({name: 2 * usual for name, usual in LOOP_SHAPE.items()})
    assert even == pytest.approx(dict.fromkeys(LOOP_SHAPE, 0.0))
    off = deviations({**LOOP_SHAPE, "total": 2 * LOOP_SHAPE["total"]})
    assert off == pytest.approx({"passthrough": -0.25, "transform": -0.25, "total": 0.5})
    assert max(map(abs, off.values())) > SHAPE_TOLERANCE


def test_interval_table_compares_rates_and_shows_the_synchronous_parts() -> None:
    workloads = ("passthrough", "total")
    cpu = {f"{k} {w}": [1.0] * 6 for k in ("loop", "tidegate") for w in workloads}
    fake = rig(cpu)
    rows = rows_of(measure_intervals(fake, 2))
    assert cast("FakeRig", fake).start_durations == [LONG, LONG, SHORT, SHORT, ALWAYS_SHORT] * 4
    always = "tidegate, also in a backlog"
    assert set(rows) == {(w, k) for w in workloads for k in ("loop", "tidegate", always)}
    assert rows["total", "tidegate"]["share"] == "80%"
    assert [row["goal"] for row in rows.values()] == ["", "85 %", ""] * 2
    row = rows["total", always]
    assert (row["records/s at 10 s"], row["at 100 ms"]) == ("250,000", "125,000")
    assert row["share"] == "50%"
    assert row["synchronous part, ms, at 10 s"] == "150, 200 of 4"
    assert row["synchronous part, ms, at 100 ms"] == "2, 2 of 4"
    assert rows["total", "loop"]["synchronous part, ms, at 10 s"] == ""


def test_synchronous_part_is_counted_once_for_each_reported_checkpoint() -> None:
    def report(last: dict[str, Any] | None) -> str:
        return json.dumps({"event": "report", "last_checkpoint": last})

    lines = [
        "a warning of a library",
        report(None),
        *[report({"id": "1-1", "sync_ms": 70})] * 2,
        report({"id": "1-3", "sync_ms": 4}),
        json.dumps({"event": "jobmanager_exited", "pid": 7, "status": 0}),
    ]
    assert synchronous_ms(lines) == [70, 4]


def test_exchange_table_shows_its_goal_only_for_a_struct_over_a_unix_socket() -> None:
    runs = [
        {"us per record": us, "sender": 0.2, "receiver": us - 0.2, "records per s": 400_000}
        for us in (0.9, 0.5, 0.7)
    ]
    table = exchange_table({("Struct", "unix"): runs, ("Struct", "tcp"): runs[:1]}, 3)
    rows = rows_of(table)
    assert rows["Struct", "unix"]["us a record"] == "0.70"
    assert rows["Struct", "unix"]["least"] == "0.50"
    assert rows["Struct", "unix"]["goal"] == "0.6"
    assert rows["Struct", "tcp"]["goal"] == ""


def test_cpu_time_of_a_called_part_is_subtracted_from_its_caller(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now_ns = 0

    class Sink:
        def write(self) -> None:
            nonlocal now_ns
            now_ns += 5

    class Task:
        def step(self) -> None:
            nonlocal now_ns
            now_ns += 100
            Sink().write()
            Sink().write()

    monkeypatch.setattr("integration.bench.cpu_breakdown.time.thread_time_ns", lambda: now_ns)
    clocks = Clocks()
    clocks.around(Sink, "write", "sink")
    clocks.around(Task, "step", "task")
    Task().step()
    Task().step()
    assert clocks.spent_ns == {"sink": 20, "task": 200}
    assert clocks.calls == {"sink": 4, "task": 2}


def test_cpu_budget_uses_the_cheapest_round_and_checks_every_output(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    costs = {"loop": [3.0, 2.0], "slot": [4.0, 5.0]}

    def run(_: Rig, kind: str, workload: str, sink: str) -> dict[str, Any]:
        cpu_us = costs[kind].pop(0)
        return {"cpu_us": cpu_us, "parts": {"decode": [cpu_us / 4, 1000], "all else": [1.0, 0]}}

    monkeypatch.setattr(cpu_breakdown, "_run", run)
    fake = CheckedRig(tmp_path)
    table = cpu_breakdown.measure_cpu(cast("Rig", fake), "total", 2)
    assert fake.checked == [("total", sink, COUNT) for sink in fake.made]
    assert len(fake.made) == 4
    assert "4.00 us a record, and the loop 2.00: 2.00 x" in table.note
    assert table.rows == [["decode", "1.000", "1,000", "1,001"], ["all else", "1.000", "", ""]]


def test_outputs_of_all_sink_settings_are_checked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cpu_breakdown, "_run", lambda *_: {"cpu_us": 4.0})
    fake = CheckedRig(tmp_path)
    table = cpu_breakdown.measure_settings(cast("Rig", fake), 2)
    assert len(table.rows) == len(cpu_breakdown.SINK_SETTINGS)
    assert fake.checked == [("transform", sink, COUNT) for sink in fake.made]
    assert len(fake.made) == 2 * len(cpu_breakdown.SINK_SETTINGS)


def test_cost_ratio_is_unknown_if_the_loop_time_is_not_positive() -> None:
    """A few thousand records take less than a tick."""
    assert (times(3.0, 1.5), times(1.0, 0.0), times(1.0, -0.1)) == ("2.00", "?", "?")
    assert times(math.nan, 1.5) == times(1.5, math.nan) == "?"
