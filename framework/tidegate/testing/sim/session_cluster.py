"""A standing cluster of a simulated run, and whoever looks after it.

JobManager and TaskManagers are hosts of their own. What dies is started again, as a service manager
does it; a JobManager that does not answer is replaced, as an orchestrator does it that sees no more
of a host than its silence: so two may live at once, and the one that stood still must find out.
Clients and TaskManagers know one address, behind which the newest JobManager is.

A TaskManager that has lost its JobManager joins the next one (`rejoining`), as in `bootstrap`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Final, NoReturn

from tidegate.config import Config
from tidegate.controlplane.client.client import Client
from tidegate.errors import ExternalError, RpcError
from tidegate.ports.clock import Clock
from tidegate.ports.processes import ExitStatus, Processes
from tidegate.ports.rpc import Rpc
from tidegate.ports.threads import Threads
from tidegate.protocol.messages import ListJobs
from tidegate.testing.sim.rpc import service_address

RESTART_S: Final = 1.0
WATCH_S: Final = 0.5
"""Between two calls, and until one counts as not answered."""
MISSES_MAX: Final = 3
"""In a row: then the JobManager is replaced."""
HOST: Final = "host"
"""Is in the names of the processes that have a host of their own."""


class SessionCluster:
    """Ends with the process that `processes` belong to. Its exits are heard in threads that wait
    for nothing else.
    """

    def __init__(
        self, processes: Processes, rpc: Rpc, clock: Clock, threads: Threads, config: Config
    ) -> None:
        self._processes, self._rpc, self._clock = processes, rpc, clock
        self._address = service_address(config.jobmanager.port)
        self._newest = 0
        """The JobManager's number."""
        self._start_jobmanager()
        for number in range(config.cluster.task_managers):
            self._start_taskmanager(number, config.taskmanager.slots)
        threads.start(self._watch, name="orchestrator")

    def client(self) -> Client:
        """Of whichever JobManager is the newest."""
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
        self._start("standing taskmanager", arguments, f"taskmanager-{HOST}-{number}", exited)

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
            except ExternalError:  # there is no room for a moment
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


def rejoining(serve: Callable[[], object], clock: Clock) -> NoReturn:
    """The main of a standing TaskManager."""
    while True:
        with contextlib.suppress(RpcError):  # there is no way to the JobManager yet
            serve()
        clock.sleep(RESTART_S)
