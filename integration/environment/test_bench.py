"""A small `make bench`: one workload on a real broker. It checks the output and keeps the page."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from integration.bench.cost import KINDS, Pace, Rig
from integration.bench.page import PAGE
from integration.bench.workloads import WORKLOADS
from tidegate.drivers.kafka.embedded import EmbeddedKafka

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
BENCH = [sys.executable, "-m", "integration.bench", "--rounds", "1", "--no-page"]


@pytest.mark.timeout(180)
def test_small_bench_measures_loop_and_job_and_does_not_change_the_page() -> None:
    before = PAGE.read_bytes()
    words = ["--records", "5000", "--only", "total"]
    done = subprocess.run(
        [*BENCH, *words], check=False, capture_output=True, text=True, cwd=ROOT, timeout=170
    )
    assert done.returncode == 0, done.stdout + done.stderr
    slope, bill = done.stdout.split("\nCost between the first and the last commit\n")
    for table in (slope, bill):  # a run this short has no time between its commits, so it has "?"
        rows = re.findall(r"^total +(loop|tidegate) +(?:-?\d+\.\d\d|\?) ", table, re.MULTILINE)
        assert rows == ["loop", "tidegate"], done.stdout
    assert re.search(r"^The benchmark took \d+ s\.$", done.stdout, re.MULTILINE), done.stdout
    assert PAGE.name not in done.stdout
    assert PAGE.read_bytes() == before


@pytest.mark.timeout(180)
def test_small_budget_bench_lists_the_costs_of_a_slot() -> None:
    words = ["--records", "5000", "--only", "budget"]
    done = subprocess.run(
        [*BENCH, *words], check=False, capture_output=True, text=True, cwd=ROOT, timeout=170
    )
    assert done.returncode == 0, done.stdout + done.stderr
    tables = done.stdout.split("Budget: ")[1:]
    measured = ["passthrough", "transform", "total", "tumbling", "sessions"]
    assert [table.split()[0] for table in tables] == measured
    for table in tables:
        assert {"consume", "produce", "checkpoint: sink"} <= set(
            re.findall(r"^(\w.*?)  +\d+\.\d{3} +\d", table, re.MULTILINE)
        )
    assert "snapshot: what to save" in tables[2]


@pytest.mark.timeout(180)
def test_small_bench_counts_the_requests_of_loop_job_and_idle_job() -> None:
    words = ["--records", "5000", "--only", "requests"]
    done = subprocess.run(
        [*BENCH, *words], check=False, capture_output=True, text=True, cwd=ROOT, timeout=170
    )
    assert done.returncode == 0, done.stdout + done.stderr
    of_runs, idle = done.stdout.split("\nRequests to the broker from an idle job\n")
    for api in ("PRODUCE", "FETCH", "END_TXN", "all requests"):
        found = re.search(rf"^{api} +([\d,]+) +([\d,]+) +([\d,]+) +([\d,]+)", of_runs, re.MULTILINE)
        assert found is not None, done.stdout
        assert "0" not in found.groups(), found
    # A slot commits its offsets with each checkpoint, so more often with the shorter interval, if
    # checkpoints come as often while the job is idle.
    commits = re.search(r"^OFFSET_COMMIT +([\d.]+) +([\d.]+) +([\d.]+)", idle, re.MULTILINE)
    assert commits is not None, done.stdout
    each_second, rarer, often = map(float, commits.groups())
    assert each_second > 0, done.stdout
    assert rarer < often / 2, done.stdout


@pytest.mark.timeout(180)
def test_commits_of_loop_and_job_are_found_in_the_offsets_that_they_commit(tmp_path: Path) -> None:
    """The checkpoints and commits come often, because the runs are short."""
    count, pace = 60_000, Pace(100, during_backlog_ms=0)
    with EmbeddedKafka.start(directory=tmp_path / "kafka", owned=True) as broker:
        rig = Rig(broker.bootstrap, tmp_path, count, broker.pids)
        for kind in KINDS:
            run = rig.once(kind, WORKLOADS["total"], "bench-in", count, pace)
            assert run.span is not None, kind
            assert 0 < run.span.records < count, kind  # the first commit has records too
            tree_s, broker_s = run.usage.between(run.span.first_s, run.span.last_s)
            assert 0 < tree_s < run.usage.samples[-1].tree_s, kind
            assert 0 < broker_s < run.usage.samples[-1].brokers_s, kind


@pytest.mark.timeout(180)
def test_two_versions_of_the_code_are_compared_at_the_same_time() -> None:
    words = ["integration.bench.two_trees", str(ROOT), "--records", "20000", "--rounds", "1"]
    done = subprocess.run(
        [sys.executable, "-m", *words],
        check=False,
        capture_output=True,
        text=True,
        cwd=ROOT,
        timeout=170,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    found = re.search(r"^([\d.]+) -> ([\d.]+) us a record: ([\d.]+) x$", done.stdout, re.MULTILINE)
    assert found is not None, done.stdout
    before, after, ratio = map(float, found.groups())
    assert ratio == pytest.approx(after / before, abs=0.01)
    assert f"total: median {ratio:.3f} x the cost of {ROOT}" in done.stdout


def test_comparison_with_a_folder_without_the_code_is_refused(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "integration.bench.two_trees", str(tmp_path)],
        check=False,
        capture_output=True,
        text=True,
        cwd=ROOT,
    )
    assert done.returncode == 2
    assert f"{tmp_path} has no integration/bench/pipelines.py" in done.stderr
