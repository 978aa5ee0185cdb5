"""What the benchmark measures of a tree of processes: all of them count, in CPU and in memory."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from integration.bench import process_tree
from integration.bench.process_tree import Sample, Usage, measure

HELD = 64 << 20
PARENT = """
    import subprocess, sys
    held = b"x" * %(held)d
    children = [subprocess.Popen([sys.executable, "-c", sys.argv[1]]) for _ in range(2)]
    sys.exit(sum(child.wait() for child in children))
"""
CHILD = """
    import time
    held = b"x" * %(held)d
    while time.process_time() < 0.5:
        pass
    end = time.monotonic() + 1.0
    while time.monotonic() < end:
        time.sleep(0.1)
"""

WAITING = """
import sys, time
while int(open(f"/proc/{sys.argv[1]}/stat").read().split()[13]) < 50:  # ticks: half a second
    time.sleep(0.1)
time.sleep(0.3)
"""
"""Waits until another process has used half a second of CPU, and until that is sampled."""


def test_memory_and_cpu_are_summed_over_the_process_tree(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process_tree, "MEMORY_INTERVAL_S", 0.2)
    parent, child = (textwrap.dedent(text) % {"held": HELD} for text in (PARENT, CHILD))
    usage = measure([sys.executable, "-c", parent, child], tmp_path, dict(os.environ))
    assert usage.status == 0, (tmp_path / "output.log").read_text()
    assert 3 * HELD < usage.pss_max < 4 * HELD
    assert 1.0 <= usage.cpu_s < 3.0
    assert usage.wall_s > 1.5


def test_failed_command_is_measured_with_its_status_and_output(tmp_path: Path) -> None:
    command = [sys.executable, "-c", "import sys; sys.exit('broken')"]
    usage = measure(command, tmp_path, dict(os.environ))
    assert usage.status == 1
    assert (tmp_path / "output.log").read_text() == "broken\n"


def test_cpu_between_two_times_is_on_the_line_between_the_samples() -> None:
    usage = Usage(samples=[Sample(10.0, 1.0, 5.0), Sample(12.0, 2.0, 9.0), Sample(13.0, 4.0, 9.5)])
    assert usage.between(11.0, 12.5) == pytest.approx((1.5, 2.25))
    assert usage.between(12.0, 13.0) == pytest.approx((2.0, 0.5))
    assert usage.between(1.0, 99.0) == pytest.approx((3.0, 4.5))


def test_cpu_of_a_broker_is_not_that_of_the_tree(tmp_path: Path) -> None:
    busy = "import time\nend = time.monotonic() + 60\nwhile time.monotonic() < end: pass"
    broker = subprocess.Popen([sys.executable, "-c", busy])
    try:
        command = [sys.executable, "-c", WAITING, str(broker.pid)]
        usage = measure(command, tmp_path, dict(os.environ), [broker.pid])
    finally:
        broker.kill()
        broker.wait()
    first, last = usage.samples[0], usage.samples[-1]
    tree_s, brokers_s = usage.between(first.at_s, last.at_s)
    assert brokers_s > 0.25
    assert tree_s < 0.2
    assert usage.cpu_s < 0.2
