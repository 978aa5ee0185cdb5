"""The Dispatcher: knows all jobs, and which process is the JobMaster of each job.

Theory of operation. A submit is answered when the submission is durable, so that an accepted job
survives this process. A job is first STORING, then STARTING (its JobMaster is started but has not
registered), then RUNNING. After a terminal report it is ENDING (the result is being stored), then
ENDED. If a JobMaster dies without a terminal report, the job is WAITING for the end of a pause, and
then another JobMaster starts. The pause grows with each failure. The job's slots are released at
once, because the next JobMaster begins a new attempt anyway. Starts are numbered. Events of an
older start change nothing, and so do messages of a process that is not the current JobMaster.

The JobMaster controls the execution of its job (`jobmaster/machine`). The Dispatcher imports no
user code, and knows a job only from its reports. It remembers a stop until the job has ended, and
sends the stop to every JobMaster that registers. So the death of a JobMaster cannot lose a stop.
The machine is pure; `service.py` carries out its instructions.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Final

import msgspec

from tidegate.controlplane.jobmanager.dispatcher_events import (
    ClaimNotStored,
    DispatcherTick,
    Event,
    ForwardStop,
    Instruction,
    JobMasterExited,
    JobMasterStarted,
    JobStillOwned,
    KillJobMaster,
    ReleaseJobSlots,
    Reply,
    RequestReceived,
    ResultNotStored,
    ResultStored,
    ScheduleStart,
    StartDelayElapsed,
    StartJobMaster,
    StopNotAccepted,
    StoreClaim,
    StoreResult,
    StoreSubmission,
    SubmissionNotStored,
    SubmissionStored,
)
from tidegate.controlplane.jobmanager.failed_starts import cause_of_kill, lost_error
from tidegate.controlplane.jobmanager.job_record import (
    TRANSITIONS,
    JobRecord,
    Phase,
    cancel_is_due,
    failed_cancel,
    report_of,
    view,
)
from tidegate.controlplane.jobmaster.events import STORAGE_HANGS
from tidegate.errors import FencedError, check
from tidegate.exit_status import exit_text
from tidegate.ids import JobName, LeaderEpoch
from tidegate.ports.processes import NO_RESOURCES, REFUSED_START_PAUSE_MS
from tidegate.protocol.errors import ErrorReport
from tidegate.protocol.job_state import ENDED, JobState
from tidegate.protocol.messages import (
    Acknowledge,
    Failed,
    GetJob,
    JobMasterAccepted,
    ListJobs,
    Message,
    Refused,
    RegisterJobMaster,
    StopJob,
    SubmitJob,
)
from tidegate.protocol.reports import JobList, JobReport, ReportJob
from tidegate.protocol.submission import Submission
from tidegate.protocol.versions import difference

START_MS_MAX = 120_000
"""Longest time in ms until a JobMaster registers, and longest silence until it reports that it has
a plan of the job. After that it counts as hanging. Before it has a plan it imports the user's
module, which may load anything, and sends no report during the import. Two minutes is longer than
an import takes."""
SHOW_START_WAIT_AFTER_MS = 2_000
"""Time in ms after which reports say what the start of a JobMaster waits for. The process starts
within milliseconds after the storage has confirmed that this JobManager leads."""
EXIT_TIMEOUT_MS = 10_000
"""Time in ms that a JobMaster has to exit after the job's result is stored. Then it is killed."""
ENDED_MAX = 100
"""Maximum number of ended jobs that are still shown."""


@dataclass(slots=True)
class Dispatcher:
    """The jobs of a cluster under one leader epoch."""

    cluster: str
    epoch: LeaderEpoch
    heartbeat_timeout_ms: int
    storage: str = ""
    """Id of the checkpoint storage. JobMasters write to no other storage."""
    _jobs: dict[JobName, JobRecord] = field(default_factory=dict)
    _starts: int = 0

    def recover(
        self, jobs: Iterable[tuple[Submission, JobReport | None]], now_ms: int
    ) -> list[Instruction]:
        """Take over the jobs of an earlier leader, and start those without a result."""
        instructions: list[Instruction] = []
        for submission, result in jobs:
            if result is not None:
                self._jobs[submission.job] = JobRecord(submission, Phase.ENDED, report=result)
            else:
                job = self._jobs[submission.job] = JobRecord(submission, Phase.STORING)
                job.claim_stored = submission.claimed_attempt > 0
                instructions += self._start(job, now_ms)
        self._forget_oldest()
        return instructions

    def handle(self, event: Event, now_ms: int, wall_ms: int = 0) -> list[Instruction]:
        """Return the instructions for an event at the monotonic time `now_ms`.

        `wall_ms` is only for display.
        """
        return list(self._handle(event, now_ms, wall_ms))

    def live(self) -> list[JobName]:
        """Return the names of jobs that have not ended."""
        return [name for name, job in self._jobs.items() if job.phase is not Phase.ENDED]

    def phase(self, name: JobName) -> Phase | None:
        """Return the phase of a job; None if the Dispatcher has no such job."""
        job = self._jobs.get(name)
        return None if job is None else job.phase

    def submission(self, name: JobName) -> Submission:
        """Return the submission of a job. The Dispatcher must know the job."""
        return self._jobs[name].submission

    def runs_at(self, name: JobName) -> str | None:
        """Return the address of the job's registered JobMaster; None without one."""
        job = self._jobs.get(name)
        return job.address if job is not None and job.phase is Phase.RUNNING else None

    def validate(self) -> None:
        """Check the invariants of every job."""
        for name, job in self._jobs.items():
            where = f"{name} ({job.phase.value})"
            check(job.submission.job == name, f"{where}: under another name")
            check(job.submission.cluster == self.cluster, f"{where}: of another cluster")
            check(job.pid or job.phase is not Phase.RUNNING, f"{where}: without a JobMaster")
            check(not job.pid or job.phase is not Phase.WAITING, f"{where}: with a JobMaster")
            check(bool(job.address) == (job.phase is Phase.RUNNING), f"{where}: address")
            ending = job.phase in {Phase.ENDING, Phase.ENDED}
            reported = job.report is not None and job.report.state in ENDED
            check(ending == reported, f"{where}: ends exactly by a terminal report")
            check(ending or not job.failed_starts.exhausted, f"{where}: started too often")
            check(
                not job.pending_request_ids or job.phase in {Phase.STORING, Phase.ENDING},
                f"{where}: asks",
            )
        ended = [job for job in self._jobs.values() if job.phase is Phase.ENDED]
        check(len(ended) <= ENDED_MAX, "too many ended jobs are kept")

    # --- events

    def _handle(  # noqa: C901  # a case per event
        self, event: Event, now_ms: int, wall_ms: int
    ) -> Iterator[Instruction]:
        match event:
            case RequestReceived(request_id=request_id, message=message):
                yield from self._handle_request(request_id, message, now_ms)
            case SubmissionStored(job=name, code=code):
                job = self._jobs[name]
                job.submission = msgspec.structs.replace(job.submission, code=code)
                yield from self._reply_all(job, Acknowledge())
                yield from self._start(job, now_ms)
            case SubmissionNotStored(job=name, error=error):
                yield from self._reply_all(self._jobs.pop(name), Failed(error=error))
            case ResultStored(job=name):
                job = self._jobs[name]
                yield from self._reply_all(job, Acknowledge())
                self._become(job, Phase.ENDED, now_ms)
                self._forget_oldest()
            case ClaimNotStored(job=name):
                if name in self._jobs:
                    self._jobs[name].claim_stored = False
            case JobStillOwned(job=name):
                yield from self._restart_fenced(self._jobs[name], now_ms, wall_ms)
            case ResultNotStored(job=name):
                self._jobs[name].result_under_way = False
            case StartDelayElapsed(job=name, launch_id=launch_id):
                due = self._find_by_launch(name, launch_id)
                if due is not None and due.phase is Phase.WAITING:
                    yield from self._start(due, now_ms)
            case JobMasterStarted(job=name, launch_id=launch_id, pid=pid):
                started = self._find_by_launch(name, launch_id)
                if started is not None:
                    started.pid, started.since_ms = pid, now_ms
            case StopNotAccepted(job=name, launch_id=launch_id):
                unheard = self._find_by_launch(name, launch_id)
                if unheard is not None:
                    unheard.stop_sent = False
            case JobMasterExited(job=name, launch_id=launch_id):
                exited = self._find_by_launch(name, launch_id)
                if exited is not None:
                    yield from self._exited(exited, event, now_ms, wall_ms)
            case DispatcherTick():
                yield from self._tick(now_ms, wall_ms)

    def _handle_request(
        self, request_id: int, message: Message, now_ms: int
    ) -> Iterator[Instruction]:
        match message:
            case SubmitJob(submission=submission, code=code):
                yield from self._submit(request_id, submission, code, now_ms)
            case GetJob(job=name):
                job = self._jobs.get(name)
                yield Reply(
                    request_id=request_id, message=_unknown(name) if job is None else view(job)
                )
            case ListJobs():
                jobs = tuple(view(job) for job in self._jobs.values())
                yield Reply(request_id=request_id, message=JobList(jobs=jobs))
            case StopJob():
                yield from self._stop(request_id, message, now_ms)
            case RegisterJobMaster():
                yield from self._register(request_id, message, now_ms)
            case ReportJob():
                yield from self._reported(request_id, message, now_ms)
            case _:
                reason = f"the Dispatcher takes no {type(message).__name__}"
                yield Reply(request_id=request_id, message=Refused(reason=reason))

    def _submit(
        self, request_id: int, submission: Submission, code: bytes, now_ms: int
    ) -> Iterator[Instruction]:
        name = submission.job
        known = self._jobs.get(name)
        if known is not None and submission.id and submission.id == known.submission.id:
            # The client repeats a submit whose reply it missed. The reply waits for the storage.
            if known.phase is Phase.STORING:
                known.pending_request_ids.append(request_id)
            else:
                yield Reply(request_id=request_id, message=Acknowledge())
            return
        if known is not None and known.phase is not Phase.ENDED:
            reason = (
                f"A job named {name} is live on this cluster ({view(known).state}): stop it first "
                f"(tidegate stop {name}), or submit under another name."
            )
            yield Reply(request_id=request_id, message=Refused(reason=reason))
            return
        if known is not None and known.pid:
            yield _kill(known, "its job was submitted again")
            yield ReleaseJobSlots(job=name)
        ours = msgspec.structs.replace(submission, cluster=self.cluster, claimed_attempt=0)
        self._jobs[name] = JobRecord(
            ours, Phase.STORING, since_ms=now_ms, pending_request_ids=[request_id]
        )
        yield StoreSubmission(submission=ours, code=code)

    def _stop(self, request_id: int, message: StopJob, now_ms: int) -> Iterator[Instruction]:
        job = self._jobs.get(message.job)
        if job is None:
            yield Reply(request_id=request_id, message=_unknown(message.job))
        elif view(job).state in ENDED:
            reason = f"Job {message.job} has ended already ({view(job).state})."
            yield Reply(request_id=request_id, message=Refused(reason=reason))
        else:
            if job.stop is None or not message.final_checkpoint:  # a cancel stays a cancel
                if job.stop is None or job.stop.final_checkpoint != message.final_checkpoint:
                    job.stop_since_ms = now_ms
                job.stop = message
            job.stop_sent = False
            yield Reply(request_id=request_id, message=Acknowledge())
            yield from self._send_stop(job, now_ms)

    def _send_stop(self, job: JobRecord, now_ms: int) -> Iterator[Instruction]:
        """Send the stop to the registered JobMaster, if any. Ticks repeat it until accepted."""
        if job.phase is Phase.RUNNING and job.stop is not None and not job.stop_sent:
            job.stop_sent = True
            yield ForwardStop(
                job=job.submission.job,
                launch_id=job.launch_id,
                address=job.address,
                message=msgspec.structs.replace(job.stop, waited_ms=now_ms - job.stop_since_ms),
            )

    def _register(
        self, request_id: int, message: RegisterJobMaster, now_ms: int
    ) -> Iterator[Instruction]:
        job = self._find_by_pid(message.job, message.epoch, message.pid)
        if isinstance(job, Refused):
            yield Reply(request_id=request_id, message=job)
            return
        sender = f"The JobMaster of {message.job} at {message.address}"
        other = difference(sender, message.tidegate_version, message.python_version)
        if other is not None:
            job.other_version = other
            yield Reply(request_id=request_id, message=Refused(reason=other))
            return
        if job.phase is Phase.STARTING:
            self._become(job, Phase.RUNNING, now_ms)
            job.stop_sent = False
            _clear_postponed_start(job)
        if job.phase is not Phase.RUNNING:
            reason = f"job {message.job} has ended"
            yield Reply(request_id=request_id, message=Refused(reason=reason))
            return
        job.address = message.address
        job.last_heartbeat_ms = now_ms
        accepted = JobMasterAccepted(
            submission=job.submission, close_only=job.close_only, storage=self.storage
        )
        yield Reply(request_id=request_id, message=accepted)

    def _reported(self, request_id: int, message: ReportJob, now_ms: int) -> Iterator[Instruction]:
        report = message.report
        job = self._find_by_pid(report.job, message.epoch, report.jobmaster_pid)
        if isinstance(job, Refused):
            yield Reply(request_id=request_id, message=job)
        elif job.phase is Phase.ENDING:  # the terminal report, repeated
            job.pending_request_ids.append(request_id)
        elif job.phase is Phase.RUNNING and report.state in ENDED:
            job.pending_request_ids.append(request_id)
            yield from self._end(job, report, now_ms)
        else:
            if job.phase is Phase.RUNNING:
                if report.planned and not job.reported:  # its import has ended
                    job.reported = True
                    job.failed_starts.reset()
                    job.backoff.record_start(now_ms)
                job.report = report if job.reported else _with_last_error(report, job.report)
                job.last_heartbeat_ms = now_ms
                job.worked = report.checkpoints_completed > 0
                yield from self._note_claim(job, report.attempt)
            yield Reply(request_id=request_id, message=Acknowledge())

    def _note_claim(self, job: JobRecord, attempt: int) -> Iterator[Instruction]:
        """Record that the journal holds a claim of this attempt.

        Every later JobMaster of the job gets this attempt with its submission.
        """
        submission = job.submission
        if attempt > submission.claimed_attempt:
            job.submission = msgspec.structs.replace(submission, claimed_attempt=attempt)
        if attempt and not job.claim_stored:
            job.claim_stored = True
            yield StoreClaim(job=submission.job, attempt=attempt)

    def _exited(
        self, job: JobRecord, exited: JobMasterExited, now_ms: int, wall_ms: int
    ) -> Iterator[Instruction]:
        name, status = job.submission.job, exited.status
        how = exited.reason or f"its process {job.pid} {exit_text(status)}"
        if status == STORAGE_HANGS:
            how += ", because a call to the checkpoint storage did not return in checkpoint.timeout"
        job.pid = 0
        yield ReleaseJobSlots(job=name)
        if job.phase in {Phase.ENDING, Phase.ENDED}:
            return
        if not job.reported and (exited.refused or status == NO_RESOURCES):
            why = (
                f"The operating system refuses the JobMaster of {name} a resource: {how}. Give the "
                "JobManager's host more memory, disk space, files or processes"
            )
            yield from self._postpone_start(job, why, now_ms, wall_ms)
            return
        if job.other_version:
            why = f"{job.other_version} Restart the JobManager, so that all versions are the same"
            yield from self._postpone_start(job, why, now_ms, wall_ms)
            return
        job.postponed_since_ms = 0
        # A JobMaster that this JobManager kills has hung.
        cause = "" if job.reported or job.killed else cause_of_kill(status)
        # A storage that hangs is not a failed start: it may answer the next JobMaster.
        if not job.reported and status != STORAGE_HANGS:
            claimed = job.submission.claimed_attempt > 0
            job.failed_starts.record(killed=bool(cause), claimed=claimed)
        job.backoff.record_failure(now_ms, worked=job.worked)
        between = self._note_end(job, lost_error(name, how, cause), wall_ms)
        if job.failed_starts.exhausted:
            closing = job.close_only is not None
            failure = job.failed_starts.error(name, how, cause, closing=closing)
            if closing:
                failed = msgspec.structs.replace(between, state=JobState.FAILED, error=failure)
                yield from self._end(job, failed, now_ms)
                return
            job.close_only = failure
            job.failed_starts.reset()
        self._become(job, Phase.WAITING, now_ms)
        yield ScheduleStart(job=name, launch_id=job.launch_id, after_ms=job.backoff.pause_ms())

    def _postpone_start(
        self, job: JobRecord, why: str, now_ms: int, wall_ms: int
    ) -> Iterator[Instruction]:
        """Postpone the start while the host does not allow it.

        The job did not cause this, so it counts neither as a failed start nor as a restart.
        """
        job.other_version = ""
        _show_refused_start(job, why, wall_ms)
        self._become(job, Phase.WAITING, now_ms)
        yield ScheduleStart(
            job=job.submission.job, launch_id=job.launch_id, after_ms=REFUSED_START_PAUSE_MS
        )

    def _restart_fenced(self, job: JobRecord, now_ms: int, wall_ms: int) -> Iterator[Instruction]:
        """Restart a job that was fenced by an old JobMaster, which had been declared lost.

        The next JobMaster fences the old one permanently. If the old one still has its JobManager,
        that JobManager then checks which JobManager leads, and exits.
        """
        name = job.submission.job
        yield from self._reply_all(job, Acknowledge())
        if job.pid:
            yield _kill(job, "it was fenced")
            yield ReleaseJobSlots(job=name)
        job.pid, job.result_under_way = 0, False
        job.backoff.record_failure(now_ms, worked=job.worked)
        error = ErrorReport.of(
            FencedError(
                f"The JobMaster of {name} was fenced by an older one, which had counted as lost."
            )
        )
        self._note_end(job, error, wall_ms)
        self._starts += 1
        job.launch_id = self._starts  # an exit of the old JobMaster is then ignored
        self._become(job, Phase.WAITING, now_ms)
        yield ScheduleStart(job=name, launch_id=job.launch_id, after_ms=job.backoff.pause_ms())

    def _note_end(self, job: JobRecord, error: ErrorReport, wall_ms: int) -> JobReport:
        """Record the end of a JobMaster that another one will follow.

        Return the report that clients see until then.
        """
        last = job.report or JobReport(job=job.submission.job, state=JobState.CREATED)
        job.history.record_jobmaster_death(last, error, wall_ms)
        job.report = JobReport(
            job=last.job,
            state=JobState.INITIALIZING,
            attempt=last.attempt,
            lag=last.lag,
            error=error,
            reported_ms=last.reported_ms,
        )
        return job.report

    def _tick(self, now_ms: int, wall_ms: int) -> Iterator[Instruction]:
        for job in self._jobs.values():
            in_phase_ms = now_ms - job.since_ms
            yield from self._send_stop(job, now_ms)
            match job.phase:
                case Phase.STARTING | Phase.WAITING if cancel_is_due(job, now_ms):
                    yield from self._cancel_without_jobmaster(job, now_ms)
                case Phase.RUNNING if now_ms - job.last_heartbeat_ms > self._heartbeat_timeout_ms(
                    job
                ):
                    yield _kill(job, f"silent for {(now_ms - job.last_heartbeat_ms) / 1000:.1f} s")
                case Phase.STARTING if job.pid and in_phase_ms > START_MS_MAX:
                    yield _kill(job, "it has not registered")
                case Phase.STARTING if not job.pid and in_phase_ms > SHOW_START_WAIT_AFTER_MS:
                    _show_refused_start(job, _UNCONFIRMED, wall_ms)
                case Phase.ENDED if job.pid and in_phase_ms > EXIT_TIMEOUT_MS:
                    yield _kill(job, "its job has ended")
                case Phase.ENDING if not job.result_under_way:
                    yield self._store_result(job)
                case _:
                    pass

    def _cancel_without_jobmaster(self, job: JobRecord, now_ms: int) -> Iterator[Instruction]:
        """End a canceled job whose JobMaster has not started within `job.stop_grace_period`. The
        journal is not closed, so the next run settles it.
        """
        if job.pid:
            yield _kill(job, "its job was canceled, and it has not registered")
        yield from self._end(job, failed_cancel(job), now_ms)

    def _heartbeat_timeout_ms(self, job: JobRecord) -> int:
        imports = not job.reported or (job.report is not None and not job.report.planned)
        return (
            max(START_MS_MAX, self.heartbeat_timeout_ms) if imports else self.heartbeat_timeout_ms
        )

    # --- moves

    def _become(self, job: JobRecord, phase: Phase, now_ms: int) -> None:
        where = f"{job.submission.job} goes from {job.phase.value} to {phase.value}"
        check((job.phase, phase) in TRANSITIONS, where)
        job.phase = phase
        job.since_ms = now_ms
        if phase is not Phase.RUNNING:
            job.address = ""

    def _start(self, job: JobRecord, now_ms: int) -> Iterator[Instruction]:
        self._become(job, Phase.STARTING, now_ms)
        self._starts += 1
        job.launch_id = self._starts
        job.reported, job.worked, job.killed = False, False, False
        yield StartJobMaster(job=job.submission.job, launch_id=job.launch_id)

    def _end(self, job: JobRecord, report: JobReport, now_ms: int) -> Iterator[Instruction]:
        job.report = job.history.add_sums(report)
        job.history.clear()
        self._become(job, Phase.ENDING, now_ms)  # the JobMaster releases its slots itself
        yield self._store_result(job)

    def _store_result(self, job: JobRecord) -> Instruction:
        job.result_under_way = True
        report = report_of(job)
        return StoreResult(report=report, fenced=report.state == JobState.FENCED)

    def _reply_all(self, job: JobRecord, message: Message) -> Iterator[Instruction]:
        for request_id in job.pending_request_ids:
            yield Reply(request_id=request_id, message=message)
        job.pending_request_ids.clear()

    def _forget_oldest(self) -> None:
        ended = [name for name, job in self._jobs.items() if job.phase is Phase.ENDED]
        for name in ended[:-ENDED_MAX]:
            del self._jobs[name]

    # --- looking up

    def _find_by_launch(self, name: JobName, launch_id: int) -> JobRecord | None:
        job = self._jobs.get(name)
        return job if job is not None and job.launch_id == launch_id else None

    def _find_by_pid(self, name: JobName, epoch: LeaderEpoch, pid: int) -> JobRecord | Refused:
        """Return the job if the sender is its current JobMaster, and else the refusal."""
        if epoch != self.epoch:
            return Refused(reason=f"leader epoch {epoch} is not {self.epoch}, this JobManager's")
        job = self._jobs.get(name)
        if job is None or job.pid != pid:
            return Refused(reason=f"process {pid} is not the JobMaster of {name}")
        return job


_UNCONFIRMED: Final = (
    "The checkpoint storage does not confirm that this JobManager still leads its cluster, and no "
    "JobMaster starts before that. Look at the storage and at the JobManager's log"
)


def _show_refused_start(job: JobRecord, why: str, wall_ms: int) -> None:
    """Show in the job's report why no JobMaster runs. `why` has no full stop at its end."""
    job.postponed_since_ms = job.postponed_since_ms or wall_ms
    job.report = msgspec.structs.replace(
        job.report or JobReport(job=job.submission.job, state=JobState.CREATED),
        waiting_for=f"{why}; the start is retried until it succeeds",
        waiting_since_ms=job.postponed_since_ms,
        start_refused=f"{why}.",
        reported_ms=wall_ms,
    )


def _with_last_error(report: JobReport, last: JobReport | None) -> JobReport:
    """Return the report of a JobMaster that imports, with the reason for which it was started."""
    if report.error is not None or last is None:
        return report
    return msgspec.structs.replace(report, error=last.error)


def _clear_postponed_start(job: JobRecord) -> None:
    """Remove the reason for a postponed start, after the JobMaster has registered."""
    if job.postponed_since_ms and job.report is not None:
        job.report = msgspec.structs.replace(
            job.report, waiting_for="", waiting_since_ms=0, start_refused=""
        )
    job.postponed_since_ms = 0


def _kill(job: JobRecord, reason: str) -> Instruction:
    job.killed = True
    return KillJobMaster(
        job=job.submission.job, launch_id=job.launch_id, pid=job.pid, reason=reason
    )


def _unknown(name: JobName) -> Refused:
    return Refused(reason=f"This cluster knows no job named {name}: tidegate list shows its jobs.")
