"""The JobMaster, which runs one job from its start to its end. `process.py` starts it.

Its loop is one thread that runs small actions in turn. Each action gives an event to a pure machine
(`machine.py` for the job, the checkpoint coordinator inside `attempt.py`) and carries out the
instructions that the machine returns. Work on the journal runs in one more thread, in order
(`journal/journal_worker.py`). RPC threads check the attempt of a message and post the message to
the loop.

The process itself restarts attempts. It exits when the job has ended, when another JobMaster has
fenced or replaced it, or when its JobManager is gone (the parent pipe). If the job has not ended,
another JobMaster claims the journal and continues the job.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Final

from tidegate.checkpoint.backlog import Backlog
from tidegate.checkpoint.coordinator import CheckpointCoordinator
from tidegate.checkpoint.coordinator_settings import CoordinatorSettings
from tidegate.config import Config
from tidegate.controlplane.jobmaster import events as e
from tidegate.controlplane.jobmaster.attempt import AttemptCallbacks, LiveAttempt
from tidegate.controlplane.jobmaster.delays import DelayMonitor
from tidegate.controlplane.jobmaster.hanging_calls import (
    HELD_UP_S,
    StopGrace,
    named_cause,
    stop_note,
)
from tidegate.controlplane.jobmaster.job_reporter import JobReporter
from tidegate.controlplane.jobmaster.job_slots import CLOSE_S_MIN, SlotRequests, SlotShutdown
from tidegate.controlplane.jobmaster.jobmanager_gateway import (
    DRAIN_S,
    DRAIN_WITHOUT_STORAGE_S,
    JobManagerGateway,
)
from tidegate.controlplane.jobmaster.machine import JobMachine
from tidegate.controlplane.jobmaster.restarts import StartFailures, restart_strategy
from tidegate.controlplane.jobmaster.slot_gateway import SlotGateway
from tidegate.controlplane.jobmaster.storage_watch import StorageWatch
from tidegate.controlplane.journal.effect_runner import ProcedureStopped
from tidegate.controlplane.journal.job_plan import JobPlan, try_plan
from tidegate.controlplane.journal.journal_worker import CheckpointCommitted, JournalWorker
from tidegate.controlplane.journal.recovered_job import RecoveredJob
from tidegate.controlplane.loop import EventLoop
from tidegate.errors import ExternalError, InternalError, StorageError, TidegateError
from tidegate.ids import Attempt, SlotId
from tidegate.message_text import counted
from tidegate.ports.drivers import Drivers
from tidegate.protocol.errors import ErrorReport
from tidegate.protocol.job_state import ENDED, JobState
from tidegate.protocol.messages import (
    Acknowledge,
    AcknowledgeCheckpoint,
    AttemptMessage,
    DeclineCheckpoint,
    Message,
    Refused,
    RegisterSlot,
    ReleaseSlots,
    SlotHeartbeat,
    SlotLost,
    SlotsReleased,
    SlotStalled,
    StopJob,
    SubtaskInputEnded,
    TaskFailed,
    TasksReady,
)
from tidegate.protocol.reports import JobReport
from tidegate.protocol.submission import Submission

Action = Callable[[], None]

REPORT_INTERVAL_S: Final = 0.5
ZOMBIE_FENCING_AFTER_S: Final = (1.0, 10.0)
"""The time in seconds from the start of an attempt to the first sweep, and the longest time between
two sweeps. The time doubles after each sweep. A transaction coordinator that was just elected lists
no transactions yet, so a recovery can miss some. Consumers cannot read past these."""

_log = logging.getLogger(__name__)


class JobMaster:
    """The code around the job machine. All methods except `receive` run in the loop."""

    def __init__(
        self,
        submission: Submission,
        config: Config,
        loop: EventLoop[Action],
        manager: JobManagerGateway,
        drivers: Drivers,
        address: str,
        *,
        failure: TidegateError | None = None,
    ) -> None:
        """Create the machine and its helpers. `failure` is the error of a job that has failed
        before: such a job is not planned, but only settled and closed.
        """
        self._submission, self._config, self._loop = submission, config, loop
        self._plan: JobPlan | None = None
        self._failure = failure
        self._manager, self._drivers = manager, drivers
        self._job = submission.job
        strategy = restart_strategy(config.restart, drivers.entropy.random)
        self._machine = JobMachine(
            slots=submission.parallelism,
            next_delay=lambda: strategy.next_backoff(drivers.clock.monotonic()),
        )
        self._journal = JournalWorker(
            submission,
            config,
            drivers,
            loop.post,
            on_retry=self._on_retry,
            storage=manager.storage,
            wanted=manager.is_current,
        )
        self._start_failures = StartFailures(is_first_start=not submission.claimed_attempt)
        self._storage = StorageWatch(self._journal.storage, drivers, loop.post)
        self._live: LiveAttempt | None = None
        self._recovered: RecoveredJob | None = None
        self._reporter = JobReporter(self._job, drivers.process.pid, drivers.clock, config.restart)
        self._delays = DelayMonitor()
        stop_grace_s = config.job.stop_grace_period / 1000
        self._slot_shutdown = SlotShutdown(loop, drivers.clock, max(stop_grace_s, CLOSE_S_MIN))
        self._stop_grace = StopGrace(stop_grace_s)
        self._exiting, self._drain_s = False, DRAIN_S
        self._slot_requests = SlotRequests(
            submission, manager, drivers.clock, address, config.cluster.slot_request_timeout / 1000
        )

    # --- messages -------------------------------------------------------------------------------

    def receive(self, message: Message) -> Message:
        """Refuse messages of another attempt and post the others to the loop. RPC threads call
        this.
        """
        live = self._machine.attempt
        if isinstance(message, AttemptMessage) and message.attempt != live:
            return Refused(reason=f"job {self._job} is in attempt {live}, not {message.attempt}")
        self._loop.post(lambda: self._handle(message))
        return Acknowledge()

    def _handle(self, message: Message) -> None:  # noqa: C901 - one arm for each message
        live = self._live
        if isinstance(message, StopJob):
            self._stop_grace.requested(self._drivers.clock.monotonic(), message)
            self.decide(
                e.StopRequested(final_checkpoint=message.final_checkpoint, drain=message.drain)
            )
        elif isinstance(message, SlotLost):
            self._slot_lost(message)
        elif isinstance(message, SlotsReleased):
            self._slot_shutdown.slots_released(message.attempt)
        elif not isinstance(message, AttemptMessage):
            _log.warning("unexpected message", extra={"kind": type(message).__name__})
        elif live is not None and message.attempt == live.attempt:  # else the attempt has ended
            match message:
                case RegisterSlot():
                    self._register(live, message)
                case TasksReady():
                    self.decide(e.SlotReady(attempt=live.attempt, ordinal=message.ordinal))
                case SlotHeartbeat():
                    live.heartbeat(message.ordinal, message.metrics)
                case SlotStalled():
                    live.stalled(message)
                case AcknowledgeCheckpoint():
                    live.heartbeat(message.ordinal, message.metrics)
                    live.acknowledged(message)
                case DeclineCheckpoint():
                    live.declined(message)
                case SubtaskInputEnded():
                    self.decide(e.SlotInputEnded(attempt=live.attempt, subtask=message.subtask))
                case TaskFailed():
                    now_s = self._drivers.clock.monotonic()
                    failed = message.error.exception()
                    error = self._start_failures.judge(now_s, failed)
                    report = message.error if error is failed else ErrorReport.of(error)
                    self._reporter.set_last_error(report)
                    self.decide(e.AttemptFailed(attempt=live.attempt, error=error))
                case _:
                    _log.warning("unexpected message", extra={"kind": type(message).__name__})

    # --- deciding and carrying out ----------------------------------------------------------------

    def decide(self, event: e.Event) -> None:
        """Give the job machine an event and carry out the instructions that it returns."""
        before = self._machine.state
        for instruction in self._machine.handle(event):
            self._carry_out(instruction)
        self._machine.validate()
        if self._machine.state is not before:
            _log.info(
                "job state changed",
                extra={"state": self._machine.state.shown, "attempt": self._machine.attempt},
            )
            self._report()

    def _carry_out(self, instruction: e.Instruction) -> None:  # noqa: C901 - one arm for each
        match instruction:
            case e.Recover():
                self._recover()
            case e.AcquireSlots(attempt=attempt):
                self._slot_requests.send_request(attempt)
            case e.DeploySlots():
                self._deploy()
            case e.StartAttempt():
                self._required_live().start()
                self._schedule_zombie_fencing(instruction.attempt, ZOMBIE_FENCING_AFTER_S[0])
            case e.EndInput():
                self._required_live().end_input()
            case e.TakeFinalCheckpoint():
                self._required_live().stop()
            case e.EndAttempt(attempt=attempt):
                self._end_attempt(attempt)
            case e.ScheduleRestart():
                event = e.RestartDelayElapsed(restart=instruction.restart)
                self._loop.call_later(instruction.delay_s, lambda: self.decide(event))
            case e.Close():
                self._close(instruction)
            case e.ExitProcess():
                self._exit_process()

    # --- attempts -------------------------------------------------------------------------------

    def _recover(self) -> None:
        """Plan the job if it has no plan yet, and recover it. The code of the job is in the
        checkpoint storage. While the storage is gone, the job cannot be planned or claimed.
        """
        known = self._failure or self._plan
        if known is None:
            self._journal.fetch_code(self._plan_and_recover)
        else:
            self._recover_with(known)

    def _plan_and_recover(self, code: Path | TidegateError | None) -> None:
        """Plan the job and recover it. This imports the user's code in the main thread, as all
        processes do, which may take minutes. If the plan fails, the next attempt retries.
        """
        if isinstance(code, ProcedureStopped):
            self._recovery_failed(code)
            return
        planned = (
            code
            if isinstance(code, TidegateError)
            else try_plan(self._submission, self._config, code)
        )
        if isinstance(planned, JobPlan):
            self._plan = planned
            self._machine.planned(planned.subtasks)
            self._report()  # from now on, silence means that this process hangs
        self._recover_with(planned)

    def _recover_with(self, plan: JobPlan | TidegateError) -> None:
        self._journal.recover(plan, claimed=self._claimed, done=self._is_recovered)

    def _claimed(self, attempt: Attempt) -> None:
        self._slot_requests.begin()
        self._live = LiveAttempt(
            self._job,
            attempt,
            CheckpointCoordinator(
                attempt, self._machine.subtasks, CoordinatorSettings.of(self._config.checkpoint)
            ),
            Backlog(self._config.checkpoint.backlog_window / 1000),
            AttemptCallbacks(
                clock=self._drivers.clock,
                connect_slot=lambda registered: self._connect_slot(attempt, registered),
                wake_at=lambda time_s: self._wake_at(attempt, time_s),
                stops_early=lambda: self._machine.stops_early,
                committed=self._committed,
                fail=lambda error: self._fail(attempt, error),
            ),
            journal=self._journal,
            storage=self._storage,
        )
        self.decide(e.Claimed(attempt=attempt))
        self._report()  # from now on the JobManager knows that there is a journal

    def _is_recovered(self, outcome: RecoveredJob | TidegateError) -> None:
        if isinstance(outcome, TidegateError):
            self._recovery_failed(outcome)
            return
        self._recovered = outcome
        self._reporter.set_hidden_offsets(outcome.restore_plan.hidden_offsets)
        if outcome.read_again:
            _log.warning("offsets are read again", extra={"offsets": outcome.read_again})
            self._reporter.read_again(outcome.read_again)
        event = e.JobRecovered(
            attempt=outcome.attempt, final=outcome.finished, stopped=outcome.stopped
        )
        self.decide(event)

    def _recovery_failed(self, error: TidegateError) -> None:
        error = self._start_failures.judge(self._drivers.clock.monotonic(), error)
        self._reporter.set_last_error(ErrorReport.of(error))
        self.decide(e.RecoveryFailed(error=error))

    def _register(self, live: LiveAttempt, message: RegisterSlot) -> None:
        if live.register(message):
            event = e.SlotRegistered(
                attempt=live.attempt,
                ordinal=message.ordinal,
                slot=message.slot,
                allocation_id=message.allocation_id,
            )
            self.decide(event)

    def _slot_lost(self, message: SlotLost) -> None:
        event = e.SlotDisappeared(
            attempt=message.attempt,
            slot=message.slot,
            allocation_id=message.allocation_id,
            reason=message.reason,
        )
        self._slot_disappeared(event)

    def _slot_silent(self, attempt: Attempt, registered: RegisterSlot, reason: str) -> None:
        event = e.SlotDisappeared(
            attempt=attempt,
            slot=registered.slot,
            allocation_id=registered.allocation_id,
            reason=reason,
            silent=True,
        )
        self._slot_disappeared(event)

    def _slot_disappeared(self, event: e.SlotDisappeared) -> None:
        self._slot_shutdown.slot_exited(event.slot)
        live = self._live
        if live is None or live.attempt != event.attempt or self._machine.state is JobState.CLOSING:
            return
        live.mark_lost(event.slot, event.allocation_id)
        error = ExternalError(f"Slot {event.slot} was lost: {event.reason}.")
        calls = live.hanging_calls() if event.silent else ()
        cause, report = named_cause(error, calls, self._drivers.clock.now_ms(), silent=True)
        self._reporter.set_last_error(report)
        if cause is error:
            self.decide(event)
        else:
            self.decide(e.AttemptFailed(attempt=event.attempt, error=cause))

    def _deploy(self) -> None:
        live, recovered = self._required_live(), self._recovered
        if recovered is None:
            return
        live.deployed = True

        def confirmed(error: TidegateError | None) -> None:
            if self._live is not live or live.ended:
                return
            if error is not None:
                self._fail(live.attempt, error)
                return
            peers = tuple(
                live.slots[ordinal].registered.exchange_address for ordinal in sorted(live.slots)
            )
            for ordinal in live.slots:
                live.send(ordinal, recovered.deploy(ordinal, peers))

        self._journal.check_ownership(confirmed)

    def _connect_slot(self, attempt: Attempt, registered: RegisterSlot) -> SlotGateway:
        def lost(reason: str) -> None:
            self._loop.post(lambda: self._slot_silent(attempt, registered, reason))

        return SlotGateway(
            self._drivers.rpc.connect(registered.address),
            self._drivers.clock,
            self._drivers.threads,
            name=str(registered.slot),
            timeout_s=self._config.cluster.heartbeat_timeout / 1000,
            lost=lost,
        )

    def _end_attempt(self, attempt: Attempt) -> None:
        if self._live is not None and self._live.attempt == attempt:
            self._reporter.attempt_ended(self._live)
            self._live.end()
            self._live = None
        self._recovered = None
        self._journal.abandon()
        self._release(attempt)

    def _on_retry(self, error: TidegateError) -> None:
        """Record the error of work in the journal thread that is repeated."""
        if self._machine.state is not JobState.CLOSING:  # else the reason for the end is shown
            self._reporter.set_last_error(ErrorReport.of(error))
        self._delays.failed(self._drivers.clock.monotonic(), error)

    def _fail(self, attempt: Attempt, error: TidegateError) -> None:
        calls = () if self._live is None else self._live.hanging_calls()
        error, report = named_cause(error, calls, self._drivers.clock.now_ms())
        self._reporter.set_last_error(report)
        self.decide(e.AttemptFailed(attempt=attempt, error=error))

    def user_code_failed(self, error: TidegateError) -> None:
        """Fail the present attempt by an error of user code in this process."""
        _log.error("user code failed in the JobMaster", exc_info=error)
        if self._machine.attempt is not None:
            self._fail(self._machine.attempt, error)

    # --- checkpoints ----------------------------------------------------------------------------

    def _wake_at(self, attempt: Attempt, time_s: float) -> None:
        def tick() -> None:
            if self._live is not None and self._live.attempt == attempt:
                self._live.tick()

        self._loop.call_later(time_s - self._drivers.clock.monotonic(), tick)

    def _committed(self, event: CheckpointCommitted) -> None:
        self._start_failures.started()
        last = self._required_live().coordinator.counts.last
        if last is not None:
            self._reporter.completed(last)
        if not self._reporter.is_recent(REPORT_INTERVAL_S):  # otherwise `poll` reports it
            self._report()
        if event.final:
            self.decide(e.FinalCheckpointCommitted(attempt=event.checkpoint.attempt))

    def _schedule_zombie_fencing(self, attempt: Attempt, after_s: float) -> None:
        def sweep() -> None:
            if self._live is not None and self._live.attempt == attempt:
                self._journal.fence_zombies()
                self._schedule_zombie_fencing(attempt, min(2 * after_s, ZOMBIE_FENCING_AFTER_S[1]))

        self._loop.call_later(after_s, sweep)

    # --- watching and reporting -----------------------------------------------------------------

    def poll(self) -> None:
        """Request missing slots, declare silent slots lost, check the storage, and report news. The
        loop calls this twice a second.
        """
        waiting = self._machine.attempt if self._machine.waits_for_slots else None
        if self._slot_requests.repeat_request(waiting) and waiting is not None:
            self.decide(e.SlotRequestTimedOut(attempt=waiting))
        self._storage.check_storage()
        live = self._live
        if live is not None:
            live.update_storage_state()
            for registered in live.silent(self._config.cluster.heartbeat_timeout / 1000):
                reason = "no heartbeat for cluster.heartbeat_timeout"
                self._slot_silent(live.attempt, registered, reason)
            if self._stop_grace.is_over(self._drivers.clock.monotonic(), self._machine, live):
                now_ms = self._drivers.clock.now_ms()
                self._reporter.add_note(stop_note(live.hanging_calls(), now_ms))
                self.decide(e.StopGraceElapsed(attempt=live.attempt))
        self._end_stop_that_waits()
        report = self._report_now()
        if self._reporter.is_due(report, self._config.cluster.quiet_interval):
            self._send(report)
        self._loop.call_later(REPORT_INTERVAL_S, self.poll)

    def _end_stop_that_waits(self) -> None:
        """End the job if a stop has waited too long for a storage or for brokers."""
        now_s = self._drivers.clock.monotonic()
        failure = self._delays.recent_failure(now_s, lasting_s=HELD_UP_S)
        problem = self._storage.problem
        error = self._stop_grace.timeout_error(now_s, self._machine, problem, failure)
        if error is not None and self._machine.state not in ENDED:
            self._reporter.set_last_error(ErrorReport.of(error))
            self._drain_s = DRAIN_WITHOUT_STORAGE_S
            self.decide(e.StopTimedOut(error=error))

    def _observe_delay(self) -> None:
        now_s = self._drivers.clock.monotonic()
        self._delays.observe(now_s, self._waits_for())
        delay = self._delays.to_log(now_s)
        if delay is not None:
            _log.warning(
                "the job waits",
                extra={
                    "state": self._machine.state.shown,
                    "seconds": round(now_s - delay.since_s),
                    "waiting_for": delay.text,
                },
            )

    def _waits_for(self) -> str:
        """Return a text that says what the job waits for. Empty if the job does not wait. It is for
        the status and the log, and the waiting code has its own deadlines.
        """
        match self._machine.state:
            case JobState.CLOSING:
                return self._slot_shutdown.waits_for
            case JobState.INITIALIZING:
                return (
                    "The recovery commits the last checkpoint and fences transactions of older "
                    "attempts"
                )
            case JobState.WAITING_FOR_SLOTS:
                missing = self._machine.slots_missing
                return f"{counted(missing, 'slot')} {'is' if missing == 1 else 'are'} missing"
            case JobState.DEPLOYING:
                return "The slots restore their state and open their functions"
            case JobState.RUNNING | JobState.STOPPING if self._live is not None:
                return self._live.waits_for()
        return ""

    def _report_now(self) -> JobReport:
        self._observe_delay()
        now_s = self._drivers.clock.monotonic()
        failure = self._delays.recent_failure(now_s)
        fails = str(failure) if isinstance(failure, StorageError) else ""
        return self._reporter.report(
            self._machine,
            self._live,
            self._delays.delay(now_s),
            self._storage.problem or fails,
            planned=self._plan is not None or self._failure is not None,
        )

    def _report(self) -> None:
        self._send(self._report_now())

    def _send(self, report: JobReport) -> None:
        if not self._exiting:
            self._reporter.report_sent(report)
            self._manager.report(report)

    # --- the end --------------------------------------------------------------------------------

    def _close(self, how: e.Close) -> None:
        """Wait until the slots have left, then close the journal."""
        slots: list[SlotId] = []
        if self._live is not None:
            kills = how.stopped == e.StopEnd.WITHOUT_CHECKPOINT
            slots = self._live.responding() if kills else self._live.registered_slots()
            self._live.close_tasks()

        def done(error: TidegateError | None) -> None:
            if error is not None and how.outcome is not JobState.FAILED:
                self._reporter.set_last_error(ErrorReport.of(error))
            event = e.JobClosed() if error is None else e.CloseFailed(error=error)
            self.decide(event)

        def close() -> None:
            self._journal.close(how.outcome.outcome, how.stopped, done)

        self._slot_shutdown.begin(slots, release=self._request_release, then=close)

    def _exit_process(self) -> None:
        """Report how the job ended, release its slots, and end the process."""
        self._report()
        self._exiting = True
        if self._live is not None:
            self._live.end()
        _log.info("the job has ended", extra={"state": self._machine.state.shown})

        def release() -> None:
            self._request_release()
            self._manager.drain(self._drain_s)
            self._loop.stop()

        self._loop.call_later(0.0, release)

    def _request_release(self) -> None:
        attempt = self._machine.attempt
        if attempt is not None:
            self._release(attempt)

    def _release(self, attempt: Attempt) -> None:
        self._slot_shutdown.releasing(attempt)
        self._manager.send(ReleaseSlots(job=self._job, epoch=self._manager.epoch, attempt=attempt))

    def _required_live(self) -> LiveAttempt:
        if self._live is None:
            message = f"job {self._job} is {self._machine.state.shown} without a live attempt"
            raise InternalError(message)
        return self._live
