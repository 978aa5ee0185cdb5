"""The TaskManager's machine: forks, kills, reports, and when it ends itself."""

import dataclasses

import msgspec
import pytest

from tidegate.controlplane.taskmanager import machine as t
from tidegate.ids import Attempt, JobName, LeaderEpoch, TaskManagerId
from tidegate.protocol.code_places import CodePlace, WatchedCode
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

EPOCH = LeaderEpoch(2)
HEARTBEAT_TIMEOUT_MS = 1_000
HEARTBEAT = TaskManagerHeartbeat(id=TaskManagerId("x"), epoch=EPOCH)


@pytest.fixture
def machine() -> t.TaskManagerMachine:
    return t.TaskManagerMachine(
        id_=TaskManagerId("x"),
        epoch=EPOCH,
        slots=2,
        heartbeat_timeout_ms=HEARTBEAT_TIMEOUT_MS,
        now_ms=0,
    )


def start(allocation_id: int, *, attempt: int = 1, index: int = 0, epoch: int = EPOCH) -> StartSlot:
    return StartSlot(
        epoch=LeaderEpoch(epoch),
        index=index,
        ordinal=0,
        job=JobName("a"),
        attempt=Attempt(attempt),
        jobmaster_address="",
        working_folder="",
        settings={},
        allocation_id=allocation_id,
    )


def stop(allocation_id: int, *, attempt: int = 1, job: str = "a") -> StopSlot:
    return StopSlot(
        epoch=EPOCH,
        index=0,
        job=JobName(job),
        attempt=Attempt(attempt),
        allocation_id=allocation_id,
    )


def ask(machine: t.TaskManagerMachine, number: int, message: Message) -> list[t.Instruction]:
    instructions = machine.handle(t.JobManagerRequest(request_id=number, message=message), 0)
    machine.validate()
    return instructions


def refused(instructions: list[t.Instruction]) -> str:
    (reply,) = instructions
    assert isinstance(reply, t.Reply)
    assert isinstance(reply.message, Refused)
    return reply.message.reason


def run(machine: t.TaskManagerMachine, allocation_id: int, pid: int, attempt: int = 1) -> None:
    assert ask(machine, 1, start(allocation_id, attempt=attempt)) == [
        t.ForkSlot(start=start(allocation_id, attempt=attempt))
    ]
    forked = machine.handle(t.Forked(index=0, pid=pid), 0)
    assert forked == [t.Reply(request_id=1, message=Acknowledge())]
    machine.validate()


def exited(pid: int, status: int, allocation_id: int) -> t.SendToJobManager:
    return t.SendToJobManager(
        message=SlotExited(
            id=TaskManagerId("x"),
            epoch=EPOCH,
            index=0,
            job=JobName("a"),
            attempt=Attempt(1),
            pid=pid,
            status=status,
            allocation_id=allocation_id,
        )
    )


def test_a_slot_that_ends_is_reported_with_its_status(machine: t.TaskManagerMachine) -> None:
    run(machine, 1, 100)
    assert machine.running() == {0: 100}
    assert machine.handle(t.SlotProcessExited(index=0, pid=100, status=-9), 0) == [
        exited(100, -9, 1)
    ]
    assert machine.running() == {}
    run(machine, 2, 101)


def test_a_report_is_repeated_until_it_is_answered(machine: t.TaskManagerMachine) -> None:
    message = exited(100, -9, 1).message
    assert machine.handle(t.RequestFailed(message=message), 0) == [
        t.SendToJobManager(message=message, after_ms=t.RESEND_MS)
    ]
    assert machine.handle(t.Replied(message=message, reply=Acknowledge()), 0) == []


def test_stop_is_acknowledged_when_the_slot_process_has_exited(
    machine: t.TaskManagerMachine,
) -> None:
    run(machine, 1, 100)
    assert ask(machine, 2, stop(1)) == [t.KillSlot(pid=100)]
    assert ask(machine, 3, stop(1)) == []
    assert machine.handle(t.SlotProcessExited(index=0, pid=100, status=-9), 0) == [
        t.Reply(request_id=2, message=Acknowledge()),
        t.Reply(request_id=3, message=Acknowledge()),
        exited(100, -9, 1),
    ]


def test_stop_during_a_fork_kills_the_process_once_its_pid_is_known(
    machine: t.TaskManagerMachine,
) -> None:
    ask(machine, 1, start(1))
    assert "stopped" in refused(ask(machine, 2, stop(1)))
    assert machine.handle(t.Forked(index=0, pid=100), 0) == [t.KillSlot(pid=100)]
    machine.validate()


def test_a_start_that_comes_after_its_stop_is_refused(machine: t.TaskManagerMachine) -> None:
    assert ask(machine, 1, stop(5)) == [t.Reply(request_id=1, message=Acknowledge())]
    assert "older" in refused(ask(machine, 2, start(5)))
    run(machine, 6, 100)


def test_a_start_that_comes_twice_forks_once(machine: t.TaskManagerMachine) -> None:
    ask(machine, 1, start(1))
    assert ask(machine, 2, start(1)) == []
    assert machine.handle(t.Forked(index=0, pid=100), 0) == [
        t.Reply(request_id=1, message=Acknowledge()),
        t.Reply(request_id=2, message=Acknowledge()),
    ]
    assert ask(machine, 3, start(1)) == [t.Reply(request_id=3, message=Acknowledge())]


def test_stop_of_an_older_attempt_or_another_job_does_not_kill_the_running_slot(
    machine: t.TaskManagerMachine,
) -> None:
    run(machine, 3, 100, attempt=2)
    assert ask(machine, 2, stop(1, attempt=1)) == [t.Reply(request_id=2, message=Acknowledge())]
    assert ask(machine, 3, stop(1, attempt=9, job="b")) == [
        t.Reply(request_id=3, message=Acknowledge())
    ]
    assert "runs attempt 2" in refused(ask(machine, 4, start(4, attempt=3)))


def test_start_with_another_epoch_or_an_unknown_slot_is_refused(
    machine: t.TaskManagerMachine,
) -> None:
    assert "epoch" in refused(ask(machine, 1, start(1, epoch=EPOCH - 1)))
    assert "epoch" in refused(ask(machine, 2, start(1, epoch=EPOCH + 1)))
    assert "no slot 2" in refused(ask(machine, 3, start(1, index=2)))
    assert "no slot -1" in refused(ask(machine, 4, start(1, index=-1)))


class TestEnd:
    def test_taskmanager_exits_if_its_heartbeat_is_refused(
        self, machine: t.TaskManagerMachine
    ) -> None:
        reply = t.Replied(message=HEARTBEAT, reply=Refused(reason="was given up"))
        (end,) = machine.handle(reply, 0)
        assert isinstance(end, t.ExitProcess)
        assert "was given up" in end.reason
        assert machine.handle(t.HeartbeatDue(), 0) == []

    def test_taskmanager_exits_if_the_jobmanager_is_silent_for_the_heartbeat_timeout(
        self, machine: t.TaskManagerMachine
    ) -> None:
        assert machine.handle(t.HeartbeatDue(), 0) == [t.SendToJobManager(message=HEARTBEAT)]
        assert machine.handle(t.HeartbeatDue(), 10) == []  # one at a time
        machine.handle(t.Replied(message=HEARTBEAT, reply=Acknowledge()), 100)
        machine.handle(t.HeartbeatDue(), 200)
        assert machine.handle(t.RequestFailed(message=HEARTBEAT), 100 + HEARTBEAT_TIMEOUT_MS) == []
        (end,) = machine.handle(t.RequestFailed(message=HEARTBEAT), 101 + HEARTBEAT_TIMEOUT_MS)
        assert isinstance(end, t.ExitProcess)

    def test_taskmanager_exits_if_a_heartbeat_never_returns(
        self, machine: t.TaskManagerMachine
    ) -> None:
        machine.handle(t.HeartbeatDue(), 0)
        (end,) = machine.handle(t.HeartbeatDue(), HEARTBEAT_TIMEOUT_MS + 1)
        assert isinstance(end, t.ExitProcess)

    def test_taskmanager_exits_if_its_fork_server_dies(self, machine: t.TaskManagerMachine) -> None:
        (end,) = machine.handle(t.ForkServerExited(status=-9), 0)
        assert isinstance(end, t.ExitProcess)
        assert "-9" in end.reason


def test_slot_is_free_after_the_operating_system_refused_the_fork(
    machine: t.TaskManagerMachine,
) -> None:
    ask(machine, 1, start(1))
    ask(machine, 2, start(1))
    answers = machine.handle(t.NotForked(index=0, reason="no process id"), 0)
    reasons = [refused([answer]) for answer in answers]
    assert reasons == ["the operating system refused the slot's process: no process id"] * 2
    machine.validate()
    run(machine, 2, 100)


def test_stop_is_acknowledged_if_the_fork_was_refused(machine: t.TaskManagerMachine) -> None:
    ask(machine, 1, start(1))
    ask(machine, 2, stop(1))
    refusal = t.NotForked(index=0, reason="no process id")
    assert machine.handle(refusal, 0) == [t.Reply(request_id=2, message=Acknowledge())]
    machine.validate()
    run(machine, 2, 100)


def test_stalled_slot_is_reported_to_its_jobmaster(machine: t.TaskManagerMachine) -> None:
    run(machine, 1, pid=11)
    place = CodePlace("/job.py", 1, 9, "match", "running", "running#0")
    code = WatchedCode(ordinal=0, thread=1, places=(place,), stalled_after_ms=6_000)
    event = t.SlotProcessStalled(
        index=0,
        pid=11,
        code=msgspec.json.encode(code).decode(),
        dump='Thread 0x1 (most recent call first):\n  File "/job.py", line 3 in match\n',
        seen_ms=10_000,
    )
    (told,) = machine.handle(event, 0)
    assert isinstance(told, t.SendToJobMaster)
    assert isinstance(told.message, SlotStalled)
    assert (told.message.call.step, told.message.call.since_ms) == ("running", 4_000)
    assert machine.handle(dataclasses.replace(event, pid=12), 0) == []  # an earlier process
