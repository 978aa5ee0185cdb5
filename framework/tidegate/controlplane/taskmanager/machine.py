"""The state machine of a TaskManager: what each slot runs, when to kill a process, when to exit.

Theory of operation. A slot goes EMPTY -> FORKING -> RUNNING -> EMPTY if its process ends by itself.
It goes through KILLING if the JobManager stops it. If the operating system refuses a fork, the slot
is EMPTY again, and the JobManager repeats the request. The slot processes are children of the fork
server. This machine asks for a fork or a kill, and it receives forks and exits as events.

Two facts about messages shape the machine. Messages may repeat or overtake each other, and the
JobManager gives each StartSlot a higher allocation id. So each slot keeps the highest allocation id
that was started or stopped, and a StartSlot that does not exceed it is an old one. A StopSlot is
answered when the process is reaped, so its Acknowledge means that the slot is free.

A TaskManager belongs to one JobManager, identified by its leader epoch. The TaskManager exits, and
its slots end with it, in two cases: the JobManager refuses it, or has not answered for the
heartbeat timeout. The JobManager may then have replaced this TaskManager and its slots. The machine
is pure; `service.py` carries out its instructions.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field

import msgspec

from tidegate.errors import check
from tidegate.ids import LeaderEpoch, TaskManagerId
from tidegate.ports.processes import ExitStatus
from tidegate.protocol.code_places import WatchedCode, dumped_frames
from tidegate.protocol.messages import (
    Acknowledge,
    Message,
    Refused,
    SlotExited,
    SlotStalled,
    StartSlot,
    StopSlot,
    TaskManagerHeartbeat,
)

RESEND_MS = 200
"""Milliseconds between two tries to report a slot's exit. The JobMaster learns about the lost slot
from this report."""


class SlotPhase(enum.Enum):
    """The phases of a slot."""

    EMPTY = "empty"
    FORKING = "forking"
    RUNNING = "running"
    KILLING = "killing"


TRANSITIONS = frozenset(
    {
        (SlotPhase.EMPTY, SlotPhase.FORKING),  # StartSlot
        (SlotPhase.FORKING, SlotPhase.RUNNING),  # the fork server forked it
        (SlotPhase.FORKING, SlotPhase.EMPTY),  # the operating system refused the fork
        (SlotPhase.FORKING, SlotPhase.KILLING),  # StopSlot: killed as soon as its pid is known
        (SlotPhase.RUNNING, SlotPhase.KILLING),  # StopSlot
        (SlotPhase.RUNNING, SlotPhase.EMPTY),  # it ended by itself, or something killed it
        (SlotPhase.KILLING, SlotPhase.EMPTY),  # reaped
    }
)


# --- events -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class JobManagerRequest:
    """A message of the JobManager. It waits for a reply under the number `request_id`."""

    request_id: int
    message: Message


@dataclass(frozen=True, slots=True, kw_only=True)
class Forked:
    """The slot's process exists."""

    index: int
    pid: int


@dataclass(frozen=True, slots=True, kw_only=True)
class NotForked:
    """The operating system refused the fork."""

    index: int
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotProcessExited:
    """The slot's process was reaped."""

    index: int
    pid: int
    status: ExitStatus


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotProcessStalled:
    """No thread of the slot's process can run. `code` and `dump` say where it stands."""

    index: int
    pid: int
    code: str
    dump: str
    seen_ms: int
    """The wall-clock time in ms at which this was noticed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ForkServerExited:
    """The fork server ended."""

    status: ExitStatus


@dataclass(frozen=True, slots=True, kw_only=True)
class Replied:
    """The JobManager replied to a message of this TaskManager."""

    message: Message
    reply: Message


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestFailed:
    """A message did not reach the JobManager, or its reply did not reach this TaskManager."""

    message: Message


@dataclass(frozen=True, slots=True, kw_only=True)
class HeartbeatDue:
    """A heartbeat interval has passed."""


Event = (
    JobManagerRequest
    | Forked
    | NotForked
    | SlotProcessExited
    | SlotProcessStalled
    | ForkServerExited
    | Replied
    | RequestFailed
    | HeartbeatDue
)


# --- instructions -------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """Reply to the request `request_id`."""

    request_id: int
    message: Message


@dataclass(frozen=True, slots=True, kw_only=True)
class ForkSlot:
    """Ask the fork server to fork a slot process."""

    start: StartSlot


@dataclass(frozen=True, slots=True, kw_only=True)
class KillSlot:
    """Ask the fork server to kill a slot process."""

    pid: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SendToJobManager:
    """Send a message to the JobManager after a pause. Replied or RequestFailed follows."""

    message: Message
    after_ms: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class SendToJobMaster:
    """Send a message to a JobMaster once. Nothing follows."""

    address: str
    message: Message


@dataclass(frozen=True, slots=True, kw_only=True)
class ExitProcess:
    """End this TaskManager process."""

    reason: str


Instruction = Reply | ForkSlot | KillSlot | SendToJobManager | SendToJobMaster | ExitProcess


@dataclass(slots=True)
class _Slot:
    phase: SlotPhase = SlotPhase.EMPTY
    start: StartSlot | None = None
    pid: int = 0
    allocation_id: int = 0
    """The highest allocation id that was started or stopped."""
    starting: list[int] = field(default_factory=list)
    """Requests that are answered after the fork."""
    stopping: list[int] = field(default_factory=list)
    """Requests that are answered after the end of the process."""

    def become(self, phase: SlotPhase) -> None:
        check((self.phase, phase) in TRANSITIONS, f"A slot goes from {self.phase} to {phase}.")
        self.phase = phase


class TaskManagerMachine:
    """The slots of one TaskManager, and its connection to one JobManager."""

    def __init__(
        self,
        *,
        id_: TaskManagerId,
        epoch: LeaderEpoch,
        slots: int,
        heartbeat_timeout_ms: int,
        now_ms: int,
    ) -> None:
        self.id = id_
        self.epoch = epoch
        self._slots = [_Slot() for _ in range(slots)]
        self._heartbeat_timeout_ms = heartbeat_timeout_ms
        self._last_reply_ms = now_ms
        self._heartbeat_under_way = False
        self._ended = False

    def handle(  # noqa: C901  # a case per event
        self, event: Event, now_ms: int
    ) -> list[Instruction]:
        """Return the instructions for an event at the monotonic time `now_ms`."""
        if self._ended:
            return []
        match event:
            case JobManagerRequest(request_id=request_id, message=StartSlot() as start):
                return self._start(request_id, start)
            case JobManagerRequest(request_id=request_id, message=StopSlot() as stop):
                return self._stop(request_id, stop)
            case JobManagerRequest(request_id=request_id, message=message):
                return _refuse(request_id, f"a TaskManager takes no {type(message).__name__}")
            case Forked(index=index, pid=pid):
                return self._forked(self._slots[index], pid)
            case NotForked(index=index, reason=reason):
                return self._not_forked(self._slots[index], reason)
            case SlotProcessExited(index=index, pid=pid, status=status):
                return self._slot_process_exited(index, pid, status)
            case SlotProcessStalled():
                return self._slot_process_stalled(event)
            case ForkServerExited(status=status):
                return self._end(f"the fork server exited with status {status}")
            case Replied(message=message, reply=reply):
                return self._replied(message, reply, now_ms)
            case RequestFailed(message=message):
                return self._request_failed(message, now_ms)
            case HeartbeatDue():
                return self._send_heartbeat(now_ms)

    def running(self) -> dict[int, int]:
        """Return the pids of slot processes by slot index."""
        return {index: slot.pid for index, slot in enumerate(self._slots) if slot.pid}

    def validate(self) -> None:
        """Check the invariants of every slot."""
        for index, slot in enumerate(self._slots):
            where = f"slot {index} ({slot.phase.value})"
            empty = slot.phase is SlotPhase.EMPTY
            check(empty == (slot.start is None), f"{where}: runs something exactly if not empty")
            check(
                slot.start is None or slot.start.allocation_id <= slot.allocation_id,
                f"{where}: old allocation id",
            )
            check(
                not slot.starting or slot.phase is SlotPhase.FORKING, f"{where}: unanswered start"
            )
            check(not slot.stopping or slot.phase is SlotPhase.KILLING, f"{where}: unanswered stop")
            knows_pid = slot.phase in {SlotPhase.RUNNING, SlotPhase.KILLING}
            check(knows_pid or not slot.pid, f"{where}: a pid of no process")
            check(slot.pid or slot.phase is not SlotPhase.RUNNING, f"{where}: runs without a pid")

    def _start(self, request_id: int, start: StartSlot) -> list[Instruction]:
        slot = self._slot_of(start)
        if isinstance(slot, str):
            return _refuse(request_id, slot)
        # A repeated message has the allocation id of the first one.
        if slot.start is not None and slot.start.allocation_id == start.allocation_id:
            if slot.phase is SlotPhase.FORKING:
                slot.starting.append(request_id)
                return []
            return [Reply(request_id=request_id, message=Acknowledge())]
        if start.allocation_id <= slot.allocation_id:
            return _refuse(
                request_id, f"StartSlot {start.allocation_id} is older than {slot.allocation_id}"
            )
        if slot.start is not None:
            return _refuse(request_id, f"slot {start.index} runs {_name(slot.start)}")
        slot.become(SlotPhase.FORKING)
        slot.start = start
        slot.allocation_id = start.allocation_id
        slot.starting.append(request_id)
        return [ForkSlot(start=start)]

    def _stop(self, request_id: int, stop: StopSlot) -> list[Instruction]:
        slot = self._slot_of(stop)
        if isinstance(slot, str):
            return _refuse(request_id, slot)
        slot.allocation_id = max(slot.allocation_id, stop.allocation_id)
        concerned = (
            slot.start is not None
            and slot.start.job == stop.job
            and slot.start.attempt <= stop.attempt
        )
        if not concerned:
            return [Reply(request_id=request_id, message=Acknowledge())]
        slot.stopping.append(request_id)
        if slot.phase is SlotPhase.KILLING:
            return []
        known = slot.phase is SlotPhase.RUNNING
        slot.become(SlotPhase.KILLING)
        refused: list[Instruction] = [
            Reply(
                request_id=waiting,
                message=Refused(reason="the slot was stopped before it was forked"),
            )
            for waiting in slot.starting
        ]
        slot.starting.clear()
        return [*refused, KillSlot(pid=slot.pid)] if known else refused

    def _forked(self, slot: _Slot, pid: int) -> list[Instruction]:
        check(slot.start is not None and not slot.pid, "A fork that was not requested.")
        slot.pid = pid
        if slot.phase is SlotPhase.KILLING:
            return [KillSlot(pid=pid)]
        slot.become(SlotPhase.RUNNING)
        replies: list[Instruction] = [
            Reply(request_id=request_id, message=Acknowledge()) for request_id in slot.starting
        ]
        slot.starting.clear()
        return replies

    def _not_forked(self, slot: _Slot, reason: str) -> list[Instruction]:
        check(slot.start is not None and not slot.pid, "A fork that was not requested.")
        refused = Refused(reason=f"the operating system refused the slot's process: {reason}")
        replies: list[Instruction] = [
            Reply(request_id=request_id, message=refused) for request_id in slot.starting
        ]
        replies += [
            Reply(request_id=request_id, message=Acknowledge()) for request_id in slot.stopping
        ]
        slot.become(SlotPhase.EMPTY)
        slot.start = None
        slot.starting.clear()
        slot.stopping.clear()
        return replies

    def _slot_process_exited(self, index: int, pid: int, status: ExitStatus) -> list[Instruction]:
        slot = self._slots[index]
        start = slot.start
        check(start is not None and slot.pid == pid, f"Slot {index} never ran process {pid}.")
        if start is None:
            return []
        slot.become(SlotPhase.EMPTY)
        slot.start = None
        slot.pid = 0
        replies: list[Instruction] = [
            Reply(request_id=request_id, message=Acknowledge()) for request_id in slot.stopping
        ]
        slot.stopping.clear()
        exited = SlotExited(
            id=self.id,
            epoch=self.epoch,
            index=index,
            job=start.job,
            attempt=start.attempt,
            pid=pid,
            status=status,
            allocation_id=start.allocation_id,
        )
        return [*replies, SendToJobManager(message=exited)]

    def _slot_process_stalled(self, event: SlotProcessStalled) -> list[Instruction]:
        slot = self._slots[event.index]
        if slot.start is None or slot.pid != event.pid or not event.code:
            return []  # it has ended meanwhile, or it was not deployed yet
        code = msgspec.json.decode(event.code, type=WatchedCode)
        frames = dumped_frames(event.dump, code.thread)
        stalled = SlotStalled(
            job=slot.start.job,
            attempt=slot.start.attempt,
            ordinal=slot.start.ordinal,
            allocation_id=slot.start.allocation_id,
            call=code.stalled_call(frames, event.seen_ms - code.stalled_after_ms),
        )
        return [SendToJobMaster(address=slot.start.jobmaster_address, message=stalled)]

    def _replied(self, message: Message, reply: Message, now_ms: int) -> list[Instruction]:
        if isinstance(message, TaskManagerHeartbeat):
            self._heartbeat_under_way = False
        if isinstance(reply, Refused):
            return self._end(f"the JobManager refuses this TaskManager: {reply.reason}")
        self._last_reply_ms = now_ms
        return []

    def _request_failed(self, message: Message, now_ms: int) -> list[Instruction]:
        if isinstance(message, TaskManagerHeartbeat):
            self._heartbeat_under_way = False
            return self._end_if_silent(now_ms)  # not repeated: the next heartbeat follows anyway
        return [*self._end_if_silent(now_ms), SendToJobManager(message=message, after_ms=RESEND_MS)]

    def _send_heartbeat(self, now_ms: int) -> list[Instruction]:
        end = self._end_if_silent(now_ms)
        if end or self._heartbeat_under_way:
            return end
        self._heartbeat_under_way = True
        return [SendToJobManager(message=TaskManagerHeartbeat(id=self.id, epoch=self.epoch))]

    def _end_if_silent(self, now_ms: int) -> list[Instruction]:
        silent_ms = now_ms - self._last_reply_ms
        if silent_ms <= self._heartbeat_timeout_ms:
            return []
        return self._end(f"the JobManager has not answered for {silent_ms / 1000:.1f} s")

    def _end(self, reason: str) -> list[Instruction]:
        self._ended = True
        return [ExitProcess(reason=reason)]

    def _slot_of(self, message: StartSlot | StopSlot) -> _Slot | str:
        """Return the slot of a message, or the reason for refusing the message."""
        if message.epoch != self.epoch:
            return f"leader epoch {message.epoch} is not {self.epoch}, the one this belongs to"
        if not 0 <= message.index < len(self._slots):
            return f"{self.id} has no slot {message.index}"
        return self._slots[message.index]


def _refuse(request_id: int, reason: str) -> list[Instruction]:
    return [Reply(request_id=request_id, message=Refused(reason=reason))]


def _name(start: StartSlot) -> str:
    return f"attempt {start.attempt} of job {start.job}"
