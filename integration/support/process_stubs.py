"""Stub mains of a JobMaster and of a slot, for tests of the processes around them.

`stub_cluster` names them in `ClusterSpec.role_mains`, and the processes import this module. The
JobMaster counts its attempts without a journal. It requests slots, reports them, starts a new
attempt when a slot is lost, and exits when the job is stopped.
"""

import contextlib
import os
import queue
import time

from tidegate.ids import Attempt, JobName, LeaderEpoch, SlotId, TaskManagerId
from tidegate.ports.drivers import Drivers
from tidegate.protocol.errors import ErrorReport
from tidegate.protocol.job_state import JobState
from tidegate.protocol.messages import (
    Acknowledge,
    JobMasterAccepted,
    Message,
    RegisterJobMaster,
    RegisterSlot,
    RequestSlots,
    SlotLost,
    StartSlot,
    StopJob,
)
from tidegate.protocol.reports import AttemptReport, JobReport, ReportJob, SlotReport
from tidegate.protocol.versions import PYTHON, TIDEGATE


def slot(
    start: StartSlot, drivers: Drivers, task_manager: TaskManagerId, task_manager_pid: int
) -> int:
    client = drivers.rpc.connect(start.jobmaster_address)
    if start.settings.get("slot") == "raises":
        raise RuntimeError("as the test wishes")
    client.call(
        RegisterSlot(
            job=start.job,
            attempt=start.attempt,
            ordinal=start.ordinal,
            slot=SlotId(task_manager, start.index),
            pid=os.getpid(),
            task_manager_pid=task_manager_pid,
            address="",
            exchange_address="",
            tidegate_version=TIDEGATE,
            python_version=PYTHON,
        )
    )
    print("slot is up", flush=True)
    while True:
        time.sleep(60)


def jobmaster(job: JobName, jobmanager_address: str, epoch: LeaderEpoch, drivers: Drivers) -> int:
    events: queue.SimpleQueue[Message] = queue.SimpleQueue()

    def handler(message: Message) -> Message:
        events.put(message)
        return Acknowledge()

    server = drivers.rpc.serve(handler)
    jobmanager = drivers.rpc.connect(jobmanager_address)
    accepted = jobmanager.call(
        RegisterJobMaster(
            job=job,
            epoch=epoch,
            address=server.address,
            pid=os.getpid(),
            tidegate_version=TIDEGATE,
            python_version=PYTHON,
        )
    )
    if not isinstance(accepted, JobMasterAccepted):
        return 4
    stub = StubJobMaster(job, accepted.submission.parallelism)
    requested_attempt = 0
    while stub.state == "RUNNING":
        if requested_attempt != stub.attempt:
            requested_attempt = stub.attempt
            jobmanager.call(
                RequestSlots(
                    job=job,
                    epoch=epoch,
                    attempt=Attempt(stub.attempt),
                    count=stub.count,
                    jobmaster_address=server.address,
                )
            )
        jobmanager.call(ReportJob(epoch=epoch, report=stub.report()))
        with contextlib.suppress(queue.Empty):
            stub.receive(events.get(timeout=0.1))
    jobmanager.call(ReportJob(epoch=epoch, report=stub.report()))
    server.close()
    return 0


class StubJobMaster:
    """A stub JobMaster: counts attempts, and knows the slots of the present attempt."""

    def __init__(self, job: JobName, count: int) -> None:
        self.job = job
        self.count = count
        self.attempt = int(time.time() * 1000)  # greater than any attempt of an earlier JobMaster
        self.state = "RUNNING"
        self.slots: dict[int, SlotReport] = {}
        self.history: list[AttemptReport] = []

    def receive(self, message: Message) -> None:
        match message:
            case RegisterSlot() if message.attempt == self.attempt:
                self.slots[message.ordinal] = SlotReport(
                    ordinal=message.ordinal,
                    slot=message.slot,
                    pid=message.pid,
                    task_manager_pid=message.task_manager_pid,
                )
            case SlotLost() if message.attempt == self.attempt:
                error = ErrorReport.of(RuntimeError(message.reason))
                self.history.append(AttemptReport(attempt=self.attempt, ended_ms=0, error=error))
                self.attempt += 1
                self.slots.clear()
            case StopJob():
                self.state = "FINISHED" if message.final_checkpoint else "CANCELED"
            case _:
                pass

    def report(self) -> JobReport:
        return JobReport(
            job=self.job,
            state=JobState(self.state),
            attempt=self.attempt,
            restarts=len(self.history),
            jobmaster_pid=os.getpid(),
            slots=tuple(self.slots[ordinal] for ordinal in sorted(self.slots)),
            slots_missing=self.count - len(self.slots),
            failed_attempts=tuple(self.history),
        )
