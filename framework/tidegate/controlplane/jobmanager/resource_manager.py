"""The ResourceManager: knows the TaskManagers, the use of each slot, and the requests for slots.

Theory of operation. A slot is FREE, or it is used by one attempt of one job. It is PENDING while
its StartSlot has no answer, and ALLOCATED after the TaskManager has answered. It is RELEASING from
the decision to stop it until the TaskManager reports that its process is gone. Only then is it FREE
again. Every use has an allocation id, which grows, and all events of the use carry it. Events of an
earlier use change nothing, and the TaskManager refuses a StartSlot that a StopSlot has overtaken.

A job has at most one request, which belongs to its newest attempt. A newer attempt replaces the
request and stops the slots of older attempts. A request gets all of its slots or none: two jobs
that each hold half of their slots would wait for ever. The oldest request is served first, but a
smaller one may pass one that does not fit. Ordinals are spread evenly over TaskManagers. A lost
slot is not replaced automatically. Its attempt is over, the JobMaster is notified, and it requests
slots again.

Providers. In a local cluster this machine starts TaskManagers, up to `local_task_managers`. It
replaces a lost one, with a growing pause if TaskManagers die soon after their start. Standalone
TaskManagers are supervised outside of the cluster, and join by registering. The exit of a
standalone TaskManager is not reported. It counts as lost when its heartbeats stop, or when another
TaskManager registers with its address, because two processes cannot listen there. The machine is
pure; `service.py` carries out its instructions.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

import msgspec

from tidegate.controlplane.jobmanager.backoff import Backoff
from tidegate.controlplane.jobmanager.resource_manager_events import (
    DisconnectTaskManager,
    Event,
    Instruction,
    JobReleased,
    NotifyJobMaster,
    Reply,
    ResourceManagerTick,
    ResourceRequestReceived,
    SlotNotStarted,
    SlotNotStopped,
    SlotStarted,
    SlotStopped,
    StartSlotAt,
    StartTaskManager,
    StopSlotAt,
    TaskManagerExited,
)
from tidegate.errors import check
from tidegate.exit_status import exit_text
from tidegate.ids import Attempt, JobName, LeaderEpoch, SlotId, TaskManagerId
from tidegate.message_text import counted
from tidegate.ports.processes import NO_RESOURCES, REFUSED_START_PAUSE_MS
from tidegate.protocol.job_state import JobState
from tidegate.protocol.messages import (
    Acknowledge,
    LeaderMessage,
    Message,
    Refused,
    RegisterTaskManager,
    ReleaseSlots,
    RequestSlots,
    SlotExited,
    SlotLost,
    SlotsReleased,
    TaskManagerAccepted,
    TaskManagerHeartbeat,
)
from tidegate.protocol.reports import JobReport
from tidegate.protocol.versions import difference

REGISTRATION_MS_MAX = 60_000
"""Time in ms after which a local TaskManager that has not registered counts as hanging. A start
takes a second, and a minute only on an extremely overloaded machine."""


class SlotPhase(enum.Enum):
    """The phases of a slot in the ResourceManager."""

    FREE = "free"
    PENDING = "starting"
    ALLOCATED = "occupied"
    RELEASING = "stopping"


TRANSITIONS = frozenset(
    {
        (SlotPhase.FREE, SlotPhase.PENDING),  # given to an attempt
        (SlotPhase.PENDING, SlotPhase.ALLOCATED),  # the TaskManager has forked it
        (SlotPhase.PENDING, SlotPhase.RELEASING),  # the attempt is over, or StartSlot failed
        (SlotPhase.PENDING, SlotPhase.FREE),  # exited before the answer came
        (SlotPhase.ALLOCATED, SlotPhase.RELEASING),  # the attempt is over
        (SlotPhase.ALLOCATED, SlotPhase.FREE),  # exited
        (SlotPhase.RELEASING, SlotPhase.FREE),  # stopped or exited
    }
)

_LIVE = frozenset({SlotPhase.PENDING, SlotPhase.ALLOCATED})
"""Phases in which a slot counts for its attempt."""


# --- the machine --------------------------------------------------------------------------------


class _SlotAllocation(NamedTuple):
    job: JobName
    attempt: Attempt
    ordinal: int
    allocation_id: int


@dataclass(slots=True)
class _Slot:
    id: SlotId
    phase: SlotPhase = SlotPhase.FREE
    allocation: _SlotAllocation | None = None
    stop_under_way: bool = False

    def become(self, phase: SlotPhase) -> None:
        check((self.phase, phase) in TRANSITIONS, f"{self.id} goes from {self.phase} to {phase}.")
        self.phase = phase
        if phase is SlotPhase.FREE:
            self.allocation = None
            self.stop_under_way = False


@dataclass(slots=True)
class _TaskManager:
    address: str
    pid: int
    last_heartbeat_ms: int
    slots: list[_Slot]
    worked: bool = False
    """Whether it has started a slot."""


@dataclass(slots=True)
class _Request:
    attempt: Attempt
    count: int
    jobmaster_address: str
    waits: bool = True
    """Whether the request waits for slots. Each repetition of the request sets this again."""


class _Release(NamedTuple):
    attempt: Attempt
    jobmaster_address: str


@dataclass(slots=True)
class ResourceManager:
    """The slots of a cluster.

    This machine starts `local_task_managers` TaskManagers, each with its own slots.
    """

    epoch: LeaderEpoch
    local_task_managers: int
    heartbeat_timeout_ms: int
    _task_managers: dict[TaskManagerId, _TaskManager] = field(default_factory=dict)
    _starting: dict[TaskManagerId, int] = field(default_factory=dict)
    """Local TaskManagers that have not registered, with the monotonic time in ms of the instruction
    to start them."""
    _requests: dict[JobName, _Request] = field(default_factory=dict)
    """Requests in their order of arrival."""
    _releases: dict[JobName, _Release] = field(default_factory=dict)
    """Jobs whose JobMaster is notified when the last released slot is free."""
    _last_allocation_id: int = 0
    _started: int = 0
    _failed_up_to: int = 0
    """Number of the last local TaskManager that the last counted failure covers."""
    _backoff: Backoff = field(default_factory=Backoff)
    _refused: bool = False
    """Whether the operating system refused the last start of a local TaskManager. This does not
    count as a failure of the TaskManager."""
    trouble: str = ""
    """The reason why a local TaskManager has no slots, in sentences. Empty after a slot started."""

    def start(self, now_ms: int) -> list[Instruction]:
        """Return the first instructions: start the local TaskManagers."""
        return list(self._replace_local(now_ms))

    def handle(self, event: Event, now_ms: int) -> list[Instruction]:
        """Return the instructions for an event at the monotonic time `now_ms`."""
        return [
            *self._handle(event, now_ms),
            *self._notify_released(),
            *self._serve_requests(),
            *self._replace_local(now_ms),
        ]

    def task_managers(self) -> tuple[tuple[str, int, int], ...]:
        """Return the id, pid and number of slots of each TaskManager."""
        return tuple((id_, tm.pid, len(tm.slots)) for id_, tm in self._task_managers.items())

    def free_slots(self) -> int:
        """Return the number of free slots."""
        return sum(1 for slot in self._slots() if slot.phase is SlotPhase.FREE)

    def allocations(self, job: JobName) -> dict[int, SlotId]:
        """Return the live slots of a job by ordinal."""
        return {
            slot.allocation.ordinal: slot.id
            for slot in self._slots()
            if slot.allocation is not None and slot.allocation.job == job and slot.phase in _LIVE
        }

    def explain(self, report: JobReport) -> JobReport:
        """Return the report with the reason why the job gets no slot, if there is one."""
        if report.state is not JobState.WAITING_FOR_SLOTS or not self.trouble:
            return report
        missing = report.waiting_for or f"{counted(report.slots_missing, 'slot')} missing"
        return msgspec.structs.replace(
            report,
            waiting_for=f"{missing}. {self.trouble}",
            waiting_since_ms=report.waiting_since_ms or report.reported_ms,
        )

    def validate(self) -> None:
        """Check the invariants.

        Live slots belong to the job's newest attempt, no ordinal is used twice, and a registered
        TaskManager is not starting and has only its own slots.
        """
        taken: set[tuple[JobName, int]] = set()
        for slot in self._slots():
            free = slot.phase is SlotPhase.FREE
            check(free == (slot.allocation is None), f"{slot.id}: used exactly if not free")
            if slot.allocation is None or slot.phase not in _LIVE:
                continue
            request = self._requests.get(slot.allocation.job)
            check(request is not None, f"{slot.id}: used by a job that asked for nothing")
            if request is not None:
                check(
                    slot.allocation.attempt == request.attempt,
                    f"{slot.id}: used by an older attempt",
                )
                check(slot.allocation.ordinal < request.count, f"{slot.id}: an ordinal too many")
            check(
                (slot.allocation.job, slot.allocation.ordinal) not in taken,
                f"{slot.id}: an ordinal twice",
            )
            taken.add((slot.allocation.job, slot.allocation.ordinal))
        for id_, tm in self._task_managers.items():
            check(id_ not in self._starting, f"{id_}: registered and starting")
            check(all(slot.id.task_manager == id_ for slot in tm.slots), f"{id_}: slots of others")

    # --- events

    def _handle(  # noqa: C901  # a case per event
        self, event: Event, now_ms: int
    ) -> Iterator[Instruction]:
        match event:
            case ResourceRequestReceived(request_id=request_id, message=message):
                yield from self._handle_request(request_id, message, now_ms)
            case SlotStarted(slot=id_, allocation_id=allocation_id):
                self._slot_started(id_, allocation_id)
            case SlotNotStarted(slot=id_, allocation_id=allocation_id, reason=reason):
                yield from self._slot_not_started(id_, allocation_id, reason)
            case SlotStopped(slot=id_, allocation_id=allocation_id):
                slot = self._find(id_, allocation_id)
                if slot is not None:
                    slot.become(SlotPhase.FREE)
            case SlotNotStopped(slot=id_, allocation_id=allocation_id):
                slot = self._find(id_, allocation_id)
                if slot is not None:
                    slot.stop_under_way = False
            case TaskManagerExited(id=id_, status=status, reason=reason):
                tm = self._task_managers.get(id_)
                if self._is_local(id_) and (tm is None or not tm.worked):
                    self.trouble = reason or (
                        f"TaskManager {id_} {exit_text(status)} before it started a slot: its logs "
                        f"{id_}.log and {id_}.fork_server.log say why."
                    )
                if id_ in self._starting:
                    del self._starting[id_]
                    self._refused = status == NO_RESOURCES
                    if not self._refused:
                        self._record_local_failure(id_, now_ms, worked=False)
                yield from self._task_manager_lost(id_, f"its process {exit_text(status)}", now_ms)
            case JobReleased(job=job):
                self._requests.pop(job, None)
                self._releases.pop(job, None)
                yield from self._stop_slots(job, None)
            case ResourceManagerTick():
                yield from self._tick(now_ms)

    def _handle_request(
        self, request_id: int, message: Message, now_ms: int
    ) -> Iterator[Instruction]:
        epoch = None
        if isinstance(message, LeaderMessage | RegisterTaskManager):
            epoch = message.epoch
        if epoch not in (None, self.epoch):
            reason = f"leader epoch {epoch} is not {self.epoch}, this JobManager's"
            yield Reply(request_id=request_id, message=Refused(reason=reason))
            return
        match message:
            case RegisterTaskManager():
                yield from self._replaced_by(message, now_ms)
                reply = self._register(message, now_ms)
            case TaskManagerHeartbeat(id=id_):
                reply = self._record_heartbeat(id_, now_ms)
            case SlotExited():
                yield from self._slot_exited(message)
                reply = self._record_heartbeat(message.id, now_ms)
            case RequestSlots():
                yield from self._stop_slots(message.job, message.attempt)
                reply = self._request(message)
            case ReleaseSlots(job=job, attempt=attempt):
                yield from self._release(job, attempt)
                reply = Acknowledge()
            case _:
                reply = Refused(reason=f"ResourceManager takes no {type(message).__name__}")
        yield Reply(request_id=request_id, message=reply)

    def _register(self, message: RegisterTaskManager, now_ms: int) -> Message:
        sender = f"TaskManager {message.id} at {message.address}"
        other = difference(sender, message.tidegate_version, message.python_version)
        if other is not None:
            return Refused(reason=other)
        known = self._task_managers.get(message.id)
        if known is not None:
            same = known.pid == message.pid and known.address == message.address
            if same:
                return TaskManagerAccepted(epoch=self.epoch)
            return Refused(reason=f"another {message.id} is registered")
        if self._is_local(message.id):
            if message.id not in self._starting:
                return Refused(reason=f"{message.id} was declared lost or has exited")
            del self._starting[message.id]
            self._refused = False
            self._backoff.record_start(now_ms)
        self._task_managers[message.id] = _TaskManager(
            address=message.address,
            pid=message.pid,
            last_heartbeat_ms=now_ms,
            slots=[_Slot(SlotId(message.id, index)) for index in range(message.slots)],
        )
        return TaskManagerAccepted(epoch=self.epoch)

    def _replaced_by(self, message: RegisterTaskManager, now_ms: int) -> Iterator[Instruction]:
        """Declare a TaskManager lost if another one registers with its address.

        Waiting for the heartbeat timeout would take longer, and meanwhile the slots of the dead
        TaskManager could be allocated.
        """
        for id_, tm in list(self._task_managers.items()):
            if tm.address == message.address and id_ != message.id:
                yield from self._task_manager_lost(
                    id_, f"{message.id} has taken its address", now_ms
                )

    def _record_heartbeat(self, id_: TaskManagerId, now_ms: int) -> Message:
        tm = self._task_managers.get(id_)
        if tm is None:
            return Refused(reason=f"{id_} is not registered: it was lost, and its slots too")
        tm.last_heartbeat_ms = now_ms
        return Acknowledge()

    def _request(self, message: RequestSlots) -> Message:
        known = self._requests.get(message.job)
        if known is not None and message.attempt < known.attempt:
            reason = f"attempt {message.attempt} is older than {known.attempt}"
            return Refused(reason=reason)
        if known is not None and known.attempt == message.attempt:
            if known.count != message.count:
                return Refused(
                    reason=f"attempt {message.attempt} asked for {counted(known.count, 'slot')}"
                )
            known.jobmaster_address = message.jobmaster_address
            known.waits = True
        else:
            self._requests.pop(message.job, None)  # a new attempt queues up behind the others
            self._requests[message.job] = _Request(
                message.attempt, message.count, message.jobmaster_address
            )
        return Acknowledge()

    def _release(self, job: JobName, attempt: Attempt) -> Iterator[Instruction]:
        request = self._requests.get(job)
        if request is not None:
            self._releases[job] = _Release(attempt, request.jobmaster_address)
            if request.attempt <= attempt:
                del self._requests[job]
        yield from self._stop_slots(job, Attempt(attempt + 1))

    def _notify_released(self) -> Iterator[Instruction]:
        for job, release in list(self._releases.items()):
            uses = [slot.allocation for slot in self._slots() if slot.allocation is not None]
            if not any(
                allocation.job == job and allocation.attempt <= release.attempt
                for allocation in uses
            ):
                del self._releases[job]
                message = SlotsReleased(job=job, attempt=release.attempt)
                yield NotifyJobMaster(address=release.jobmaster_address, message=message)

    def _slot_started(self, id_: SlotId, allocation_id: int) -> None:
        slot = self._find(id_, allocation_id)
        if slot is not None and slot.phase is SlotPhase.PENDING:
            slot.become(SlotPhase.ALLOCATED)
            self.trouble = ""
            self._task_managers[id_.task_manager].worked = True

    def _slot_not_started(
        self, id_: SlotId, allocation_id: int, reason: str
    ) -> Iterator[Instruction]:
        # Refused or unanswered: in both cases StopSlot ensures that no process of the use runs.
        slot = self._find(id_, allocation_id)
        if slot is not None:
            if slot.phase is SlotPhase.PENDING:
                yield from self._notify_lost(slot, f"it could not be started: {reason}")
            yield from self._stop(slot)

    def _slot_exited(self, message: SlotExited) -> Iterator[Instruction]:
        slot = self._find(SlotId(message.id, message.index), message.allocation_id)
        if slot is not None:
            if slot.phase in _LIVE:
                reason = f"its process {message.pid} {exit_text(message.status)}"
                yield from self._notify_lost(slot, reason)
            slot.become(SlotPhase.FREE)

    def _tick(self, now_ms: int) -> Iterator[Instruction]:
        for id_, tm in list(self._task_managers.items()):
            silent_ms = now_ms - tm.last_heartbeat_ms
            if silent_ms > self.heartbeat_timeout_ms:
                yield from self._task_manager_lost(
                    id_, f"silent for {silent_ms / 1000:.1f} s", now_ms
                )
        for id_, since_ms in list(self._starting.items()):
            if now_ms - since_ms > REGISTRATION_MS_MAX:
                self._starting[id_] = now_ms  # it is replaced when its exit follows
                yield DisconnectTaskManager(id=id_, reason="it has not registered")
        for slot in self._slots():
            if slot.phase is SlotPhase.RELEASING and not slot.stop_under_way:
                yield self._stop_message(slot)

    # --- slots

    def _task_manager_lost(
        self, id_: TaskManagerId, reason: str, now_ms: int
    ) -> Iterator[Instruction]:
        tm = self._task_managers.pop(id_, None)
        if tm is None:
            return
        if self._is_local(id_):
            self._record_local_failure(id_, now_ms, worked=tm.worked)
        for slot in tm.slots:
            if slot.phase in _LIVE:
                yield from self._notify_lost(slot, f"TaskManager {id_} is lost: {reason}")
        yield DisconnectTaskManager(id=id_, reason=reason)

    def _notify_lost(self, slot: _Slot, reason: str) -> Iterator[Instruction]:
        if (
            slot.allocation is not None
            and (request := self._requests.get(slot.allocation.job)) is not None
        ):
            message = SlotLost(
                job=slot.allocation.job,
                attempt=slot.allocation.attempt,
                slot=slot.id,
                allocation_id=slot.allocation.allocation_id,
                reason=reason,
            )
            yield NotifyJobMaster(address=request.jobmaster_address, message=message)

    def _stop_slots(self, job: JobName, before: Attempt | None) -> Iterator[Instruction]:
        """Stop the job's slots of attempts before `before`, or of all attempts if that is None."""
        for slot in self._slots():
            if slot.allocation is None or slot.allocation.job != job:
                continue
            if before is None or slot.allocation.attempt < before:
                yield from self._stop(slot)

    def _stop(self, slot: _Slot) -> Iterator[Instruction]:
        if slot.phase is not SlotPhase.RELEASING:
            slot.become(SlotPhase.RELEASING)
            yield self._stop_message(slot)

    def _stop_message(self, slot: _Slot) -> Instruction:
        check(slot.allocation is not None, f"{slot.id} is stopped but not used.")
        allocation: _SlotAllocation = slot.allocation  # type: ignore[assignment]  # checked above
        slot.stop_under_way = True
        return StopSlotAt(
            address=self._task_managers[slot.id.task_manager].address,
            slot=slot.id,
            allocation_id=allocation.allocation_id,
            job=allocation.job,
            attempt=allocation.attempt,
        )

    def _serve_requests(self) -> Iterator[Instruction]:
        for job, request in self._requests.items():
            if not request.waits:
                continue
            missing = sorted(set(range(request.count)) - set(self.allocations(job)))
            if len(missing) <= self.free_slots():
                request.waits = False
                for ordinal in missing:
                    yield self._allocate(job, request, ordinal)

    def _allocate(self, job: JobName, request: _Request, ordinal: int) -> Instruction:
        slot = self._select_slot(job)
        self._last_allocation_id += 1
        slot.become(SlotPhase.PENDING)
        slot.allocation = _SlotAllocation(job, request.attempt, ordinal, self._last_allocation_id)
        return StartSlotAt(
            address=self._task_managers[slot.id.task_manager].address,
            slot=slot.id,
            allocation_id=self._last_allocation_id,
            ordinal=ordinal,
            job=job,
            attempt=request.attempt,
            jobmaster_address=request.jobmaster_address,
        )

    def _select_slot(self, job: JobName) -> _Slot:
        """Return a free slot of a TaskManager that has the fewest slots of this job.

        Among these prefer the TaskManager with the fewest used slots, then the lowest slot id.
        """

        def load(slot: _Slot) -> tuple[int, int, SlotId]:
            beside = self._task_managers[slot.id.task_manager].slots
            of_job = sum(
                1
                for other in beside
                if other.allocation is not None and other.allocation.job == job
            )
            used = sum(1 for other in beside if other.phase is not SlotPhase.FREE)
            return (of_job, used, slot.id)

        return min((slot for slot in self._slots() if slot.phase is SlotPhase.FREE), key=load)

    def _replace_local(self, now_ms: int) -> Iterator[Instruction]:
        here = sum(1 for id_ in self._task_managers if self._is_local(id_))
        for _ in range(self.local_task_managers - here - len(self._starting)):
            self._started += 1
            id_ = TaskManagerId(f"{self._local_prefix}{self._started}")
            self._starting[id_] = now_ms
            pause_ms = self._backoff.pause_ms()
            if self._refused:
                pause_ms = max(pause_ms, REFUSED_START_PAUSE_MS)
            yield StartTaskManager(id=id_, after_ms=pause_ms)

    def _record_local_failure(self, id_: TaskManagerId, now_ms: int, *, worked: bool) -> None:
        """Count the failure of a local TaskManager.

        An event that ends several at once (a host that was paused) is one failure, not one for
        each. So a TaskManager that was started before the last counted failure counts only if the
        backoff has been reset since.
        """
        is_of_last = int(id_.removeprefix(self._local_prefix)) <= self._failed_up_to
        if not is_of_last or self._backoff.is_reset(now_ms):
            self._failed_up_to = self._started
            self._backoff.record_failure(now_ms, worked=worked)

    # --- looking up

    @property
    def _local_prefix(self) -> str:
        return f"tm-{self.epoch}-"

    def _is_local(self, id_: TaskManagerId) -> bool:
        return id_.startswith(self._local_prefix)

    def _slots(self) -> Iterator[_Slot]:
        for tm in self._task_managers.values():
            yield from tm.slots

    def _find(self, id_: SlotId, allocation_id: int) -> _Slot | None:
        """Return the slot if it still has the use with this allocation id, and else None."""
        tm = self._task_managers.get(id_.task_manager)
        if tm is None or not 0 <= id_.index < len(tm.slots):
            return None
        slot = tm.slots[id_.index]
        return (
            slot
            if slot.allocation is not None and slot.allocation.allocation_id == allocation_id
            else None
        )
