"""Processes of the cluster: started by role, ended with their parent, watched for their exit.

A parent gets the exit status of its child at once. A process whose parent has ended in any way ends
itself. Slots are forks of a fork server that belongs to one TaskManager, so they have a port of
their own. The driver is `drivers/process`. Callbacks run in threads of the driver and must not
block: they post to an event loop.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, NoReturn, Protocol

ExitStatus = int
"""An exit code, or the negative number of the signal that ended the process, as in subprocess."""

NO_RESOURCES: Final[ExitStatus] = 75
"""Exit status of a process that the operating system refused memory, disk space, a file, a thread
or a process (EX_TEMPFAIL of sysexits.h). Its parent starts it again and counts no failure.
"""

REFUSED_START_PAUSE_MS: Final = 2_000
"""Pause before the next start of a process that the operating system has refused. A refused start
costs the host almost nothing, and other processes may free resources at any time.
"""


class StackFrame(NamedTuple):
    """One call of a stack."""

    file: str
    line: int
    function: str
    source: str = ""
    """The line of the file, without indentation. Empty if it is not known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LongCall:
    """A call in the watched thread that has not returned for a long time."""

    since_ms: int
    """The wall-clock time in ms at which the call was first seen."""
    frames: tuple[StackFrame, ...]
    """The stack of the thread, with the oldest call first."""


class CallWatch(Protocol):
    """A watch over the thread that has started it, whose loop calls user code."""

    turn_s: float
    """The monotonic time of the last turn of the loop. The loop sets it in every turn. This is the
    only cost of the watch to the loop.
    """

    @property
    def thread(self) -> int:
        """The identifier of the watched thread."""
        ...

    def describe(self, code: bytes) -> None:
        """Tell the parent process where user code is, as one line of text. The parent uses it if
        no thread of this process can run.
        """
        ...

    def long_call(self) -> LongCall | None:
        """Return the present call if it has not returned for a long time. Any thread may call
        this.
        """
        ...


class CurrentProcess(Protocol):
    """The process that runs this code."""

    @property
    def pid(self) -> int: ...

    @property
    def host(self) -> str:
        """The name of the host, for people."""
        ...

    def exit(self, status: ExitStatus) -> NoReturn:
        """End at once, whatever other threads do. Close and clean up nothing."""
        ...

    def watch_calls(self, stalled_after_s: float) -> CallWatch:
        """Watch the thread that calls this. If no thread of the process can run for
        `stalled_after_s`, the parent process gets the stacks.
        """
        ...

    def guard_signal_handlers(self, report: Callable[[BaseException, str], None]) -> None:
        """Call `report` with the exceptions of signal handlers that user code sets from now on, and
        with the name of the signal. An exception in the middle of user code continues there.
        """
        ...

    def freeze_gc(self) -> None:
        """Exclude all present objects from garbage collection, because they live as long as the
        process. From now on, the collector runs rarely.
        """
        ...


class Child(Protocol):
    """A started process. Its methods do nothing once it has ended."""

    @property
    def pid(self) -> int: ...

    def terminate(self) -> None:
        """Ask for an orderly exit with SIGTERM."""
        ...

    def kill(self) -> None:
        """Send SIGKILL. All processes below it end too."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotForked:
    """The fork server has forked the requested slot process."""

    index: int
    pid: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotEnded:
    """A slot process has ended and was reaped. The system may use its pid again."""

    index: int
    pid: int
    status: ExitStatus


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotStacksDumped:
    """No thread of a slot process can run. The C library has written the stacks of all threads."""

    index: int
    pid: int
    code: str
    """The text that the slot gave to `CallWatch.describe`. Empty if it gave none."""
    dump: str
    """The stacks in the form of faulthandler."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ForkServerReady:
    """The fork server has imported everything. Forks that were requested earlier happen now."""

    pid: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ForkServerEnded:
    """The fork server has ended, so slots are no longer reaped. The TaskManager must end with its
    slots.
    """

    status: ExitStatus


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotNotForked:
    """The operating system refused to fork a slot. The fork server and its other slots continue."""

    index: int
    reason: str


ForkServerEvent = (
    ForkServerReady | SlotForked | SlotNotForked | SlotStacksDumped | SlotEnded | ForkServerEnded
)


class ForkServer(Protocol):
    """The process from which a TaskManager's slots are forked.

    Its methods do nothing after it has ended. ForkServerEnded is the last event of its listener:
    the end of slots with it, or after it, is not reported.
    """

    @property
    def pid(self) -> int: ...

    def fork(self, start: Any) -> None:
        """Fork a slot for a StartSlot message. SlotForked and later SlotEnded follow, or
        SlotNotForked.
        """
        ...

    def kill(self, pid: int) -> None:
        """Send SIGKILL to a slot process. Do nothing if it was reaped or is not a child of this."""
        ...

    def close(self) -> None:
        """End the fork server and all of its slots."""
        ...


class Processes(Protocol):
    """A starter of processes of this cluster, with the settings that they all share."""

    def spawn(
        self,
        role: str,
        arguments: Mapping[str, object],
        *,
        log: str,
        on_exit: Callable[[ExitStatus], None],
        on_ready: Callable[[dict[str, Any]], None] | None = None,
    ) -> Child:
        """Start `role` (see `bootstrap`). `log` is a file below the configured log folder.

        `on_ready` gets the announcement of the process when it serves, if it serves at all.
        `on_exit` is called once, after `on_ready`. ExternalError if the process cannot start;
        ResourceExhaustedError if the operating system refused a resource.
        """
        ...

    def start_fork_server(
        self,
        arguments: Mapping[str, object],
        *,
        log: str,
        listener: Callable[[ForkServerEvent], None],
    ) -> ForkServer:
        """Start a fork server. `listener` receives its events and those of its slots."""
        ...
