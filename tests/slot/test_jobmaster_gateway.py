"""The lines between a slot and its JobMaster: a message that fails at the other end is noticed."""

from __future__ import annotations

import errno
import queue
import threading
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tidegate.config import Config
from tidegate.controlplane.jobmaster.slot_gateway import SlotGateway
from tidegate.drivers.clock import SystemClock
from tidegate.drivers.threads import SystemThreads
from tidegate.errors import InternalError, Retry, RpcError, UserCodeError
from tidegate.ids import (
    Attempt,
    CheckpointId,
    JobName,
    SlotId,
    SubtaskId,
    SubtaskIndex,
    TaskManagerId,
    VertexId,
)
from tidegate.protocol.messages import (
    Acknowledge,
    CheckpointCompleted,
    CloseTasks,
    SlotCommand,
    StartSlot,
    TriggerCheckpoint,
)
from tidegate.protocol.slot_metrics import SlotMetrics
from tidegate.protocol.subtask_snapshot import SubtaskSnapshot
from tidegate.slot.jobmaster_gateway import JobMasterGateway
from tidegate.slot.main import Slot

MESSAGE = CloseTasks(job=JobName("job"), attempt=Attempt(1))


class Failing:
    """Both a client whose calls fail at the other end and a clock."""

    def call(self, message: Any, timeout_s: float = 0.0) -> Any:
        raise InternalError("the event loop is stuck")

    def close(self) -> None:
        pass

    def monotonic(self) -> float:
        return 0.0

    def sleep(self, seconds: float) -> None:
        pass


def test_jobmaster_gateway_reports_lost_if_the_jobmaster_fails_on_a_message() -> None:
    said: queue.SimpleQueue[str] = queue.SimpleQueue()
    other = cast("Any", Failing())
    line = JobMasterGateway(
        client=other, clock=other, threads=SystemThreads(), config=Config(), on_lost=said.put
    )
    line.send(MESSAGE)
    assert said.get(timeout=10) == "the JobMaster cannot take CloseTasks: the event loop is stuck"


class Unencodable(Failing):
    """A client that cannot encode a message."""

    def call(self, message: Any, timeout_s: float = 0.0) -> Any:
        raise ValueError("no encoding")


def failing_then() -> None:
    raise ValueError("not posted")


@pytest.mark.parametrize(
    ("other", "reason"),
    [
        (Unencodable(), "CloseTasks cannot be sent: ValueError: no encoding"),
        (
            SimpleNamespace(call=lambda *_, **__: Acknowledge(), monotonic=lambda: 0.0),
            "CloseTasks cannot be sent: ValueError: not posted",
        ),
    ],
)
def test_jobmaster_gateway_reports_lost_if_a_message_cannot_be_sent(
    other: Any, reason: str
) -> None:
    said: queue.SimpleQueue[str] = queue.SimpleQueue()
    line = JobMasterGateway(
        client=other, clock=other, threads=SystemThreads(), config=Config(), on_lost=said.put
    )
    line.send(MESSAGE, then=failing_then)
    assert said.get(timeout=5) == reason


def test_jobmaster_gateway_reports_lost_if_a_heartbeat_cannot_be_sent() -> None:
    """The thread would end without a word, and the JobMaster notice it by its silence only."""
    said: queue.SimpleQueue[str] = queue.SimpleQueue()
    other, beats = cast("Any", Unencodable()), cast("Any", Beats(1))
    line = JobMasterGateway(
        client=other, clock=beats, threads=beats, config=Config(), on_lost=said.put
    )
    line.start_heartbeat(JobName("job"), Attempt(1), 0, SlotMetrics)
    assert said.get(timeout=5) == "SlotHeartbeat cannot be sent: ValueError: no encoding"


class Beats:
    """A clock and the threads of a line: `start` runs the heartbeat here, whose event is awaited so
    many times.
    """

    def __init__(self, beats: int) -> None:
        self.now_s, self._left = 0.0, beats

    def monotonic(self) -> float:
        return self.now_s

    def start(self, run: Any, name: str) -> None:
        if name == "heartbeat":
            run()

    def queue(self) -> None:
        pass

    def event(self) -> Beats:
        return self

    def wait(self, timeout_s: float) -> bool:
        self.now_s += timeout_s
        self._left -= 1
        return self._left < 0


def test_heartbeat_is_sent_at_once_if_metrics_changed_and_rarely_otherwise() -> None:
    beats = Beats(10)
    told: list[tuple[float, int]] = []
    client = SimpleNamespace(
        call=lambda message, timeout_s: told.append((beats.now_s, message.metrics.records_in))
    )
    line = JobMasterGateway(
        client=cast("Any", client),
        clock=cast("Any", beats),
        threads=cast("Any", beats),
        config=Config(),
        on_lost=lambda _: None,
    )
    line.start_heartbeat(
        JobName("job"), Attempt(1), 0, lambda: SlotMetrics(records_in=int(beats.now_s >= 6) * 7)
    )
    assert told == [(1, 0), (4, 0), (6, 7), (9, 7)]


def test_slot_gateway_reports_lost_if_the_slot_fails_on_a_message() -> None:
    said: queue.SimpleQueue[str] = queue.SimpleQueue()
    other = cast("Any", Failing())
    line = SlotGateway(other, other, SystemThreads(), name="tm-1/0", timeout_s=1.0, lost=said.put)
    line.send(MESSAGE)
    assert said.get(timeout=10) == "it cannot take CloseTasks: the event loop is stuck"


class OutOfFiles(Failing):
    """A client that the operating system refuses a file, on this side."""

    def __init__(self) -> None:
        self.closed = threading.Event()

    def call(self, message: Any, timeout_s: float = 0.0) -> Any:
        raise OSError(errno.EMFILE, "too many open files")

    def close(self) -> None:
        self.closed.set()


def test_slot_gateway_reports_lost_if_a_message_cannot_be_sent() -> None:
    """The slot would receive nothing more and keep its attempt waiting."""
    said: queue.SimpleQueue[str] = queue.SimpleQueue()
    other = OutOfFiles()
    client: Any = other
    line = SlotGateway(client, client, SystemThreads(), name="tm-1/0", timeout_s=1.0, lost=said.put)
    line.send(MESSAGE)
    described = f"OSError: [Errno {errno.EMFILE}] too many open files"
    assert said.get(timeout=10) == f"CloseTasks cannot be sent: {described}"
    assert other.closed.wait(10)


class Taking:
    """A client whose first call is answered too late, and which is called again."""

    def __init__(self) -> None:
        self.heard: queue.SimpleQueue[SlotCommand] = queue.SimpleQueue()
        self.calls = 0

    def call(self, message: Any, timeout_s: float = 0.0) -> Any:
        self.heard.put(message)
        self.calls += 1
        if self.calls == 1:
            raise RpcError("no reply in time")
        return Acknowledge()

    def close(self) -> None:
        pass


def test_slot_command_keeps_its_sequence_number_when_it_is_retried() -> None:
    client = Taking()
    line = SlotGateway(
        cast("Any", client),
        cast("Any", Failing()),
        SystemThreads(),
        name="tm-1/0",
        timeout_s=1.0,
        lost=lambda _: None,
    )
    line.send(MESSAGE)
    line.send(MESSAGE)
    assert [client.heard.get(timeout=10).sequence for _ in range(3)] == [1, 1, 2]


def slot_of(*, allocation_id: int, working_folder: str = "") -> Slot:
    """Slot 0 of attempt 1, by its so many-th order; it is not running."""
    start = StartSlot(
        epoch=1,  # type: ignore[arg-type]
        index=0,
        ordinal=0,
        job=JobName("job"),
        attempt=Attempt(1),
        jobmaster_address="",
        working_folder=working_folder,
        settings={},
        allocation_id=allocation_id,
    )
    drivers = SimpleNamespace(
        threads=SystemThreads(),
        clock=SystemClock(),
        rpc=SimpleNamespace(connect=lambda _: Failing()),
        process=SimpleNamespace(exit=lambda _: None),
    )
    return Slot(start, cast("Any", drivers), SlotId(TaskManagerId("tm-1"), 0), 1)


def test_late_slot_removes_only_its_own_local_state_folder(tmp_path: Path) -> None:
    """Found by the simulator: its successor's state went with it, and the job failed."""
    replaced, successor = (
        slot_of(allocation_id=allocation_id, working_folder=str(tmp_path))
        for allocation_id in (1, 2)
    )
    theirs, its = (slot._make_local_state_dir("j1") for slot in (replaced, successor))
    (its.path / "state").touch()
    assert theirs.path.exists()
    theirs.remove()
    assert not theirs.path.exists()
    assert (its.path / "state").exists()


def test_slots_of_different_journals_have_separate_local_state_folders(tmp_path: Path) -> None:
    """Both are attempt 1 of a job of this name, in this folder."""
    first, second = (slot_of(allocation_id=1, working_folder=str(tmp_path)) for _ in range(2))
    mine = first._make_local_state_dir("j1")
    (mine.path / "state").touch()
    other = second._make_local_state_dir("j2")
    other.remove_earlier()
    other.remove()
    assert (mine.path / "state").exists()
    assert mine.path.is_relative_to(tmp_path / ".tidegate/state/job")


@pytest.mark.parametrize("where", ["post", "run_io"])
def test_failure_in_a_posted_action_or_io_thread_is_reported_with_its_subtask(where: str) -> None:
    """An example is a value that is not of its state's type, which is saved behind the barrier."""
    slot, subtask = slot_of(allocation_id=1), SubtaskId(VertexId("totals"), SubtaskIndex(2))
    sent: list[Any] = []
    cast("Any", slot._jobmaster_gateway).send = lambda message, then: sent.append(message)

    def fail() -> None:
        raise UserCodeError("it is no int")

    getattr(slot._engine, where)(fail, subtask)
    for _ in range(2):  # the action, or what its thread says; then the failure
        slot._mailbox.wait(10)
        slot._mailbox.run_posted()
        if sent:
            break
    (failed,) = sent
    assert failed.subtask == subtask


def test_disk_error_in_an_io_thread_is_reported_as_system_call_error_with_restart(
    tmp_path: Path,
) -> None:
    slot = slot_of(allocation_id=1)
    sent: list[Any] = []
    cast("Any", slot._jobmaster_gateway).send = lambda message, then: sent.append(message)
    slot._engine.run_io((tmp_path / "not" / "there").rmdir, None)
    slot._mailbox.wait(10)
    slot._mailbox.run_posted()
    (failed,) = sent
    assert (failed.error.kind, failed.error.retry) == ("SystemCallError", Retry.RESTART)
    assert str(tmp_path / "not" / "there") in failed.error.message


def test_acknowledgement_carries_alignment_and_sync_time_of_the_subtask() -> None:
    slot = slot_of(allocation_id=1)
    sent: list[Any] = []
    cast("Any", slot._jobmaster_gateway).send = sent.append
    snapshot = SubtaskSnapshot(vertex=VertexId("v"), index=SubtaskIndex(0))
    slot.acknowledge(CheckpointId(Attempt(1), 1), snapshot, alignment_ms=40, sync_ms=7)
    (message,) = sent
    assert (message.alignment_ms, message.sync_ms) == (40, 7)


def test_slot_executes_each_command_once_and_ignores_late_repetitions() -> None:
    """A barrier that is injected a second time cuts the stream elsewhere, under the same id: the
    files of the checkpoint were overwritten by it, or its channels fell out of step.
    """
    slot = slot_of(allocation_id=1)
    obeyed: list[int] = []
    slot._mailbox.post = lambda action: obeyed.append(1)  # type: ignore[method-assign]

    def trigger(number: int) -> SlotCommand:
        checkpoint = CheckpointId(Attempt(1), number)
        return TriggerCheckpoint(
            job=JobName("job"), attempt=Attempt(1), checkpoint=checkpoint, sequence=number
        )

    for number in (1, 1, 2, 3, 1, 2, 3):
        assert slot._handle(trigger(number)) == Acknowledge()
    assert len(obeyed) == 3


def test_slot_does_no_more_work_after_close_tasks() -> None:
    """Found by the simulator: a batch that had been read met state that was closed, and so empty;
    a sink that is written at least once showed what came of it.
    """
    slot, story = slot_of(allocation_id=1), list[str]()
    clock = SimpleNamespace(monotonic=lambda: 0.0)
    slot._drivers = cast("Any", SimpleNamespace(clock=clock))
    slot._calls = cast("Any", SimpleNamespace(turn_s=0.0))

    def step(_timeout_s: float) -> bool:
        story.append("step")
        return False

    task: Any = SimpleNamespace(
        step=step,
        flush=lambda: story.append("flush"),
        close=lambda: story.append("close"),
        subtask=None,
    )
    slot._tasks = [task]
    sent: list[Any] = []
    cast("Any", slot._jobmaster_gateway).send = lambda message, then: sent.append(message)
    completed = CheckpointCompleted(
        job=JobName("job"),
        attempt=Attempt(1),
        checkpoint=CheckpointId(Attempt(1), 1),
        committed=(),
        reusable=(),
    )

    def fails() -> None:
        raise InternalError("the reader is closed")

    for action in (
        lambda: slot._handle_command(MESSAGE),
        lambda: slot._handle_command(completed),
        fails,
    ):
        slot._mailbox.post(partial(slot._engine.run_guarded, action, None))
    slot._loop()
    assert (story, sent) == (["close"], [])
