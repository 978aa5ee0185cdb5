"""A small `make demo`: four kills with a recovery, exact output, and no process left behind."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from integration.support.running import alive

pytestmark = pytest.mark.slow

DEMO = [sys.executable, "-m", "integration.demo.totals"]


def processes_in(folder: Path) -> list[int]:
    """Return the processes that work in a folder or below, as all processes of the demo do."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                place = (entry / "cwd").readlink()
            except OSError:
                continue
            if place.is_relative_to(folder) and alive(int(entry.name)):
                found.append(int(entry.name))
    return found


@pytest.mark.timeout(420)
def test_demo_output_is_exact_after_its_kills(tmp_path: Path) -> None:
    # The orders last two minutes. Even on a busy machine the last kill comes before their end.
    words = ["--rate", "2000", "--records", "240000", "--directory", str(tmp_path)]
    done = subprocess.run([*DEMO, *words], check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    table = re.findall(r"^(\S.*?)  +\d+ +-9 \(SIGKILL\).* \d+\.\d s$", done.stdout, re.MULTILINE)
    assert table == ["slot process", "TaskManager", "JobMaster", "JobManager"], done.stdout
    assert "verdict      exact: 240,000 orders" in done.stdout
    assert processes_in(tmp_path) == []


@pytest.mark.timeout(120)
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_an_ended_demo_leaves_no_process_behind(tmp_path: Path, number: signal.Signals) -> None:
    words = ["--rate", "1000", "--records", "100000", "--directory", str(tmp_path)]
    with subprocess.Popen([*DEMO, *words], stdout=subprocess.PIPE, text=True) as demo:
        assert demo.stdout is not None
        for line in demo.stdout:
            if line.startswith("the job runs"):
                break
        begun = processes_in(tmp_path)
        assert len(begun) > 8, begun
        os.kill(demo.pid, number)
        assert demo.wait(60) == (130 if number is signal.SIGINT else -number)
    end_s = time.monotonic() + 10
    while processes_in(tmp_path) and time.monotonic() < end_s:
        time.sleep(0.1)
    assert processes_in(tmp_path) == []
