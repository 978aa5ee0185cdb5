"""A cluster of this machine, for as long as its owner lives: what `tidegate run` starts.

It is one JobManager process, started again when it dies, and what that one starts. Everything ends
with `close`, and with the death of the owner. The JobManager comes back at another address;
`address` waits for the present one, so a `Client` that is given this method finds it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from tidegate.controlplane.client.client import Client
from tidegate.errors import ExternalError, ResourceExhaustedError, RpcError
from tidegate.ports.clock import Clock
from tidegate.ports.processes import NO_RESOURCES, Child, ExitStatus, Processes
from tidegate.ports.rpc import Rpc
from tidegate.ports.threads import Threads

START_TIMEOUT_S = 30.0
"""A JobManager is up in half a second; on an overloaded machine in some more."""
FAILED_STARTS_MAX = 3
"""In a row: then the cluster is given up, and the log named."""
RESTART_PAUSE_S = 1.0
"""Before a JobManager is started again that did not come up; one that had is back at once."""
REFUSED_S_MAX = 120.0
"""For so long a start is tried again that the operating system refuses (no memory, no process id,
no disk space): others on the machine free what they hold. Then the cluster is given up; somebody
may watch the command, and the job continues with the next one."""
PATIENCE_S = 600.0
"""How long a client waits for a JobManager that is alive and not up: it may wait for a checkpoint
storage that is gone. One that cannot be started is given up sooner."""
CLOSE_TIMEOUT_S = 5.0
LOG = "jobmanager.log"

_NO_RESOURCES = f"The operating system refused it a resource: its log {LOG} says more."
_log = logging.getLogger(__name__)


class LocalCluster:
    """Supervises a JobManager. Safe to use from several threads."""

    def __init__(
        self,
        processes: Processes,
        rpc: Rpc,
        clock: Clock,
        threads: Threads,
        *,
        on_restart: Callable[[ExitStatus], None] | None = None,
        on_closed: Callable[[], None] | None = None,
    ) -> None:
        """`on_closed` is called once the cluster's processes have ended."""
        self._processes = processes
        self._rpc = rpc
        self._clock = clock
        self._on_restart, self._on_closed = on_restart, on_closed
        self._changed = threads.condition()
        self._child: Child | None = None
        self._address: str | None = None
        self._exits: list[ExitStatus] = []
        self._failed_starts = 0
        self._refused_since_s: float | None = None
        self._refusal = ""
        self._closing = False
        self._gone = threads.event()
        self._start()

    @property
    def pid(self) -> int:
        """Of the present JobManager; of the last one while none is up."""
        with self._changed:
            return self._child.pid if self._child is not None else 0

    @property
    def restarts(self) -> int:
        """How often the JobManager was started again."""
        with self._changed:
            return len(self._exits)

    @property
    def exits(self) -> tuple[ExitStatus, ...]:
        """With which status JobManagers have ended, oldest first."""
        with self._changed:
            return tuple(self._exits)

    def address(self) -> str:
        """Of the JobManager, waiting until it is up; RpcError if it takes too long, and another
        ExternalError, after which asking again is in vain, if the cluster was given up.
        """
        with self._changed:
            up = self._changed.wait_for(
                lambda: self._address is not None or self._given_up(), START_TIMEOUT_S
            )
            if self._address is not None:
                return self._address
            if up and self._refusal:
                raise ResourceExhaustedError(
                    f"The JobManager could not be started for {REFUSED_S_MAX:g} s: {self._refusal} "
                    "Run the command again when the machine has room; the job continues from its "
                    "last checkpoint."
                )
            if up:
                raise ExternalError(f"The JobManager ends at its start: its log {LOG} says more.")
            if self._refusal:
                raise RpcError(f"The JobManager is not up: {self._refusal}")
            raise RpcError(
                f"The JobManager is not up after {START_TIMEOUT_S:g} s: its log {LOG} says more."
            )

    def client(self) -> Client:
        """A client that follows the JobManager over its restarts."""
        return Client(self._rpc, self._clock, self.address, patience_s=PATIENCE_S)

    def close(self) -> None:
        """End the JobManager and everything below it."""
        with self._changed:
            self._closing = True
            child = self._child
        if child is not None:
            child.terminate()
            if not self._gone.wait(CLOSE_TIMEOUT_S):
                child.kill()
                self._gone.wait(CLOSE_TIMEOUT_S)
        if self._on_closed is not None:
            self._on_closed()

    def _start(self) -> None:
        """Start a JobManager, or give it up; called with nothing running."""
        while not self._tried_to_start():
            self._clock.sleep(RESTART_PAUSE_S)

    def _tried_to_start(self) -> bool:
        """False where the operating system refuses and is to be asked again: a machine without
        room for a process for a moment must not end a run.
        """
        with self._changed:
            if self._closing:
                self._gone.set()
                return True
            try:
                self._child = self._processes.spawn(
                    "jobmanager", {}, log=LOG, on_exit=self._exited, on_ready=self._ready
                )
            except ExternalError as error:
                _log.warning("the JobManager cannot be started yet: %s", error)
                refused = isinstance(error, ResourceExhaustedError)
                self._count_failure(refused=refused)
                self._refusal = str(error) if refused else ""
                if not self._given_up():
                    return False
                self._gone.set()
                self._changed.notify_all()
            return True

    def _ready(self, facts: dict[str, Any]) -> None:
        with self._changed:
            self._address = facts["address"]
            self._failed_starts = 0
            self._refused_since_s, self._refusal = None, ""
            self._changed.notify_all()

    def _exited(self, status: ExitStatus) -> None:
        """Runs in the thread that waited for the process, which has nothing else to do."""
        with self._changed:
            was_up = self._address is not None
            self._address = None
            if self._closing:
                self._gone.set()
                return
            self._exits.append(status)
            if not was_up:
                self._count_failure(refused=status == NO_RESOURCES)
                self._refusal = "" if status != NO_RESOURCES else _NO_RESOURCES
            given_up = self._given_up()
            if given_up:
                self._gone.set()
                self._changed.notify_all()
        _log.warning("the JobManager ended with status %d", status)
        if self._on_restart is not None:
            self._on_restart(status)
        if not given_up:
            if not was_up:
                self._clock.sleep(RESTART_PAUSE_S)
            self._start()

    def _count_failure(self, *, refused: bool) -> None:
        """A start that the operating system refuses is no failed start, but has a limit in time."""
        self._failed_starts += not refused
        if not refused:
            self._refused_since_s = None
        elif self._refused_since_s is None:
            self._refused_since_s = self._clock.monotonic()

    def _given_up(self) -> bool:
        since_s = self._refused_since_s
        refused_s = 0.0 if since_s is None else self._clock.monotonic() - since_s
        return self._failed_starts >= FAILED_STARTS_MAX or refused_s >= REFUSED_S_MAX
