"""Real processes keep the contract; and what is the operating system's: refusals, other processes.

`test_processes.py` kills whole clusters of them.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from integration.process_mains import OsStarter
from tests.contracts.processes import ProcessesContract
from tests.contracts.surroundings import Surroundings
from tidegate.errors import ExternalError
from tidegate.ports.processes import Child, ExitStatus, Zygote, ZygoteEvent


class OsWorld:
    """Starts real processes and ends them."""

    def __init__(self, folder: Path) -> None:
        self.around = Surroundings()
        self._starter = OsStarter(folder)
        self._children: list[Child] = []
        self._zygotes: list[Zygote] = []
        #: The brokers of the test session, for one, are no matter of this world.
        self._others = {child.pid for child in psutil.Process().children(recursive=True)}

    def spawn(
        self,
        does: str,
        on_exit: Callable[[ExitStatus], None],
        on_ready: Callable[[dict[str, Any]], None] | None = None,
    ) -> Child:
        child = self._starter.spawn(does, on_exit, on_ready)
        self._children.append(child)
        return child

    def start_zygote(self, listener: Callable[[ZygoteEvent], None]) -> Zygote:
        zygote = self._starter.start_zygote(listener)
        self._zygotes.append(zygote)
        return zygote

    def alive(self, pid: int) -> bool:
        try:  # a zombie is an orphan's body, until init takes it
            return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
        except psutil.NoSuchProcess:
            return False

    def kill(self, pid: int) -> None:
        os.kill(pid, signal.SIGKILL)

    def close(self) -> None:
        mine = psutil.Process().children(recursive=True)
        for zygote in self._zygotes:
            zygote.close()
        for child in self._children:
            child.kill()
        own = [child.pid for child in mine if child.pid not in self._others]
        self.around.until(lambda: not any(map(self.alive, own)))


class TestOsProcesses(ProcessesContract):
    @pytest.fixture
    def world(self, tmp_path: Path) -> Iterator[OsWorld]:
        world = OsWorld(tmp_path)
        yield world
        world.close()

    def test_a_process_that_cannot_be_started_is_an_error_that_says_why(
        self, world: OsWorld, tmp_path: Path
    ) -> None:
        (tmp_path / "logs").write_text("no folder")
        with pytest.raises(ExternalError, match=r"Cannot start the jobmaster process: .*logs"):
            world.spawn("wait", lambda _status: None)
