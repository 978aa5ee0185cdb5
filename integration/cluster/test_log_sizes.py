"""The logs of a cluster's processes stay below `logs.max_file_size`, and have the newest lines.

Each role is a real process of the process driver, with a main that floods its log in every way: by
the log, by its standard streams, and by native writes to the descriptors.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from integration.support.stub_cluster import ROOT, SOON_S
from tidegate.bootstrap import ClusterSpec, processes
from tidegate.config_load import load
from tidegate.drivers.process.rotating_output import rotated_name

pytestmark = pytest.mark.slow

MAX = 4096
LINES = 300
ROLES: dict[str, dict[str, Any]] = {
    "jobmanager": {},
    "jobmaster": {"job": "totals", "jobmanager_address": "", "epoch": 1},
    "taskmanager": {"id": "tm-1-1", "jobmanager_address": "", "epoch": 1, "slots": 1},
}


def flood(*_given: object, **_named: object) -> int:
    """Stand in for the main of a role: write far more than the limit."""
    log = logging.getLogger("flood")
    for number in range(LINES):
        log.warning("line %s of the log, which is as long as a usual one", number)
        print("a line of a library on standard output", flush=True)
        os.write(1, b"native on 1\n")
        os.write(2, b"native on 2\n")
    log.warning("the newest line")
    os.write(1, b"native, newest, on 1\n")
    return 0


def log_only(*_given: object, **_named: object) -> int:
    """Stand in for the main of a role: write far more than the limit into the log."""
    for number in range(LINES):
        logging.getLogger("flood").warning("line %s", number)
    return 0


def run(role: str, folder: Path, log: str, main: Callable[..., int]) -> int:
    """Run a role with another main to its end, and return its exit status."""
    config = load(
        folder=folder,
        command_line={"logs.dir": str(folder), "logs.max_file_size": f"{MAX // 1024} KiB"},
    )
    mains = {role: f"{__name__}:{main.__name__}"}
    spec = ClusterSpec(config=config, cluster="test", role_mains=mains, path=(str(ROOT),))
    ended = threading.Event()
    statuses: list[int] = []

    def exited(status: int) -> None:
        statuses.append(status)
        ended.set()

    processes(spec).spawn(role, ROLES[role], log=log, on_exit=exited)
    assert ended.wait(SOON_S)
    return statuses[0]


@pytest.mark.parametrize("role", ROLES)
def test_log_of_a_role_stays_below_the_limit_and_keeps_the_newest_lines(
    role: str, tmp_path: Path
) -> None:
    log = tmp_path / f"{role}.log"
    log.write_text("of an earlier process\n" * MAX)
    assert run(role, tmp_path, log.name, flood) == 0
    older = rotated_name(log)
    text = older.read_text() + log.read_text()
    assert text.endswith('the newest line"\nnative, newest, on 1\n'), text[-300:]
    assert f"line {LINES - 1} of the log" in text
    assert set(tmp_path.iterdir()) == {log, older}
    between_two_lines = 100  # what native code writes then has no limit
    assert max(log.stat().st_size, older.stat().st_size) < MAX + between_two_lines


def test_full_disk_of_the_log_ends_no_process(tmp_path: Path) -> None:
    log = tmp_path / "jobmaster.log"
    log.symlink_to("/dev/full")
    assert run("jobmaster", tmp_path, log.name, log_only) == 0
