"""The state machine of a job: it takes events and returns instructions.

Theory of operation. A job runs in attempts. Each attempt begins with `Recover`: claim the journal,
settle the last publication, and fence the transactional ids of older attempts. The fencing also
unblocks the consumers that wait behind open transactions of these attempts. Only then is anything
deployed. Slots are requested as soon as the claim has given the attempt its number, so that slot
processes start while the recovery waits for the brokers.

A failure of any part ends the whole attempt. The restart strategy says how long to wait, and the
wait runs in parallel with the next recovery. So published records become visible at once, however
long the wait is. Every job ends through `Close`, which settles and fences once more and writes
`closed` to the journal. This includes a job that failed before anything ran, and a job without a
plan because its code cannot be imported any more. There are three exceptions that end without
`Close`: the job was fenced by another JobMaster, its journal is already closed, or a user's stop
has waited too long for a storage or brokers that do not answer. In the last case the job counts as
failed, and its next run settles and fences.

A stop that drains ends the input first, like that of a bounded job. A restart continues the drain,
because some of the timers may have fired.

The machine uses no journal, no Kafka and no process; `service.py` carries out its instructions. It
does not decide when checkpoints are taken (`checkpoint/coordinator`). It only decides that they
begin, and that the last one is final. Events of an attempt that is not the live one change nothing
(invariant 3).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, assert_never

from tidegate.controlplane.jobmaster.events import (
    AcquireSlots,
    AttemptEvent,
    AttemptFailed,
    Claimed,
    Close,
    CloseFailed,
    DeploySlots,
    EndAttempt,
    EndInput,
    Event,
    ExitProcess,
    FinalCheckpointCommitted,
    Instruction,
    JobClosed,
    JobRecovered,
    ProcessStarted,
    Recover,
    RecoveryFailed,
    RestartDelayElapsed,
    ScheduleRestart,
    SlotDisappeared,
    SlotInputEnded,
    SlotReady,
    SlotRegistered,
    SlotRequestTimedOut,
    StartAttempt,
    StopEnd,
    StopGraceElapsed,
    StopRequested,
    StopTimedOut,
    TakeFinalCheckpoint,
)
from tidegate.errors import (
    ExternalError,
    FencedError,
    InternalError,
    JobClosedError,
    TidegateError,
    is_recoverable,
)
from tidegate.ids import Attempt, SlotId, SubtaskId
from tidegate.message_text import counted
from tidegate.protocol.job_state import ENDED, JobState, ended_as

_MOVES: Final[dict[JobState, frozenset[JobState]]] = {
    JobState.CREATED: frozenset({JobState.INITIALIZING}),
    JobState.INITIALIZING: frozenset(
        {
            JobState.RESTARTING,
            JobState.WAITING_FOR_SLOTS,
            JobState.DEPLOYING,
            JobState.CLOSING,
        }
    ),
    JobState.RESTARTING: frozenset(
        {
            JobState.WAITING_FOR_SLOTS,
            JobState.DEPLOYING,
            JobState.INITIALIZING,
            JobState.CLOSING,
        }
    ),
    JobState.WAITING_FOR_SLOTS: frozenset(
        {JobState.DEPLOYING, JobState.INITIALIZING, JobState.CLOSING}
    ),
    JobState.DEPLOYING: frozenset({JobState.RUNNING, JobState.INITIALIZING, JobState.CLOSING}),
    JobState.RUNNING: frozenset({JobState.STOPPING, JobState.INITIALIZING, JobState.CLOSING}),
    JobState.STOPPING: frozenset({JobState.CLOSING, JobState.INITIALIZING}),
    JobState.CLOSING: frozenset({JobState.FINISHED, JobState.FAILED, JobState.CANCELED}),
}
"""The legal moves of `_move`. In addition, `_end` moves a job that has not ended from any state
directly to an end state: it was fenced, its journal is closed, its close failed, or its stop timed
out."""

_BEFORE_DEPLOYMENT: Final = frozenset(
    {JobState.INITIALIZING, JobState.RESTARTING, JobState.WAITING_FOR_SLOTS}
)

NextDelay = Callable[[], float | None]
"""The restart strategy. It returns the seconds until the next attempt, or None to fail the job."""


class JobMachine:
    """The state machine of one job. `slots` is the number of slots that the job needs. `subtasks`
    are the subtasks that must end before a bounded job ends. They are known once the job is
    `planned`.
    """

    def __init__(
        self, *, slots: int, next_delay: NextDelay, subtasks: frozenset[SubtaskId] = frozenset()
    ) -> None:
        self.state = JobState.CREATED
        self.attempt: Attempt | None = None
        self.restarts = 0
        self.error: TidegateError | None = None
        """The error that ended the last attempt. If the job has failed, the reason for that."""
        self._slots_needed, self._subtasks, self._next_delay = slots, subtasks, next_delay
        self._slots: dict[int, tuple[SlotId, int]] = {}
        self._ready: set[int] = set()
        self._ended: set[SubtaskId] = set()
        self._outcome: JobState | None = None
        self.stopped = ""
        """The `StopEnd` of a finished job. Empty if no stop ended it."""
        self._stop: StopRequested | None = None
        self._restart_delayed = False

    @property
    def subtasks(self) -> frozenset[SubtaskId]:
        """The subtasks of the plan. Empty before the job is planned."""
        return self._subtasks

    @property
    def stops_early(self) -> bool:
        """Whether a final checkpoint is taken for a user's stop, before the end of the input."""
        return self._stop is not None and self._ended != self._subtasks

    @property
    def stop_requested(self) -> bool:
        """Whether a user has asked to stop the job."""
        return self._stop is not None

    @property
    def slots_missing(self) -> int:
        """The number of slots of the live attempt that have not registered."""
        return self._slots_needed - len(self._slots)

    @property
    def waits_for_slots(self) -> bool:
        """Whether slots are missing for the deployment of the attempt, now or soon."""
        return self.state in _BEFORE_DEPLOYMENT and self.slots_missing > 0

    def planned(self, subtasks: frozenset[SubtaskId]) -> None:
        """Set the subtasks of the plan. This is called before anything is deployed."""
        self._subtasks = subtasks

    def handle(self, event: Event) -> list[Instruction]:  # noqa: C901 - one arm for each event
        """Handle one event. Return the instructions that must be carried out, in order."""
        if self.state in ENDED or self._is_stale(event):
            return []
        match event:
            case ProcessStarted():
                return self._move(JobState.INITIALIZING, Recover())
            case Claimed():
                self.attempt = event.attempt
                return [AcquireSlots(attempt=event.attempt)]
            case JobRecovered():
                return self._recovered(event)
            case RecoveryFailed():
                return self._failed(event.error)
            case SlotRegistered():
                self._slots[event.ordinal] = (event.slot, event.allocation_id)
                waits = self.state is JobState.WAITING_FOR_SLOTS
                return self._deploy_when_complete() if waits else []
            case SlotDisappeared():
                return self._slot_disappeared(event)
            case SlotReady():
                return self._slot_ready(event)
            case SlotRequestTimedOut():
                return self._slot_request_timed_out()
            case RestartDelayElapsed():
                return self._restart_delay_elapsed()
            case AttemptFailed():
                return self._failed(event.error)
            case SlotInputEnded():
                return self._input_ended(event)
            case StopRequested():
                return self._stop_requested(event)
            case StopGraceElapsed():
                return self._stop_grace_elapsed()
            case StopTimedOut():
                return self._stop_timed_out(event)
            case FinalCheckpointCommitted():
                # A cancel that came during the commit is still carried out.
                if self.state is JobState.CLOSING:
                    return []
                return self._finish(StopEnd.WITH_CHECKPOINT if self.stops_early else "")
            case JobClosed():
                return self._end(self._outcome)
            case CloseFailed():
                # Published transactions may not be committed yet. A user who reads "finished" would
                # not submit again, and the transactions would time out.
                self.error = self.error or event.error
                fenced = isinstance(event.error, FencedError)
                return self._end(JobState.FENCED if fenced else JobState.FAILED)
        assert_never(event)

    def validate(self) -> None:
        """Check the invariants that hold between events. InternalError if one is broken."""
        live = self.state in {JobState.DEPLOYING, JobState.RUNNING, JobState.STOPPING}
        if live and (self.attempt is None or self.slots_missing):
            message = f"the job is {self.state.shown} without an attempt or with slots missing"
            raise InternalError(message)
        if self.stopped and self.state not in {JobState.CLOSING, JobState.FINISHED}:
            message = f"the job is {self.state.shown}, and finished by a stop"
            raise InternalError(message)
        if not self._ready <= self._slots.keys():
            message = "a slot is ready that never registered"
            raise InternalError(message)

    def _is_stale(self, event: Event) -> bool:
        if isinstance(event, Claimed | RecoveryFailed):
            return self.state is not JobState.INITIALIZING
        if isinstance(event, JobRecovered):
            # A slot may fail while its attempt still recovers, and then the next recovery has
            # begun. Without a plan there was no `Claimed`, and only the end of the job can follow.
            late = event.attempt != self.attempt and not (event.final and self.attempt is None)
            return self.state is not JobState.INITIALIZING or late
        if isinstance(event, JobClosed | CloseFailed):
            return self.state is not JobState.CLOSING
        if isinstance(event, RestartDelayElapsed):
            # If the recovery took longer than the wait of an earlier restart, the end of that wait
            # does not end a later one.
            return not self._restart_delayed or event.restart != self.restarts
        return isinstance(event, AttemptEvent) and event.attempt != self.attempt

    def _recovered(self, event: JobRecovered) -> list[Instruction]:
        if self._stop is not None and not self._stop.final_checkpoint:
            return self._close(JobState.CANCELED)
        if event.final:
            return self._finish(StopEnd.WITH_CHECKPOINT if event.stopped else "")
        if self._stop is not None and not self._stop.drain:
            return self._finish(StopEnd.WITHOUT_CHECKPOINT)
        if self._restart_delayed:
            return self._move(JobState.RESTARTING)
        return self._deploy_when_complete()

    def _restart_delay_elapsed(self) -> list[Instruction]:
        self._restart_delayed = False
        if self.state is not JobState.RESTARTING:
            return []  # the recovery takes longer than the wait
        if self.attempt is None:
            return self._move(JobState.INITIALIZING, Recover())
        return self._deploy_when_complete()

    def _deploy_when_complete(self) -> list[Instruction]:
        attempt = self._live()
        if self.slots_missing:
            if self.state is JobState.WAITING_FOR_SLOTS:
                return []
            return self._move(JobState.WAITING_FOR_SLOTS)
        return self._move(JobState.DEPLOYING, DeploySlots(attempt=attempt))

    def _slot_ready(self, event: SlotReady) -> list[Instruction]:
        if event.ordinal not in self._slots:
            return []  # the slot was lost meanwhile
        self._ready.add(event.ordinal)
        if self.state is not JobState.DEPLOYING or len(self._ready) < self._slots_needed:
            return []
        start: list[Instruction] = [StartAttempt(attempt=event.attempt)]
        if self._stop is not None:  # one that drains: any other has ended the job before
            start.append(EndInput(attempt=event.attempt))
        return self._move(JobState.RUNNING, *start)

    def _slot_disappeared(self, event: SlotDisappeared) -> list[Instruction]:
        gone = (event.slot, event.allocation_id)
        ordinal = next((o for o, use in self._slots.items() if use == gone), None)
        if ordinal is None:
            return []  # news of an earlier use of the slot, or of one that has not registered
        if self.state in _BEFORE_DEPLOYMENT and not event.silent:
            # Nothing is deployed yet: the ResourceManager provides another slot.
            del self._slots[ordinal]
            self._ready.discard(ordinal)
            return []
        if self.state is not JobState.CLOSING:
            # The ResourceManager does not replace a silent slot. It counts the slot as occupied
            # until the attempt ends.
            return self._failed(ExternalError(f"Slot {event.slot} was lost: {event.reason}."))
        return []

    def _slot_request_timed_out(self) -> list[Instruction]:
        if self.state is not JobState.WAITING_FOR_SLOTS:
            return []
        have = len(self._slots)
        error = ExternalError(
            f"The job needs {counted(self._slots_needed, 'slot')} and got {have} within "
            "cluster.slot_request_timeout. Start more TaskManagers, or submit it with a smaller "
            "parallelism."
        )
        return self._failed(error)

    def _input_ended(self, event: SlotInputEnded) -> list[Instruction]:
        self._ended.add(event.subtask)
        if self.state is not JobState.RUNNING or self._ended != self._subtasks:
            return []
        return self._move(JobState.STOPPING, TakeFinalCheckpoint(attempt=event.attempt))

    def _stop_requested(self, event: StopRequested) -> list[Instruction]:
        first = self._stop is None
        if self._stop is None or not event.final_checkpoint:
            self._stop = event
        if self.state in {JobState.CREATED, JobState.INITIALIZING, JobState.CLOSING}:
            # The recovery ends first, because published records must become visible. If it waits
            # for the storage, `StopTimedOut` follows.
            return []
        if self._stop.drain:
            # In other states the input ends as soon as the sources have started.
            runs = first and self.state is JobState.RUNNING
            return [EndInput(attempt=self._live())] if runs else []
        if event.final_checkpoint and self.state is JobState.RUNNING:
            return self._move(JobState.STOPPING, TakeFinalCheckpoint(attempt=self._live()))
        if event.final_checkpoint and self.state is JobState.STOPPING:
            return []
        return self._stopped_without_checkpoint(event)

    def _stop_grace_elapsed(self) -> list[Instruction]:
        stops = self._stop is not None and self.state in {JobState.RUNNING, JobState.STOPPING}
        return self._finish(StopEnd.WITHOUT_CHECKPOINT) if stops else []

    def _stop_timed_out(self, event: StopTimedOut) -> list[Instruction]:
        if self._stop is None:
            return []
        self.error = event.error
        return self._end(JobState.FAILED)

    def _stopped_without_checkpoint(self, stop: StopRequested) -> list[Instruction]:
        if not stop.final_checkpoint:
            return self._close(JobState.CANCELED)
        return self._finish(StopEnd.WITHOUT_CHECKPOINT)

    def _failed(self, error: TidegateError) -> list[Instruction]:
        if isinstance(error, JobClosedError):
            # An earlier JobMaster closed the journal and died before it could report this.
            outcome = ended_as(error.outcome)
            self.error = error if outcome is JobState.FAILED else None
            self.stopped = error.stopped
            return self._end(outcome)
        self.error = error
        if isinstance(error, FencedError):
            return self._end(JobState.FENCED)
        if self.state is JobState.CLOSING:
            return []
        ended: list[Instruction] = []
        if self.attempt is not None:
            ended = [EndAttempt(attempt=self.attempt)]
        delay_s = self._next_delay() if is_recoverable(error) else None
        in_recovery = self.state is JobState.INITIALIZING
        self._forget_attempt()
        if delay_s is None:
            return ended + self._close(JobState.FAILED)
        if in_recovery and self._stop is not None and not self._stop.drain:
            # This is handled like a stop between two attempts. The close settles, and it does not
            # repeat that forever.
            return ended + self._stopped_without_checkpoint(self._stop)
        self.restarts += 1
        self._restart_delayed = True
        back_off = ScheduleRestart(delay_s=delay_s, restart=self.restarts)
        if in_recovery:  # the recovery failed: the next one begins after the wait
            return ended + self._move(JobState.RESTARTING, back_off)
        return ended + self._move(JobState.INITIALIZING, back_off, Recover())

    def _forget_attempt(self) -> None:
        self.attempt = None
        self._slots.clear()
        self._ready.clear()
        self._ended.clear()

    def _finish(self, stopped: str) -> list[Instruction]:
        self.stopped = stopped
        return self._close(JobState.FINISHED)

    def _close(self, outcome: JobState) -> list[Instruction]:
        self._outcome = outcome
        return self._move(JobState.CLOSING, Close(outcome=outcome, stopped=self.stopped))

    def _end(self, outcome: JobState | None) -> list[Instruction]:
        self.state = outcome or JobState.FAILED
        if self.state is not JobState.FINISHED:
            self.stopped = ""
        return [ExitProcess()]

    def _move(self, to: JobState, *instructions: Instruction) -> list[Instruction]:
        if to not in _MOVES[self.state]:
            message = f"a job that is {self.state.shown} cannot become {to.shown}"
            raise InternalError(message)
        self.state = to
        return list(instructions)

    def _live(self) -> Attempt:
        if self.attempt is None:
            message = f"a job that is {self.state.shown} has no attempt"
            raise InternalError(message)
        return self.attempt
