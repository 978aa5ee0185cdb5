"""What the benchmark measures of a tree of processes: all of them count, in CPU and in memory."""

from __future__ import annotations

import os
import sys
import textwrap
from pathlib import Path

import pytest

from integration.bench import process_tree
from integration.bench.process_tree import measure

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
