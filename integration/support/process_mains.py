"""Real processes that behave as `tests.contracts.behaviour` says.

The processes import this module, and so does the test that starts them. The role of the JobMaster
represents any child process, because a test can give this role a main of its own. The job's name is
the name of the behaviour, and the JobManager's address is the folder for logs.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

from tests.contracts.behaviour import behave
from tidegate.bootstrap import ClusterSpec, processes
from tidegate.config_load import load
from tidegate.drivers.process.prestart import Prestarted
from tidegate.ids import JobName, LeaderEpoch, TaskManagerId
from tidegate.ports.drivers import Drivers
from tidegate.ports.processes import Child, ExitStatus, ForkServer, ForkServerEvent, Processes
from tidegate.protocol.messages import StartSlot

ROOT = Path(__file__).parents[2]


class OsStarter:
    """A starter of real processes with the real bootstrap. Their logs are below `folder`. With
    `early`, each process is prestarted.
    """

    def __init__(self, folder: Path, *, early: bool = False) -> None:
        self._folder, self._early = folder, early
        config = load(folder=folder, command_line={"logs.dir": str(folder / "logs")})
        here = "integration.support.process_mains"
        self._common = ClusterSpec(
            config=config,
            cluster="test",
            role_mains={"slot": f"{here}:slot", "jobmaster": f"{here}:child"},
            path=(str(ROOT),),
        )

    def spawn(
        self,
        does: str,
        on_exit: Callable[[ExitStatus], None],
        on_ready: Callable[[dict[str, Any]], None] | None = None,
    ) -> Child:
        arguments = {
            "job": does,
            "jobmanager_address": str(self._folder),
            "epoch": 1,
        }
        return self.processes("jobmaster", announces=on_ready is not None).spawn(
            "jobmaster", arguments, log="children.log", on_exit=on_exit, on_ready=on_ready
        )

    def start_fork_server(self, listener: Callable[[ForkServerEvent], None]) -> ForkServer:
        arguments = {"task_manager": "tm-1", "task_manager_pid": os.getpid()}
        return self.processes("fork-server").start_fork_server(
            arguments, log="fork_server.log", listener=listener
        )

    def processes(self, role: str, *, announces: bool = False) -> Processes:
        """Make a `Processes` that can start one process of a role."""
        early = {role: Prestarted(role, announces=announces)} if self._early else {}
        return processes(self._common, early)


class OsProcessUnderTest:
    """The current process, as the contract sees it."""

    def __init__(self, folder: Path) -> None:
        self.pid = os.getpid()
        self._folder = folder

    def announce(self, facts: dict[str, Any]) -> None:
        sys.stdout.write(json.dumps(facts) + "\n")
        sys.stdout.flush()

    def wait(self) -> NoReturn:
        while True:
            time.sleep(60)

    def starter(self) -> OsStarter:
        return OsStarter(self._folder)


def child(does: JobName, folder: str, _epoch: LeaderEpoch, _drivers: Drivers) -> int:
    """Run a child process. `ClusterSpec.role_mains` names this function."""
    return _behave(does, OsProcessUnderTest(Path(folder)))


def slot(start: StartSlot, _drivers: Drivers, _tm: TaskManagerId, _tm_pid: int) -> int:
    """Run a slot process. `ClusterSpec.role_mains` names this function."""
    return _behave(str(start.settings["does"]), OsProcessUnderTest(Path.cwd()))


def _behave(does: str, process: OsProcessUnderTest) -> int:
    """Behave as the contract says, or as user code that starts a process and names it in a file, or
    that changes its outputs.
    """
    word, _, file = does.partition(" ")
    if word == "replace-outputs":
        sys.stdout = sys.stderr = None  # as user code may do
        return 0
    if word == "close-outputs":
        sys.stdout.close()
        sys.stderr.close()
        return 0
    if word == "leave":
        Path(f"{file}.new").write_text(f"{subprocess.Popen(['sleep', '600']).pid}")
        Path(f"{file}.new").rename(file)
        process.wait()
    if word == "parent-of-leave":
        process.starter().spawn(f"leave {file}", lambda _status: None)
        process.wait()
    return behave(does, process)
