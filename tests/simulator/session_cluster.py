"""A session cluster of a simulated run, and the service manager and orchestrator that run it.

The JobManager and each TaskManager have their own host. A process that exits is started again, as a
service manager does. A JobManager that does not answer is replaced, as an orchestrator does, which
sees only the silence of a host. Therefore two JobManagers may run at once, and the older one must
find out that it was replaced. Clients and TaskManagers know one address, which leads to the newest
JobManager.

A TaskManager that has lost its JobManager joins the next one (`serve_forever`), as in `bootstrap`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Final, NoReturn

from tests.simulator.rpc import service_address
from tidegate.config import Config
from tidegate.controlplane.client.client import Client
from tidegate.errors import ExternalError, RpcError
from tidegate.ports.clock import Clock
from tidegate.ports.processes import ExitStatus, Processes
from tidegate.ports.rpc import Rpc
from tidegate.ports.threads import Threads
from tidegate.protocol.messages import ListJobs

RESTART_S: Final = 1.0
WATCH_S: Final = 0.5
"""Time in seconds between two calls to the JobManager, and the timeout of each call."""
MISSES_MAX: Final = 3
"""Number of failed calls in a row after which the JobManager is replaced."""
HOST: Final = "host"
"""A part of the names of the processes that have their own host."""


class SessionCluster:
    """A session cluster that ends with the process that `processes` belongs to.

    The callback for an exit may wait, because it runs in a thread that has no other work.
    """

    def __init__(
        self, processes: Processes, rpc: Rpc, clock: Clock, threads: Threads, config: Config
    ) -> None:
        self._processes, self._rpc, self._clock = processes, rpc, clock
        self._address = service_address(config.jobmanager.port)
        self._newest = 0
        """Number of the newest JobManager."""
        self._start_jobmanager()
        for number in range(config.cluster.task_managers):
            self._start_taskmanager(number, config.taskmanager.slots)
        threads.start(self._watch, name="orchestrator")

    def client(self) -> Client:
        """Return a client of the newest JobManager."""
        return Client(self._rpc, self._clock, self._address)

    def _start_jobmanager(self) -> None:
        number = self._newest = self._newest + 1

        def exited(_status: ExitStatus) -> None:
            self._clock.sleep(RESTART_S)
            if number == self._newest:
                self._start_jobmanager()

        self._start("jobmanager", {}, f"jobmanager-{HOST}-{number}", exited)

    def _start_taskmanager(self, number: int, slots: int) -> None:
        def exited(_status: ExitStatus) -> None:
            self._clock.sleep(RESTART_S)
            self._start_taskmanager(number, slots)

        arguments = {"slots": slots, "jobmanager_address": self._address}
        self._start("standalone taskmanager", arguments, f"taskmanager-{HOST}-{number}", exited)

    def _start(
        self,
        role: str,
        arguments: dict[str, object],
        name: str,
        exited: Callable[[ExitStatus], None],
    ) -> None:
        while True:
            try:
                self._processes.spawn(role, arguments, log=f"{name}.log", on_exit=exited)
            except ExternalError:  # the host has no room for a process at present
                self._clock.sleep(RESTART_S)
            else:
                return

    def _watch(self) -> NoReturn:
        misses = 0
        while True:
            self._clock.sleep(WATCH_S)
            # A new connection each time: an old one may lead to another JobManager than the one
            # that new clients and TaskManagers find behind the address.
            client = self._rpc.connect(self._address)
            try:
                client.call(ListJobs(), timeout_s=WATCH_S)
            except RpcError:
                misses += 1
            else:
                misses = 0
            client.close()
            if misses >= MISSES_MAX:
                misses = 0
                self._start_jobmanager()


def serve_forever(serve: Callable[[], object], clock: Clock) -> NoReturn:
    """Run the main function of a standalone TaskManager: serve JobManagers in an endless loop."""
    while True:
        with contextlib.suppress(RpcError):  # the JobManager is not reachable yet
            serve()
        clock.sleep(RESTART_S)
