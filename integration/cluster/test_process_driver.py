"""Real processes fulfil the contract of processes.

Further tests cover the operating system: refused starts and prestarted processes.
`test_processes.py` kills the processes of whole clusters.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from integration.support.process_mains import OsStarter
from integration.support.resource_usage import kind_of
from integration.support.user_project import Folder
from tests.contracts.behaviour import start_slot
from tests.contracts.processes import ProcessesContract
from tests.contracts.surroundings import ContractEnvironment
from tidegate.drivers.kafka.embedded import EmbeddedKafka
from tidegate.drivers.process.prestart import Prestarted
from tidegate.errors import ExternalError
from tidegate.ports.processes import (
    Child,
    ExitStatus,
    ForkServer,
    ForkServerEvent,
    SlotEnded,
    SlotForked,
)

RECVMSG = {"47", "212"}
"""The numbers of the system call `recvmsg` on x86-64 and on arm64."""


class OsWorld:
    """A world of the contract that starts real processes and ends them."""

    def __init__(self, folder: Path, *, early: bool = False) -> None:
        self.environment = ContractEnvironment()
        self._starter = OsStarter(folder, early=early)
        self._children: list[Child] = []
        self._fork_servers: list[ForkServer] = []
        #: Processes that this world did not start, for example the brokers of the test session.
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

    def start_fork_server(self, listener: Callable[[ForkServerEvent], None]) -> ForkServer:
        fork_server = self._starter.start_fork_server(listener)
        self._fork_servers.append(fork_server)
        return fork_server

    def alive(self, pid: int) -> bool:
        try:  # a dead orphan stays a zombie until init reaps it
            return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
        except psutil.NoSuchProcess:
            return False

    def kill(self, pid: int) -> None:
        os.kill(pid, signal.SIGKILL)

    def close(self) -> None:
        mine = psutil.Process().children(recursive=True)
        for fork_server in self._fork_servers:
            fork_server.close()
        for child in self._children:
            child.kill()
        own = [child.pid for child in mine if child.pid not in self._others]
        self.environment.until(lambda: not any(map(self.alive, own)))


class TestOsProcesses(ProcessesContract):
    @pytest.fixture
    def world(self, tmp_path: Path) -> Iterator[OsWorld]:
        world = OsWorld(tmp_path)
        yield world
        world.close()

    def test_error_of_a_process_that_cannot_be_started_gives_the_reason(
        self, world: OsWorld, tmp_path: Path
    ) -> None:
        (tmp_path / "logs").write_text("no folder")
        with pytest.raises(ExternalError, match=r"Cannot start the jobmaster process: .*logs"):
            world.spawn("wait", lambda _status: None)

    @pytest.mark.parametrize(
        "end", ["killed", "without its parent", "slot killed", "server closed"]
    )
    def test_process_that_user_code_has_started_ends_with_its_own(
        self, world: OsWorld, tmp_path: Path, end: str
    ) -> None:
        file = tmp_path / "left"
        if end in ("killed", "without its parent"):
            word = "leave" if end == "killed" else "parent-of-leave"
            killed = world.spawn(f"{word} {file}", lambda _status: None).pid
        else:
            slots: list[int] = []
            server = world.start_fork_server(
                lambda event: slots.append(event.pid) if isinstance(event, SlotForked) else None
            )
            server.fork(start_slot(0, f"leave {file}"))
            world.environment.until(lambda: bool(slots))
            (killed,) = slots
        world.environment.until(file.exists)
        left = int(file.read_text())
        assert world.alive(left)
        if end == "server closed":
            server.close()
        else:
            world.kill(killed)
        world.environment.until(lambda: not world.alive(left))

    @pytest.mark.parametrize("does", ["replace-outputs", "close-outputs"])
    def test_slot_whose_user_code_changes_its_outputs_ends_with_its_own_status(
        self, world: OsWorld, does: str
    ) -> None:
        statuses: list[ExitStatus] = []
        server = world.start_fork_server(
            lambda event: statuses.append(event.status) if isinstance(event, SlotEnded) else None
        )
        server.fork(start_slot(0, does))
        world.environment.until(lambda: bool(statuses))
        assert statuses == [0]


class TestPrestartedProcesses(ProcessesContract):
    """The contract for processes that were started before their arguments were known."""

    @pytest.fixture
    def world(self, tmp_path: Path) -> Iterator[OsWorld]:
        world = OsWorld(tmp_path, early=True)
        yield world
        world.close()

    def test_prestarted_process_writes_its_error_to_its_log(
        self, world: OsWorld, tmp_path: Path
    ) -> None:
        exits: list[ExitStatus] = []
        world.spawn("raise", exits.append)
        world.environment.until(lambda: bool(exits))
        assert "the jobmaster process failed" in (tmp_path / "logs" / "children.log").read_text()


@pytest.mark.parametrize("role", ["jobmanager", "taskmanager", "fork-server", "jobmaster"])
def test_prestarted_process_has_one_thread_and_no_open_file_or_connection(role: str) -> None:
    with Prestarted(role) as early:
        process = psutil.Process(early.pid)
        until_it_waits(process)
        assert process.num_threads() == 1
        assert process.net_connections() == []
        assert process.open_files() == []


@pytest.mark.parametrize(
    ("role", "forks"),
    [("jobmanager", ["fork-server", "jobmaster", "taskmanager"]), ("taskmanager", ["fork-server"])],
)
def test_forks_of_a_prestarted_process_have_one_thread_and_no_descriptor_of_their_parent(
    role: str, forks: list[str]
) -> None:
    with Prestarted(role) as early:
        process = psutil.Process(early.pid)
        until_it_waits(process)
        ContractEnvironment().until(
            lambda: sorted(map(str, map(kind_of, process.children(recursive=True)))) == forks
        )
        for each in process.children(recursive=True):
            until_it_waits(each)
            assert each.num_threads() == 1
            assert each.num_fds() == 3 + len(each.children()), "more than a socket to each child"
            assert os.getsid(each.pid) == each.pid, "it would receive Ctrl-C"


def test_a_process_whose_environment_starts_a_thread_forks_no_children(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A tracer or a debugger does so. The children are then started later, as programs."""
    thread = "import threading, time\nthreading.Thread(target=time.sleep, args=(60,), daemon=True)"
    (tmp_path / "sitecustomize.py").write_text(f"{thread}.start()\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with Prestarted("jobmanager") as early:
        process = psutil.Process(early.pid)
        until_it_waits(process)
        assert process.num_threads() == 2
        assert process.children() == []


@pytest.mark.kafka
def test_job_runs_where_the_environment_starts_a_thread_in_every_process(
    kafka: EmbeddedKafka, tmp_path: Path
) -> None:
    """Its slots are programs. One is killed, and another one takes its place."""
    tracer = tmp_path / "tracer"
    tracer.mkdir()
    (tracer / "sitecustomize.py").write_text(f"""
import os, threading, time
threading.Thread(target=time.sleep, args=(900,), daemon=True).start()
open(f"{tracer}/{{os.getpid()}}", "w").close()
""")
    folder = Folder.make(tmp_path, kafka.bootstrap)
    folder.orders(30)
    environment = {"PYTHONPATH": str(tracer)}
    with folder.started(bounded=False, environment=environment) as run:
        run.until(lambda: len(folder.read("totals")) == 30, "at the end of its input", 60)
        assert all((tracer / str(slot)).exists() for slot in run.slots())
        run.kill_slots()
        folder.orders(30, first=30)
        run.until(lambda: len(folder.read("totals")) == 60, "at the end of its input", 60)
        assert run.stop().code == 0
    folder.assert_exact(60)


@pytest.mark.parametrize("role", ["jobmanager", "jobmaster"])
def test_a_prestarted_process_ends_when_its_parent_ends_first(role: str) -> None:
    script = f"""
import os, time
from tidegate.drivers.process.prestart import Prestarted
early = Prestarted({role!r})
print(early.pid, flush=True)
time.sleep(60)
"""
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        process = psutil.Process(int(parent.stdout.readline()))
        until_it_waits(process)
        below = [process, *process.children(recursive=True)]
        parent.kill()
    _, alive = psutil.wait_procs(below, timeout=30)
    assert alive == []


def test_a_prestarted_process_that_died_is_started_again(tmp_path: Path) -> None:
    starter = OsStarter(tmp_path, early=True)
    environment = ContractEnvironment()
    exits: list[ExitStatus] = []
    others = set(psutil.Process().children())  # brokers too; process ids are not ordered by age
    started = starter.processes("jobmaster")
    (early,) = set(psutil.Process().children()) - others
    early.kill()
    environment.until(lambda: early.status() == psutil.STATUS_ZOMBIE)
    arguments = {"job": "exit 7", "jobmanager_address": str(tmp_path), "epoch": 1}
    child = started.spawn("jobmaster", arguments, log="children.log", on_exit=exits.append)
    assert child.pid != early.pid
    environment.until(lambda: bool(exits))
    assert exits == [7]


def until_it_waits(process: psutil.Process) -> None:
    """Wait until the process has finished its imports and sleeps in the read of its arguments."""
    parent_pipe = Path(f"/proc/{process.pid}/syscall")
    end_s = time.monotonic() + 30
    while time.monotonic() < end_s:
        number, descriptor = [*parent_pipe.read_text().split(), "", ""][:2]
        if number in RECVMSG and descriptor == "0x0":
            return
        time.sleep(0.02)
    raise TimeoutError("it does not wait for its arguments")
