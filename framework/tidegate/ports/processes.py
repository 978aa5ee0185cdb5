"""Processes of the cluster: started by role, ended with their parent, watched for their exit.

Whoever starts a process learns of its end at once and with its status; a process whose parent is
gone, however it went, ends itself. Slots are forks of a zygote that belongs to one TaskManager, so
they have a port of their own. The driver is `drivers/process`; callbacks run in threads of the
driver and must not block (they post to an event loop).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, NoReturn, Protocol

ExitStatus = int
"""As subprocess gives it: an exit code, or the negative number of the signal that killed."""

NO_RESOURCES: Final[ExitStatus] = 75
"""Exit status of a process that could not run because the operating system refused it memory, disk
space, a file, a thread or a process (EX_TEMPFAIL of sysexits.h). Its start is tried again and does
not count as a failure."""

REFUSED_START_PAUSE_MS: Final = 2_000
"""Before a process is started again that the operating system has refused. A start that is refused
costs the host next to nothing, and others free what they hold at any time."""


class CurrentProcess(Protocol):
    """The process that is asking."""

    @property
    def pid(self) -> int: ...

    @property
    def host(self) -> str:
        """The name of the host that the process runs on, for people."""
        ...

    def exit(self, status: ExitStatus) -> NoReturn:
        """End at once, whatever other threads do; nothing is closed or cleaned up."""
        ...

    def freeze_gc(self) -> None:
        """What is in memory now stays as long as the process: garbage is collected rarely from here
        on, and not looked for among that.
        """
        ...


class Child(Protocol):
    """A started process. Its methods do nothing once it has ended."""

    @property
    def pid(self) -> int: ...

    def terminate(self) -> None:
        """Ask for an orderly exit (SIGTERM)."""
        ...

    def kill(self) -> None:
        """SIGKILL; everything below it ends with it."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotForked:
    """The zygote has forked the slot process that was asked for."""

    index: int
    pid: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotEnded:
    """A slot process has ended and was reaped: its pid means nothing any more."""

    index: int
    pid: int
    status: ExitStatus


@dataclass(frozen=True, slots=True, kw_only=True)
class ZygoteReady:
    """Everything is imported; forks asked for earlier happen now."""

    pid: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ZygoteEnded:
    """The zygote is gone and reaps nothing any more: the TaskManager must end, and its slots with
    it.
    """

    status: ExitStatus


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotNotForked:
    """The operating system refused the fork of a slot; the zygote and its other slots live on."""

    index: int
    reason: str


ZygoteEvent = ZygoteReady | SlotForked | SlotNotForked | SlotEnded | ZygoteEnded


class ForkServer(Protocol):
    """The process that a TaskManager's slots are forked from.

    Its methods do nothing once it has ended. ZygoteEnded is the last that its listener hears: slots
    that end with it, or after it, are not told of.
    """

    @property
    def pid(self) -> int: ...

    def fork(self, start: Any) -> None:
        """Fork a slot for a StartSlot message. SlotForked follows, and later SlotEnded; or
        SlotNotForked.
        """
        ...

    def kill(self, pid: int) -> None:
        """SIGKILL a slot process; nothing happens if it was reaped already, or is none of its."""
        ...

    def close(self) -> None:
        """End the zygote and all of its slots."""
        ...


class Processes(Protocol):
    """Starts processes of this cluster, with the settings that all of its processes share."""

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

        `on_ready` gets what the process announces once it serves, if it does before it ends.
        `on_exit` is called once, and after that. ExternalError if it cannot start:
        ResourceExhaustedError if the operating system refused it a resource.
        """
        ...

    def start_zygote(
        self, arguments: Mapping[str, object], *, log: str, listener: Callable[[ZygoteEvent], None]
    ) -> ForkServer:
        """Start a zygote; `listener` hears of it and of its slots."""
        ...
