"""A local cluster: `tidegate run` starts it on this machine, and it lives as long as its owner.

The cluster is one JobManager process and all processes that the JobManager starts. A JobManager
that dies is started again. All processes end with `close`, and with the death of the owner. Each
new JobManager has another address. `address` waits for the current one, so a `Client` that gets
this method as its address finds every JobManager.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from tidegate.controlplane.client.client import Client
from tidegate.errors import ExternalError, ResourceExhaustedError, RpcError
from tidegate.exit_status import exit_text, was_killed
from tidegate.ports.clock import Clock
from tidegate.ports.processes import NO_RESOURCES, Child, ExitStatus, Processes
from tidegate.ports.rpc import Rpc
from tidegate.ports.threads import Threads

START_TIMEOUT_S = 30.0
"""Time in seconds for which `address` waits for a JobManager. A JobManager is up in half a second,
and a little later on an overloaded machine."""
FAILED_STARTS_MAX = 3
"""Number of failed starts in a row after which the cluster fails. The error names the log."""
RESTART_PAUSE_S = 1.0
"""Pause in seconds before the next start of a JobManager that did not come up. A JobManager that
had come up is started again at once."""
REFUSED_S_MAX = 120.0
"""Time in seconds for which a start is retried after the operating system has refused it (no
memory, no process id, no disk space), or something has killed it. Other processes on the
machine may free resources within this time. Then the cluster fails: a user may be watching the
command, and the job continues with the next run."""
ANSWER_TIMEOUT_S = 600.0
"""Time in seconds for which a client waits for a JobManager that is alive but not up. It may be
waiting for a checkpoint storage that is gone. If a JobManager cannot be started, the client stops
waiting earlier."""
CLOSE_TIMEOUT_S = 5.0
LOG = "jobmanager.log"

_NO_RESOURCES = f"The operating system refused a resource to it: see its log {LOG}."
_log = logging.getLogger(__name__)


class LocalCluster:
    """A supervisor of one JobManager. Several threads may use it at the same time."""

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
        """Start a JobManager. `on_restart` is called with the exit status of each JobManager that
        ends without `close`. `on_closed` is called when the cluster's processes have ended.
        """
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
        self._processes_exited = threads.event()
        self._start()

    @property
    def pid(self) -> int:
        """The pid of the current JobManager, or of the last one while none is up."""
        with self._changed:
            return self._child.pid if self._child is not None else 0

    @property
    def restarts(self) -> int:
        """The number of JobManagers that have ended without `close`."""
        with self._changed:
            return len(self._exits)

    @property
    def exits(self) -> tuple[ExitStatus, ...]:
        """The exit statuses of these JobManagers, oldest first."""
        with self._changed:
            return tuple(self._exits)

    def address(self) -> str:
        """Wait until the JobManager is up and return its address.

        Raise RpcError if that takes longer than START_TIMEOUT_S; the caller may try again. Raise
        another ExternalError if the cluster has failed; retrying is then useless.
        """
        with self._changed:
            up = self._changed.wait_for(
                lambda: self._address is not None or self._has_failed(), START_TIMEOUT_S
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
                raise ExternalError(f"The JobManager ends at its start: see its log {LOG}.")
            if self._refusal:
                raise RpcError(f"The JobManager is not up: {self._refusal}")
            raise RpcError(
                f"The JobManager is not up after {START_TIMEOUT_S:g} s: see its log {LOG}."
            )

    def client(self) -> Client:
        """Return a client that finds the JobManager again after each restart."""
        return Client(self._rpc, self._clock, self.address, answer_timeout_s=ANSWER_TIMEOUT_S)

    def close(self) -> None:
        """End the JobManager and all processes below it."""
        with self._changed:
            self._closing = True
            child = self._child
        if child is not None:
            child.terminate()
            if not self._processes_exited.wait(CLOSE_TIMEOUT_S):
                child.kill()
                self._processes_exited.wait(CLOSE_TIMEOUT_S)
        if self._on_closed is not None:
            self._on_closed()

    def _start(self) -> None:
        """Start a JobManager, or let the cluster fail. No JobManager runs when this is called."""
        while not self._tried_to_start():
            self._clock.sleep(RESTART_PAUSE_S)

    def _tried_to_start(self) -> bool:
        """Try to start a JobManager once. Return False if the caller must try again.

        A run must not end because the machine briefly has no room for another process.
        """
        with self._changed:
            if self._closing:
                self._processes_exited.set()
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
                if not self._has_failed():
                    return False
                self._processes_exited.set()
                self._changed.notify_all()
            return True

    def _ready(self, facts: dict[str, Any]) -> None:
        with self._changed:
            self._address = facts["address"]
            self._failed_starts = 0
            self._refused_since_s, self._refusal = None, ""
            self._changed.notify_all()

    def _exited(self, status: ExitStatus) -> None:
        """Handle the exit of the JobManager and start the next one.

        This runs in the thread that waited for the process. That thread has no other work, so it
        may sleep here.
        """
        with self._changed:
            was_up = self._address is not None
            self._address = None
            if self._closing:
                self._processes_exited.set()
                return
            self._exits.append(status)
            if not was_up:
                # A JobManager that is not up ends with status 0 only by SIGTERM.
                killed = status == 0 or was_killed(status)
                self._count_failure(refused=killed or status == NO_RESOURCES)
                self._refusal = _NO_RESOURCES if status == NO_RESOURCES else ""
                if killed:
                    self._refusal = f"Its process {exit_text(status)} at its start."
            has_failed = self._has_failed()
            if has_failed:
                self._processes_exited.set()
                self._changed.notify_all()
        _log.warning("the JobManager %s", exit_text(status))
        if self._on_restart is not None:
            self._on_restart(status)
        if not has_failed:
            if not was_up:
                self._clock.sleep(RESTART_PAUSE_S)
            self._start()

    def _count_failure(self, *, refused: bool) -> None:
        """Count a JobManager that did not come up.

        A start that the operating system refuses, or that something kills, does not count as a
        failed start. But the time for which this may happen has a limit (REFUSED_S_MAX).
        """
        self._failed_starts += not refused
        if not refused:
            self._refused_since_s = None
        elif self._refused_since_s is None:
            self._refused_since_s = self._clock.monotonic()

    def _has_failed(self) -> bool:
        since_s = self._refused_since_s
        refused_s = 0.0 if since_s is None else self._clock.monotonic() - since_s
        return self._failed_starts >= FAILED_STARTS_MAX or refused_s >= REFUSED_S_MAX
