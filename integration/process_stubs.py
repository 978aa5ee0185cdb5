"""Mains of a JobMaster and of a slot that do only what their processes are judged by.

Named in `Common.mains` by `stub_cluster`; imported inside the processes. The JobMaster claims
attempts by counting, asks for slots, reports them, begins a new attempt when one is lost, and ends
when it is stopped.
"""

import os
import queue
import time

from tidegate.ids import Attempt, JobName, LeaderEpoch, SlotId, TaskManagerId
from tidegate.ports.drivers import Drivers
from tidegate.protocol.errors import ErrorReport
from tidegate.protocol.messages import (
    AttemptReport,
    Done,
    JobMasterAccepted,
    JobReport,
    Message,
    RegisterJobMaster,
    RegisterSlot,
    ReportJob,
    RequestSlots,
    SlotLost,
    SlotReport,
    StartSlot,
    StopJob,
)


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
        )
    )
    print("slot is up", flush=True)
    while True:
        time.sleep(60)


def jobmaster(job: JobName, jobmanager_address: str, epoch: LeaderEpoch, drivers: Drivers) -> int:
    events: queue.SimpleQueue[Message] = queue.SimpleQueue()

    def handler(message: Message) -> Message:
        events.put(message)
        return Done()

    server = drivers.rpc.serve(handler)
    jobmanager = drivers.rpc.connect(jobmanager_address)
    accepted = jobmanager.call(
        RegisterJobMaster(job=job, epoch=epoch, address=server.address, pid=os.getpid())
    )
    if not isinstance(accepted, JobMasterAccepted):
        return 4
    count = accepted.submission.parallelism
    attempt = int(time.time() * 1000)  # greater than that of any JobMaster before, as a journal's
    slots: dict[int, SlotReport] = {}
    history: list[AttemptReport] = []
    state = "RUNNING"

    def report() -> None:
        jobmanager.call(
            ReportJob(
                epoch=epoch,
                report=JobReport(
                    job=job,
                    state=state,
                    attempt=attempt,
                    restarts=len(history),
                    jobmaster_pid=os.getpid(),
                    slots=tuple(slots[ordinal] for ordinal in sorted(slots)),
                    slots_missing=count - len(slots),
                    history=tuple(history),
                ),
            )
        )

    asked = 0
    while state == "RUNNING":
        if asked != attempt:
            asked = attempt
            jobmanager.call(
                RequestSlots(
                    job=job,
                    epoch=epoch,
                    attempt=Attempt(attempt),
                    count=count,
                    jobmaster_address=server.address,
                )
            )
        report()
        try:
            message = events.get(timeout=0.1)
        except queue.Empty:
            continue
        match message:
            case RegisterSlot() if message.attempt == attempt:
                slots[message.ordinal] = SlotReport(
                    ordinal=message.ordinal,
                    slot=message.slot,
                    pid=message.pid,
                    task_manager_pid=message.task_manager_pid,
                )
            case SlotLost() if message.attempt == attempt:
                error = ErrorReport.of(RuntimeError(message.reason))
                history.append(AttemptReport(attempt=attempt, ended_ms=0, error=error))
                attempt += 1
                slots.clear()
            case StopJob():
                state = "FINISHED" if message.final_checkpoint else "CANCELED"
            case _:
                pass
    report()
    server.close()
    return 0
