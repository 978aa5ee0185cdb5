"""The start and the end of a JobMaster process, around the service that runs the job.

The process registers with its JobManager, which sends the job. A process that is refused exits. A
job whose settings cannot be read has neither a storage nor a journal, so the process reports the
error and exits. Otherwise the loop runs until `JobMaster` (`service.py`) stops it. Messages that
come before there is a `JobMaster` are refused, and their senders repeat them.
"""

from __future__ import annotations

from tidegate.config import Config
from tidegate.controlplane.jobmaster import events as e
from tidegate.controlplane.jobmaster.job_reporter import JobReporter
from tidegate.controlplane.jobmaster.jobmanager_gateway import JobManagerGateway
from tidegate.controlplane.jobmaster.service import Action, JobMaster
from tidegate.controlplane.loop import EventLoop
from tidegate.errors import TidegateError, signal_handler_error
from tidegate.ids import JobName, LeaderEpoch
from tidegate.ports.drivers import Drivers
from tidegate.protocol.messages import Message, Refused


def run_jobmaster(
    job: JobName, jobmanager_address: str, epoch: LeaderEpoch, drivers: Drivers
) -> int:
    """Run a job until it ends. Return the exit code of the process."""
    loop: EventLoop[Action] = EventLoop(drivers.clock, drivers.threads)
    client = drivers.rpc.connect(jobmanager_address)
    manager = JobManagerGateway(
        client, drivers.clock, drivers.threads, job, epoch, on_replaced=loop.stop
    )
    box: list[JobMaster] = []
    server = drivers.rpc.serve(lambda message: _receive_when_started(box, message))
    accepted = manager.register(server.address, drivers.process.pid)
    if accepted is None:
        return 1
    try:
        config = Config.from_dict(accepted.submission.settings)
    except TidegateError as error:  # without settings there is no storage, nor a journal in it
        manager.report_now(JobReporter.of_refused(job, drivers.process.pid, error))
        return 0
    failure = None if accepted.close_only is None else accepted.close_only.exception()
    master = JobMaster(
        accepted.submission, config, loop, manager, drivers, server.address, failure=failure
    )
    box.append(master)
    drivers.process.guard_signal_handlers(
        lambda error, signal: loop.post(
            lambda: master.user_code_failed(signal_handler_error(signal, error))
        )
    )
    loop.post(lambda: master.decide(e.ProcessStarted()))
    loop.post(master.poll)
    loop.run(lambda action: action())
    server.close()
    return 0


def _receive_when_started(started: list[JobMaster], message: Message) -> Message:
    return started[0].receive(message) if started else Refused(reason="this JobMaster is starting")
