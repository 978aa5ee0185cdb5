"""A small `make bench`: one workload on a real broker. It checks the output and keeps the page."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from integration.bench.page import PAGE

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
    rows = re.findall(r"^total +(loop|tidegate) +-?\d+\.\d\d ", done.stdout, re.MULTILINE)
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
    assert [table.split()[0] for table in tables] == ["passthrough", "transform", "total"]
    for table in tables:
        assert {"consume", "produce", "checkpoint: sink"} <= set(
            re.findall(r"^(\w.*?)  +\d+\.\d{3} +\d", table, re.MULTILINE)
        )
    assert "snapshot: what to save" in tables[2]
