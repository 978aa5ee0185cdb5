"""The processes and fork servers of a simulated cluster: the `ports.processes` of one process.

A role is a function of the simulator (`Programs`). It gets the new process, its arguments and a
function to announce itself, and returns the exit status. A start takes time, because of the
imports. A thread of the parent receives the events of a child. A frozen parent therefore receives
them after its thaw, and a dead parent never. A start may be refused, as by an operating system
without free resources, or the child exits at once (`DrawStartOutcome`). Children end soon after
their parent. Slots are children of the TaskManager although its fork server forks them, because a
slot watches the TaskManager and exits with it.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Protocol

from tests.simulator.scheduler import Scheduler, SimProcess
from tests.simulator.threads import SimQueue
from tidegate.errors import InternalError, ResourceExhaustedError, TidegateError
from tidegate.ports.processes import (
    ExitStatus,
    ForkServerEnded,
    ForkServerEvent,
    ForkServerReady,
    Processes,
    SlotEnded,
    SlotForked,
    SlotNotForked,
)
from tidegate.protocol.messages import StartSlot
from tidegate.user_exceptions import Terminated

FAILED: Final = 1
"""Exit status of a role that raised, as in `bootstrap`."""
CRASHED: Final = 70
"""Exit status of a slot that raised, as in the real fork server."""
NOTICE_DELAY_S: Final = 0.0005
"""Time in seconds from an event of a child to the thread of its parent. It is the same for all
kinds of events, so that their order is kept.
"""


class StartOutcome(enum.Enum):
    """The outcome of the start of a process."""

    STARTED = "lives"
    REFUSED = "refused"
    """The start fails with ResourceExhaustedError, or a fork with SlotNotForked."""
    EXITS_AT_ONCE = "dies"
    """The process exits before it does anything."""


DrawStartOutcome = Callable[[str], StartOutcome]
"""A function that returns the outcome of a start by role. The role of a fork is `slot`."""

Announce = Callable[[Mapping[str, Any]], None]
Role = Callable[[SimProcess, Mapping[str, Any], Announce], ExitStatus]
"""The main function of a role. It gets the process, its arguments, and a function that announces
to the parent that the process serves.
"""
SlotMain = Callable[[SimProcess, StartSlot, Mapping[str, Any]], ExitStatus]
"""The main function of a slot. It gets the process, its `StartSlot`, and the arguments of the fork
server.
"""


class Programs(Protocol):
    """The main functions of the processes: the composition root of a simulation."""

    @property
    def roles(self) -> Mapping[str, Role]: ...

    @property
    def slot(self) -> SlotMain: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class StartDurations:
    """Longest durations in seconds. Each duration is drawn from a fifth of it up to all of it."""

    start_s: float = 0.5
    """Time of the imports of a role."""
    fork_server_s: float = 1.0
    """Time of the imports of a fork server: all modules that slots need."""
    fork_s: float = 0.01


class SimProcesses:
    """The `ports.processes.Processes` of one process, which is the parent of its children."""

    def __init__(
        self,
        owner: SimProcess,
        programs: Programs,
        start_durations: StartDurations | None = None,
        draw_outcome: DrawStartOutcome = lambda _: StartOutcome.STARTED,
    ) -> None:
        self._owner, self._programs, self._draw_outcome = owner, programs, draw_outcome
        self._start_durations = start_durations or StartDurations()
        self._scheduler = owner.scheduler

    def spawn(
        self,
        role: str,
        arguments: Mapping[str, object],
        *,
        log: str,
        on_exit: Callable[[ExitStatus], None],
        on_ready: Callable[[dict[str, Any]], None] | None = None,
    ) -> SimChild:
        outcome = self._draw_start(role)
        process = self._scheduler.process(log.removesuffix(".log"), self._owner)
        notices = _ExitNotices(self._owner, process, f"wait-{process.pid}")

        def handle(item: dict[str, Any] | ExitStatus) -> bool:
            if isinstance(item, dict):
                if on_ready is not None:
                    on_ready(item)
                return True
            on_exit(item)
            return False

        notices.start_listener(handle)
        main: Callable[[], ExitStatus] = _exit_at_once
        if outcome is not StartOutcome.EXITS_AT_ONCE:
            main = partial(self._programs.roles[role], process, dict(arguments), notices.later)
        _start_later(process, _drawn(self._scheduler, self._start_durations.start_s), main, FAILED)
        return SimChild(process)

    def start_fork_server(
        self,
        arguments: Mapping[str, object],
        *,
        log: str,
        listener: Callable[[ForkServerEvent], None],
    ) -> SimForkServer:
        outcome = self._draw_start("fork-server")
        process = self._scheduler.process(log.removesuffix(".log"), self._owner)
        slot = partial(_slot, self._programs.slot, dict(arguments))
        return SimForkServer(
            self._owner,
            process,
            slot,
            self._start_durations,
            listener,
            self._draw_outcome,
            exits_at_once=outcome is StartOutcome.EXITS_AT_ONCE,
        )

    def _draw_start(self, role: str) -> StartOutcome:
        self._scheduler.maybe_switch()
        outcome = self._draw_outcome(role)
        if outcome is StartOutcome.REFUSED:
            self._scheduler.record_event("may not start a %s", role)
            raise ResourceExhaustedError(f"Cannot start the {role} process: there is no room.")
        return outcome


class SimChild:
    """The `ports.processes.Child` of a simulated process."""

    def __init__(self, process: SimProcess) -> None:
        self._process = process
        self.pid = process.pid

    def terminate(self) -> None:
        self._process.scheduler.maybe_switch()
        self._process.terminate()

    def kill(self) -> None:
        self._process.scheduler.maybe_switch()
        self._process.kill()


class SimForkServer:
    """A `ports.processes.ForkServer`: a process with one thread that forks, kills and reaps."""

    def __init__(
        self,
        owner: SimProcess,
        process: SimProcess,
        slot: Callable[[SimProcess, StartSlot], ExitStatus],
        start_durations: StartDurations,
        listener: Callable[[ForkServerEvent], None],
        draw_outcome: DrawStartOutcome,
        *,
        exits_at_once: bool,
    ) -> None:
        self.pid = process.pid
        self._draw_outcome = draw_outcome
        self._owner, self._process, self._slot, self._start_durations = (
            owner,
            process,
            slot,
            start_durations,
        )
        self._scheduler = owner.scheduler
        self._commands = SimQueue(self._scheduler)
        self._children: dict[int, tuple[int, SimProcess]] = {}
        """Slot index and process of each slot that is not reaped, by pid."""
        self._notices = _ExitNotices(owner, process, "fork-server")

        def handle(item: ForkServerEvent | ExitStatus) -> bool:
            if isinstance(item, int):
                listener(ForkServerEnded(status=item))
                return False
            listener(item)
            return True

        self._notices.start_listener(handle)
        _start_later(
            process,
            _drawn(self._scheduler, start_durations.fork_server_s),
            _exit_at_once if exits_at_once else self._serve,
            CRASHED,
        )

    def fork(self, start: Any) -> None:
        self._commands.put(start)

    def kill(self, pid: int) -> None:
        self._commands.put(_Kill(pid))

    def close(self) -> None:
        self._commands.put(None)

    def _serve(self) -> ExitStatus:
        self._notices.now(ForkServerReady(pid=self.pid))
        while (command := self._commands.get()) is not None:
            match command:
                case StartSlot():
                    self._fork(command)
                case _Kill(pid=pid) if pid in self._children:
                    self._children[pid][1].kill()
                case _Reap(pid=pid, status=status):
                    index, _ = self._children.pop(pid)
                    self._notices.now(SlotEnded(index=index, pid=pid, status=status))
                case _:
                    pass
        for _, slot in self._children.values():
            slot.kill()
        return 0

    def _fork(self, start: StartSlot) -> None:
        outcome = self._draw_outcome("slot")
        if outcome is StartOutcome.REFUSED:
            self._scheduler.record_event("may not fork")
            self._notices.now(SlotNotForked(index=start.index, reason="there is no room"))
            return
        self._scheduler.wait(_drawn(self._scheduler, self._start_durations.fork_s))
        slot = self._scheduler.process(
            f"{start.job} {start.attempt} slot {start.ordinal}", self._owner
        )
        self._children[slot.pid] = start.index, slot
        slot.on_exit.append(partial(self._ended, slot.pid))
        main = (
            _exit_at_once
            if outcome is StartOutcome.EXITS_AT_ONCE
            else partial(self._slot, slot, start)
        )
        slot.run_main(guarded(slot, main, CRASHED))
        self._notices.now(SlotForked(index=start.index, pid=slot.pid))

    def _ended(self, pid: int, status: ExitStatus) -> None:
        reap = partial(self._commands.put, _Reap(pid, status))
        self._scheduler.call_later(NOTICE_DELAY_S, reap)


@dataclass(frozen=True, slots=True)
class _Kill:
    pid: int


@dataclass(frozen=True, slots=True)
class _Reap:
    pid: int
    status: ExitStatus


class _ExitNotices:
    """The events of one process, delivered in order in a thread of the parent.

    The last event is the exit status.
    """

    def __init__(self, parent: SimProcess, process: SimProcess, name: str) -> None:
        self._parent, self._name = parent, name
        self._scheduler = parent.scheduler
        self._queue = SimQueue(self._scheduler)
        process.on_exit.append(self.later)

    def start_listener(self, handle: Callable[[Any], bool]) -> None:
        """Start a thread that calls `handle` with each event until it returns False."""

        def listen() -> None:
            while handle(self._queue.get()):
                pass

        self._parent.start(listen, name=self._name)

    def now(self, item: object) -> None:
        """Deliver an event at once. It must be called from a thread."""
        self._queue.put(item)

    def later(self, item: object) -> None:
        """Deliver an event after `NOTICE_DELAY_S`. It may be called outside the threads, for
        example from a callback for the end of a process.
        """
        self._scheduler.call_later(NOTICE_DELAY_S, partial(self._queue.put, item))


def _start_later(
    process: SimProcess, seconds: float, main: Callable[[], ExitStatus], failed: ExitStatus
) -> None:
    def start() -> None:
        if process.alive:
            process.run_main(guarded(process, main, failed))

    process.scheduler.call_later(seconds, start)


def guarded(
    process: SimProcess, main: Callable[[], ExitStatus], failed: ExitStatus
) -> Callable[[], ExitStatus]:
    """Return the main function of a process as `bootstrap` runs it: an exception becomes a status.

    An exception that is a bug of tidegate is also kept in `scheduler.bugs`.
    """

    def run() -> ExitStatus:
        scheduler = process.scheduler
        try:
            return main()
        except Terminated:
            return 0
        except Exception as error:  # noqa: BLE001  # the last frame of a process: told, then left
            scheduler.record_event("fails: %r", error)
            if not isinstance(error, TidegateError) or isinstance(error, InternalError):
                scheduler.bugs.append((scheduler.running(), error))
            return failed

    return run


def _exit_at_once() -> ExitStatus:
    """Exit at once, as a process does without a library or without memory."""
    return FAILED


def _slot(
    main: SlotMain, arguments: Mapping[str, Any], process: SimProcess, start: StartSlot
) -> ExitStatus:
    return main(process, start, arguments)


def _drawn(scheduler: Scheduler, most_s: float) -> float:
    return most_s * scheduler.random.uniform(0.2, 1.0)


if TYPE_CHECKING:

    def _(owner: SimProcess, programs: Programs) -> Processes:
        return SimProcesses(owner, programs)
