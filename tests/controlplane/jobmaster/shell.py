"""A JobMaster whose loop, time, journal and lines are turned by hand; the machine is the true one.

What it sends to the JobManager is in `sent`, what it reports in `reports`. Its lines to slots are
the true ones without their threads: `deliver` runs one until it ends.
"""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

from tidegate.config import Config
from tidegate.controlplane.jobmaster import events as e
from tidegate.controlplane.jobmaster.service import JobMaster
from tidegate.controlplane.journal.journal_worker import CheckpointCommitted
from tidegate.drivers.system import SystemEntropy
from tidegate.drivers.threads import SystemThreads
from tidegate.ids import (
    Attempt,
    CheckpointId,
    JobName,
    LeaderEpoch,
    SlotId,
    SubtaskId,
    SubtaskIndex,
    TaskManagerId,
    VertexId,
)
from tidegate.protocol.job_state import JobState
from tidegate.protocol.messages import (
    AcknowledgeCheckpoint,
    Message,
    Refused,
    RegisterSlot,
    SlotLost,
    SlotsReleased,
    StartSources,
    TasksReady,
)
from tidegate.protocol.reports import JobReport
from tidegate.protocol.slot_metrics import SlotMetrics
from tidegate.protocol.subtask_snapshot import SubtaskSnapshot
from tidegate.protocol.versions import PYTHON, TIDEGATE

JOB = JobName("job")
SUBTASKS = frozenset({SubtaskId(VertexId("orders"), SubtaskIndex(0))})


def slot(ordinal: int) -> SlotId:
    return SlotId(TaskManagerId("tm-1"), ordinal)


class Shell:
    """The JobMaster of a job that needs so many slots."""

    def __init__(self, slots: int = 1) -> None:
        self.now_s = 0.0
        self.due: list[tuple[float, Callable[[], None]]] = []
        self.sent: list[Message] = []
        self.reports: list[JobReport] = []
        self.closed: list[str] = []
        self.drained: list[float] = []
        self.lines: dict[str, Callable[[], None]] = {}
        submission = SimpleNamespace(
            job=JOB, parallelism=slots, claimed_attempt=0, working_folder="/"
        )
        refuses = SimpleNamespace(
            call=lambda message, timeout_s: Refused(reason="it leaves"), close=lambda: None
        )
        drivers = SimpleNamespace(
            clock=SimpleNamespace(monotonic=lambda: self.now_s, now_ms=lambda: 0),
            process=SimpleNamespace(pid=1),
            threads=SystemThreads(),
            entropy=SystemEntropy(),
            rpc=SimpleNamespace(connect=lambda address: refuses),
            blob_store=lambda url: SimpleNamespace(confirm=lambda: None),
        )
        loop = SimpleNamespace(
            call_later=self.call_later, post=lambda action: action(), stop=lambda: None
        )
        manager = SimpleNamespace(
            is_current=lambda: True,
            send=self.sent.append,
            report=self.reports.append,
            drain=self.drained.append,
            epoch=LeaderEpoch(1),
            storage="",
        )
        made: Any = JobMaster
        self.master: JobMaster = made(submission, Config(), loop, manager, drivers, "address")
        self.master._plan = cast("Any", SimpleNamespace(subtasks=SUBTASKS))
        self.master._machine.planned(SUBTASKS)
        drivers.threads = SimpleNamespace(
            queue=SystemThreads().queue,
            start=lambda run, name: self.lines.update({name: run}),
        )
        self.master._journal = cast(
            "Any",
            SimpleNamespace(
                recover=lambda plan, claimed, done: None,
                abandon=lambda: None,
                fence_zombies=lambda: None,
                check_ownership=lambda done: done(None),
                close=lambda outcome, stopped, done: self.closed.append(outcome),
            ),
        )

    # --- time

    def call_later(self, delay_s: float, action: Callable[[], None]) -> None:
        self.due.append((self.now_s + delay_s, action))

    def run_until(self, time_s: float) -> None:
        while self.due and min(at for at, _ in self.due) <= time_s:
            self.due.sort(key=lambda item: item[0])
            self.now_s, action = self.due.pop(0)
            action()
        self.now_s = time_s

    # --- what comes to it

    def claims(self, attempt: int) -> None:
        """The journal holds the claim."""
        if self.master._machine.state is JobState.CREATED:
            self.master.decide(e.ProcessStarted())
        self.master._claimed(Attempt(attempt))

    def recovers(self, attempt: int) -> None:
        """Reports that everything which older attempts left is ended. `claims` came before."""
        order = StartSources(job=JOB, attempt=Attempt(attempt))  # any order serves as deployment
        recovered = SimpleNamespace(
            attempt=Attempt(attempt),
            finished=False,
            read_again="",
            restore_plan=SimpleNamespace(hidden_offsets=0),
            stopped=False,
            deploy=lambda ordinal, peers: order,
        )
        self.master._is_recovered(cast("Any", recovered))

    def registers(
        self, attempt: int, ordinal: int, allocation_id: int, *, tidegate: str = TIDEGATE
    ) -> Message:
        return self.master.receive(
            RegisterSlot(
                job=JOB,
                attempt=Attempt(attempt),
                ordinal=ordinal,
                slot=slot(ordinal),
                pid=100 + allocation_id,
                task_manager_pid=99,
                address=f"slot-{ordinal}",
                exchange_address="",
                allocation_id=allocation_id,
                tidegate_version=tidegate,
                python_version=PYTHON,
            )
        )

    def loses(self, attempt: int, ordinal: int, allocation_id: int, reason: str = "killed") -> None:
        """The ResourceManager says that a slot is gone."""
        self.master.receive(
            SlotLost(
                job=JOB,
                attempt=Attempt(attempt),
                slot=slot(ordinal),
                allocation_id=allocation_id,
                reason=reason,
            )
        )

    def released(self, attempt: int) -> None:
        self.master.receive(SlotsReleased(job=JOB, attempt=Attempt(attempt)))

    def deliver(self, ordinal: int) -> None:
        """The line to the last slot of a place: it refuses whatever it is sent."""
        self.lines.pop(f"to-{slot(ordinal)}")()

    # --- what is seen of it

    def state(self) -> JobState:
        return self.master._machine.state

    def slots_missing(self) -> int:
        return self.master._machine.slots_missing

    def reported_error(self) -> str | None:
        """The error in the next report, or None."""
        self.master._report()
        error = self.reports[-1].error
        return None if error is None else error.message


def running() -> Shell:
    """In attempt 1, on one slot."""
    shell = Shell()
    shell.claims(1)
    shell.registers(1, 0, allocation_id=3)
    shell.recovers(1)
    shell.master.receive(TasksReady(job=JOB, attempt=Attempt(1), ordinal=0))
    assert shell.state() is JobState.RUNNING
    return shell


def committed(counter: int, *, final: bool = False) -> CheckpointCommitted:
    """The commit of a checkpoint of attempt 1."""
    return CheckpointCommitted(
        checkpoint=CheckpointId(Attempt(1), counter), final=final, committed=(), reusable=()
    )


def acknowledged(counter: int) -> AcknowledgeCheckpoint:
    """The acknowledgement of the only subtask, for a checkpoint of attempt 1."""
    (subtask,) = SUBTASKS
    return AcknowledgeCheckpoint(
        job=JOB,
        attempt=Attempt(1),
        checkpoint=CheckpointId(Attempt(1), counter),
        snapshot=SubtaskSnapshot(vertex=subtask.vertex, index=subtask.index),
        alignment_ms=0,
        sync_ms=0,
        ordinal=0,
        metrics=SlotMetrics(),
    )
