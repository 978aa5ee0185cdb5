"""Starts that the operating system refuses: no process id is left on the host for some seconds.

The kernel refuses the starts: the run is in a control group that limits process ids, and the test
sets the limit below the present number. A process that died cannot be started again, and no thread
can be started either. When the test removes the limit, the job continues by itself. Every total is
then there once, in order.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from integration.support.resource_usage import kind_of
from integration.support.user_project import Folder, Run
from tidegate.drivers.kafka.embedded import EmbeddedKafka

pytestmark = [pytest.mark.slow, pytest.mark.kafka, pytest.mark.timeout(180)]

GROUPS = Path("/sys/fs/cgroup/pids")
REFUSED_S = 9.0
"""The time without process ids, in seconds. It is longer than five tries of a start took in an
earlier version.
"""


class ProcessIds:
    """The control group that limits the processes and threads of a run."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def take(self, run: Run) -> None:
        """Move a run into the group. The processes that it starts from now on belong to it too."""
        self._procs().write_text(str(run.process.pid))

    def exhaust(self) -> None:
        """Allow no further process or thread, even if another one ends."""
        (self._folder / "pids.max").write_text("1")

    def free(self) -> None:
        (self._folder / "pids.max").write_text("max")

    def _procs(self) -> Path:
        return self._folder / "cgroup.procs"


@pytest.fixture
def process_ids() -> Iterator[ProcessIds]:
    folder = GROUPS / f"tidegate-test-{os.getpid()}"
    try:
        folder.mkdir()
    except OSError as error:
        pytest.skip(f"no control group of process ids can be made here: {error}")
    yield ProcessIds(folder)
    end_s = time.monotonic() + 10
    while True:
        try:
            folder.rmdir()
        except OSError:  # a process of the group is not reaped yet
            if time.monotonic() > end_s:
                raise
            time.sleep(0.1)
        else:
            return


def process_of(run: Run, role: str) -> psutil.Process:
    for process in psutil.Process(run.process.pid).children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):
            if kind_of(process) == role:
                return process
    raise AssertionError(f"no {role} runs")


@pytest.mark.parametrize("role", ["slot", "taskmanager", "jobmaster", "jobmanager"])
def test_job_waits_and_recovers_when_the_os_refuses_to_start_a_process(
    kafka: EmbeddedKafka, tmp_path: Path, process_ids: ProcessIds, role: str
) -> None:
    folder = Folder.make(tmp_path, kafka.bootstrap)
    with folder.started(bounded=False) as run:
        process_ids.take(run)
        folder.orders(30)
        run.until(lambda: len(folder.read("totals")) == 30, "at the end of its input")
        pid = run.slots()[0] if role == "slot" else process_of(run, role).pid
        fork_server = process_of(run, "fork-server").pid
        process_ids.exhaust()
        os.kill(pid, signal.SIGKILL)
        folder.orders(30, first=30)
        time.sleep(REFUSED_S)
        assert len(folder.read("totals")) == 30, "it was not refused"
        process_ids.free()
        run.until(lambda: len(folder.read("totals")) == 60, "at the end of its input", 60)
        if role == "slot":
            assert process_of(run, "fork-server").pid == fork_server, (
                "a refused fork ended its TaskManager"
            )
        assert run.stop().code == 0
    folder.assert_exact(60)
