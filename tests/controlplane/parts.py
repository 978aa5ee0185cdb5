"""A small cluster in one thread: a ResourceManager and TaskManagers, joined by an unreliable
network.

A call may arrive late, after its caller has timed out. It may be lost before or after it is
executed, or arrive twice. Slot processes are entries of a table. The test draws what happens next.
"""

import functools
from collections.abc import Callable
from dataclasses import dataclass, field

from tidegate.controlplane.jobmanager import resource_manager_events as r
from tidegate.controlplane.jobmanager.resource_manager import ResourceManager
from tidegate.controlplane.taskmanager import machine as t
from tidegate.ids import Attempt, JobName, LeaderEpoch, TaskManagerId
from tidegate.protocol.messages import (
    Message,
    Refused,
    RegisterJobMaster,
    RegisterTaskManager,
    RequestSlots,
    SlotExited,
    SlotLost,
    StartSlot,
    StopSlot,
)
from tidegate.protocol.versions import PYTHON, TIDEGATE

EPOCH = LeaderEpoch(7)
Delivery = str
"""`good`, `twice`, `late`, `lost` (before it arrives), `unheard` (its reply is lost)."""
DELIVERIES = ("good", "twice", "late", "lost", "unheard")


@dataclass(kw_only=True)
class Cluster:
    delivery: Callable[[], Delivery]
    now_ms: int = 0
    rm: ResourceManager = field(default_factory=lambda: ResourceManager(EPOCH, 0, 10**12))
    tms: dict[str, t.TaskManagerMachine] = field(default_factory=dict)
    processes: dict[tuple[str, int], tuple[int, StartSlot]] = field(default_factory=dict)
    """The pid of each slot process and what it was started for, by TaskManager and slot."""
    in_flight: list[Callable[[], None]] = field(default_factory=list)
    attempts: dict[str, int] = field(default_factory=dict)
    lost: list[tuple[str, int]] = field(default_factory=list)
    """Job and attempt of each SlotLost that was sent."""
    released: list[tuple[str, int]] = field(default_factory=list)
    """The same of each SlotsReleased."""
    occupied: list[str] = field(default_factory=list)
    """Refusals because a slot that was taken for free runs something: there must be none."""
    _pids: int = 100
    _asks: int = 0
    _waiting: dict[tuple[str, int], Callable[[Message], None]] = field(default_factory=dict)

    def add_task_manager(self, name: str, slots: int) -> None:
        self.tms[name] = t.TaskManagerMachine(
            id_=TaskManagerId(name),
            epoch=EPOCH,
            slots=slots,
            heartbeat_timeout_ms=10**12,
            now_ms=self.now_ms,
        )
        self.call_resource_manager(
            RegisterTaskManager(
                id=TaskManagerId(name),
                epoch=EPOCH,
                address=name,
                slots=slots,
                pid=1,
                tidegate_version=TIDEGATE,
                python_version=PYTHON,
            )
        )

    def request(self, job: str, count: int) -> None:
        self.attempts[job] = self.attempts.get(job, 0) + 1
        self.request_again(job, count)

    def request_again(self, job: str, count: int) -> None:
        self.call_resource_manager(
            RequestSlots(
                job=JobName(job),
                epoch=EPOCH,
                attempt=Attempt(self.attempts[job]),
                count=count,
                jobmaster_address=f"master of {job}",
            )
        )

    def kill(self, tm: str, index: int) -> None:
        """Something kills a slot process, and the fork server notices at once."""
        pid, _ = self.processes.pop((tm, index))
        self.in_flight.append(
            lambda: self.feed_task_manager(tm, t.SlotProcessExited(index=index, pid=pid, status=-9))
        )

    def kill_task_manager(self, name: str) -> None:
        del self.tms[name]
        for tm, index in list(self.processes):
            if tm == name:
                del self.processes[tm, index]
        self.feed_resource_manager(r.TaskManagerExited(id=TaskManagerId(name), status=-9))

    def call_resource_manager(self, message: Message) -> Message | None:
        self._asks += 1
        ask = self._asks
        replies = [
            instruction.message
            for instruction in self.feed_resource_manager(
                r.ResourceRequestReceived(request_id=ask, message=message)
            )
            if isinstance(instruction, r.Reply) and instruction.request_id == ask
        ]
        return replies[0] if replies else None

    def feed_resource_manager(self, event: r.Event) -> list[r.Instruction]:
        instructions = self.rm.handle(event, self.now_ms)
        self.rm.validate()
        for instruction in instructions:
            match instruction:
                case r.StartSlotAt():
                    self._start(instruction)
                case r.StopSlotAt():
                    self._stop(instruction)
                case r.NotifyJobMaster(message=SlotLost() as lost):
                    self.lost.append((lost.job, lost.attempt))
                case r.NotifyJobMaster(message=released):
                    self.released.append((released.job, released.attempt))
                case _:
                    pass
        return instructions

    def feed_task_manager(self, name: str, event: t.Event) -> None:
        tm = self.tms.get(name)
        if tm is None:
            return
        instructions = tm.handle(event, self.now_ms)
        tm.validate()
        for instruction in instructions:
            match instruction:
                case t.Reply(request_id=ask, message=message):
                    if isinstance(message, Refused) and " runs " in message.reason:
                        self.occupied.append(message.reason)
                    self._waiting.pop((name, ask))(message)
                case t.ForkSlot(start=start):
                    self.in_flight.append(functools.partial(self._fork, name, start))
                case t.KillSlot(pid=pid):
                    self.in_flight.append(functools.partial(self._kill_pid, name, pid))
                case t.SendToJobManager(message=SlotExited() as exited):
                    self._report(exited)
                case _:
                    pass

    def run_until_idle(self) -> None:
        """Let everything arrive, and time pass, until nothing happens any more."""
        self.delivery = lambda: "good"
        for _ in range(10):
            self.feed_resource_manager(r.ResourceManagerTick())
            while self.in_flight:
                self.in_flight.pop(0)()

    def running(self, job: str) -> list[tuple[int, int]]:
        """Attempt and ordinal of each process of a job."""
        return sorted(
            (start.attempt, start.ordinal)
            for _, start in self.processes.values()
            if start.job == job
        )

    def _start(self, start: r.StartSlotAt) -> None:
        message = StartSlot(
            epoch=EPOCH,
            index=start.slot.index,
            ordinal=start.ordinal,
            job=start.job,
            attempt=start.attempt,
            jobmaster_address=start.jobmaster_address,
            working_folder="",
            settings={},
            allocation_id=start.allocation_id,
        )

        def answered(reply: Message | None) -> None:
            if reply is None or isinstance(reply, Refused):
                reason = "no reply" if reply is None else reply.reason
                event: r.Event = r.SlotNotStarted(
                    slot=start.slot, allocation_id=start.allocation_id, reason=reason
                )
            else:
                event = r.SlotStarted(slot=start.slot, allocation_id=start.allocation_id)
            self.feed_resource_manager(event)

        self._call(start.address, message, answered)

    def _stop(self, stop: r.StopSlotAt) -> None:
        message = StopSlot(
            epoch=EPOCH,
            index=stop.slot.index,
            job=stop.job,
            attempt=stop.attempt,
            allocation_id=stop.allocation_id,
        )

        def answered(reply: Message | None) -> None:
            if reply is None or isinstance(reply, Refused):
                self.feed_resource_manager(
                    r.SlotNotStopped(slot=stop.slot, allocation_id=stop.allocation_id)
                )
            else:
                self.feed_resource_manager(
                    r.SlotStopped(slot=stop.slot, allocation_id=stop.allocation_id)
                )

        self._call(stop.address, message, answered)

    def _call(self, name: str, message: Message, then: Callable[[Message | None], None]) -> None:
        answers: list[Message] = []

        def deliver() -> None:
            if name not in self.tms:
                return
            self._asks += 1
            self._waiting[name, self._asks] = lambda reply: self.in_flight.append(
                lambda: answer(reply)
            )
            self.feed_task_manager(
                name, t.JobManagerRequest(request_id=self._asks, message=message)
            )

        def answer(reply: Message | None) -> None:
            if not answers:
                answers.append(reply or Refused(reason=""))
                then(reply)

        match self.delivery():
            case "good":
                self.in_flight.append(deliver)
            case "twice":
                self.in_flight += [deliver, deliver]
            case "late":
                self.in_flight += [lambda: answer(None), deliver]
            case "lost":
                self.in_flight.append(lambda: answer(None))
            case _:  # its reply is lost
                self.in_flight += [deliver, lambda: answer(None)]

    def _report(self, exited: SlotExited) -> None:
        delivery = self.delivery()
        if delivery == "lost":  # the TaskManager repeats it until it is answered
            self.in_flight.append(lambda: self._report(exited))
        else:
            times = 1 if delivery == "good" else 2
            self.in_flight += [lambda: (self.call_resource_manager(exited), None)[1]] * times

    def _fork(self, name: str, start: StartSlot) -> None:
        if name not in self.tms:
            return
        self._pids += 1
        assert (name, start.index) not in self.processes, "two processes in one slot"
        self.processes[name, start.index] = (self._pids, start)
        self.feed_task_manager(name, t.Forked(index=start.index, pid=self._pids))

    def _kill_pid(self, name: str, pid: int) -> None:
        for (tm, index), (running, _) in list(self.processes.items()):
            if tm == name and running == pid:
                self.kill(tm, index)


def registration(job: JobName, epoch: LeaderEpoch, address: str, pid: int) -> RegisterJobMaster:
    """The registration of a JobMaster of this version."""
    return RegisterJobMaster(
        job=job,
        epoch=epoch,
        address=address,
        pid=pid,
        tidegate_version=TIDEGATE,
        python_version=PYTHON,
    )
