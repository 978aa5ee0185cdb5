"""The checkpoint coordinator of one attempt: it triggers, completes and aborts checkpoints.

This is a pure state machine. The JobMaster's shell passes events that carry the time, and executes
the returned instructions. The coordinator does not publish (`commit/publish.py`), does not know
the journal, and sends no message. It lives as long as the attempt, so a checkpoint id (attempt and
counter) is never used twice.

Theory of operation. At most one checkpoint is pending. It waits for the acknowledgement of every
subtask. One decline or the timeout aborts it. When all acknowledgements have arrived, the
coordinator returns `PublishCheckpoint`, and only `Published` or `PublishFailed` ends the
checkpoint. No timeout applies any more, because a publication that may be in the journal cannot be
aborted.

The first checkpoint starts soon after the attempt starts. So the output that recovery repeats
becomes visible soon, and the progress of a new attempt is saved early. The next checkpoint starts
one interval after the trigger of the last one, but not before `min_pause` after the last
publication. While the job works off a backlog (`backlog.py`), that interval is at least
`interval_during_backlog` (FLIP-309). While the job is idle (`idleness.py`), it is at least
`interval_when_idle`. When the backlog or the idle time ends, a checkpoint that is overdue by the
shorter interval starts at once. Successive failures are counted, each checkpoint once, and a
publication resets the count. The attempt fails when the count exceeds
`tolerable_failed_checkpoints`.

While the checkpoint storage is gone (`StorageStateChanged`), no checkpoint starts, and no failure
counts towards `tolerable_failed_checkpoints`. A checkpoint that still waits for acknowledgements is
aborted. The attempt continues for `tolerated_outage`, a time that the transaction timeout includes,
and then fails. So no transaction times out under a running job. A publication that has no result
yet does not delay this: the next recovery waits for the result, as after any other failure.

After `StopRequested` the next checkpoint is final. It starts at once, and final checkpoints are
retried until one is published or the attempt fails. Sources emit nothing after a final barrier, so
ordinary checkpoints cannot follow.

A prepared transaction is never dropped. `acknowledged_work.py` remembers the transactions of every
acknowledgement, also of a late one and of an aborted checkpoint. It also has the last snapshot of
each subtask.

The module keeps the parts of invariants 2 and 5 of ARCHITECTURE.md that are decided here.
"""

from __future__ import annotations

import enum
import math
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar, Final

from tidegate.checkpoint.acknowledged_work import AcknowledgedWork, subtask_of
from tidegate.checkpoint.coordinator_events import (
    AbortCheckpoint,
    Acknowledged,
    AttemptStarted,
    BacklogChanged,
    CheckpointTick,
    CoordinatorEvent,
    CoordinatorInstruction,
    Declined,
    FailAttempt,
    IdleChanged,
    LogIgnoredAcknowledge,
    PublishCheckpoint,
    Published,
    PublishFailed,
    StopRequested,
    StorageStateChanged,
    TaskEnded,
    TransactionsCommitted,
    TriggerBarriers,
    WakeAt,
)
from tidegate.checkpoint.coordinator_settings import CoordinatorSettings, final_retry_s
from tidegate.checkpoint.pending import (
    AcknowledgeResult,
    CompletedCheckpoint,
    PendingCheckpoint,
    state_size,
)
from tidegate.errors import CheckpointError, InternalError, StorageGoneError, check
from tidegate.ids import Attempt, CheckpointId, SubtaskId
from tidegate.message_text import clause, counted

EVENT_LOG_LENGTH: Final = 50
"""The number of events kept for the message of an illegal event: a few checkpoints' worth at common
parallelisms.
"""


class Phase(enum.Enum):
    """The phase of the coordinator."""

    CREATED = "created"
    """The attempt is being deployed."""
    IDLE = "idle"
    """No checkpoint is pending."""
    PENDING = "pending"
    """A checkpoint is pending: subtasks are acknowledging."""
    PUBLISHING = "publishing"
    """All subtasks have acknowledged, and the JobMaster publishes the checkpoint."""
    FINISHED = "finished"
    """The final checkpoint is published."""
    FAILED = "failed"
    """Too many successive checkpoints failed, or the checkpoint storage was gone for too long."""


MOVES: Final[dict[Phase, frozenset[Phase]]] = {
    Phase.CREATED: frozenset({Phase.IDLE}),
    Phase.IDLE: frozenset({Phase.PENDING, Phase.FAILED}),
    Phase.PENDING: frozenset({Phase.IDLE, Phase.PUBLISHING, Phase.FAILED}),
    Phase.PUBLISHING: frozenset({Phase.IDLE, Phase.FINISHED, Phase.FAILED}),
    Phase.FINISHED: frozenset(),
    Phase.FAILED: frozenset(),
}
"""Every legal move between phases. `CheckpointCoordinator.TRANSITIONS` lists the method for each
event.
"""


@dataclass(slots=True, kw_only=True)
class CheckpointCounts:
    """Counts for display. They only grow, except `failed_in_a_row`, which a publication resets."""

    triggered: int = 0
    completed: int = 0
    failed: int = 0
    failed_in_a_row: int = 0
    last: CompletedCheckpoint | None = None
    last_failure: str | None = None


class CheckpointCoordinator:
    """The state machine. All `subtasks` must acknowledge. `coordinator_events.py` has
    the events.
    """

    TRANSITIONS: ClassVar[dict[tuple[Phase, type], str]] = {
        (Phase.CREATED, AttemptStarted): "_start",
        (Phase.CREATED, CheckpointTick): "_nothing",
        (Phase.CREATED, StopRequested): "_stop_later",
        (Phase.CREATED, BacklogChanged): "_note_load",
        (Phase.CREATED, StorageStateChanged): "_note_storage",
        (Phase.CREATED, TaskEnded): "_end_task",
        (Phase.IDLE, CheckpointTick): "_trigger_if_due",
        (Phase.IDLE, Acknowledged): "_acknowledge_late",
        (Phase.IDLE, Declined): "_nothing",
        (Phase.IDLE, TransactionsCommitted): "_drop_committed",
        (Phase.IDLE, StopRequested): "_stop_now",
        (Phase.IDLE, BacklogChanged): "_reschedule",
        (Phase.IDLE, IdleChanged): "_reschedule",
        (Phase.IDLE, StorageStateChanged): "_note_storage",
        (Phase.IDLE, TaskEnded): "_end_task",
        (Phase.PENDING, CheckpointTick): "_expire_if_due",
        (Phase.PENDING, Acknowledged): "_acknowledge",
        (Phase.PENDING, Declined): "_decline",
        (Phase.PENDING, TransactionsCommitted): "_drop_committed",
        (Phase.PENDING, StopRequested): "_stop_later",
        (Phase.PENDING, BacklogChanged): "_note_load",
        (Phase.PENDING, IdleChanged): "_note_load",
        (Phase.PENDING, StorageStateChanged): "_abort_without_storage",
        (Phase.PENDING, TaskEnded): "_end_task_while_pending",
        (Phase.PUBLISHING, CheckpointTick): "_fail_publication_without_storage",
        (Phase.PUBLISHING, Acknowledged): "_acknowledge_late",
        (Phase.PUBLISHING, Declined): "_nothing",
        (Phase.PUBLISHING, Published): "_complete",
        (Phase.PUBLISHING, PublishFailed): "_fail_publication",
        (Phase.PUBLISHING, TransactionsCommitted): "_drop_committed",
        (Phase.PUBLISHING, StopRequested): "_stop_later",
        (Phase.PUBLISHING, BacklogChanged): "_note_load",
        (Phase.PUBLISHING, IdleChanged): "_note_load",
        (Phase.PUBLISHING, StorageStateChanged): "_note_storage",
        (Phase.PUBLISHING, TaskEnded): "_end_task",
        (Phase.FINISHED, CheckpointTick): "_nothing",
        (Phase.FINISHED, Acknowledged): "_acknowledge_late",
        (Phase.FINISHED, Declined): "_nothing",
        (Phase.FINISHED, TransactionsCommitted): "_drop_committed",
        (Phase.FINISHED, StopRequested): "_nothing",
        (Phase.FINISHED, BacklogChanged): "_nothing",
        (Phase.FINISHED, IdleChanged): "_nothing",
        (Phase.FINISHED, StorageStateChanged): "_nothing",
        (Phase.FINISHED, TaskEnded): "_end_task",
        (Phase.FAILED, CheckpointTick): "_nothing",
        (Phase.FAILED, Acknowledged): "_acknowledge_late",
        (Phase.FAILED, Declined): "_nothing",
        (Phase.FAILED, Published): "_nothing",
        (Phase.FAILED, PublishFailed): "_nothing",
        (Phase.FAILED, TransactionsCommitted): "_drop_committed",
        (Phase.FAILED, StopRequested): "_nothing",
        (Phase.FAILED, BacklogChanged): "_nothing",
        (Phase.FAILED, IdleChanged): "_nothing",
        (Phase.FAILED, StorageStateChanged): "_nothing",
        (Phase.FAILED, TaskEnded): "_end_task",
    }
    """The method for each phase and event. A pair that is not listed is illegal."""

    def __init__(
        self, attempt: Attempt, subtasks: Iterable[SubtaskId], settings: CoordinatorSettings
    ) -> None:
        self._attempt = attempt
        self._settings = settings
        self._running: frozenset[SubtaskId] = frozenset(subtasks)
        check(self._running, "a coordinator of no subtask at all")
        self._phase = Phase.CREATED
        self._pending: PendingCheckpoint | None = None
        self._counter = 0
        self._stopping = False
        #: The earliest time of the next final checkpoint, after a failed checkpoint.
        self._retry_s = -math.inf
        #: The time at which the next ordinary checkpoint is due by the interval alone.
        self._due_s = math.inf
        self._triggered_s = -math.inf
        self._is_processing_backlog = self._is_idle = False
        self._gone_reason = ""
        self._gone_since_s = -math.inf
        self._last_completion_s = -math.inf
        self._wake_s = math.inf
        self._work = AcknowledgedWork()
        self._event_log: deque[str] = deque(maxlen=EVENT_LOG_LENGTH)
        self.counts = CheckpointCounts()

    @property
    def timeout_s(self) -> float:
        """`checkpoint.timeout`."""
        return self._settings.timeout_s

    @property
    def phase(self) -> Phase:
        """The present phase."""
        return self._phase

    @property
    def pending(self) -> CheckpointId | None:
        """The id of the pending checkpoint; None while no checkpoint is pending."""
        return None if self._pending is None else self._pending.id

    @property
    def missing(self) -> frozenset[SubtaskId]:
        """The subtasks whose acknowledgement the pending checkpoint still waits for."""
        return frozenset() if self._pending is None else self._pending.missing

    def handle(self, event: CoordinatorEvent) -> list[CoordinatorInstruction]:
        """Handle one event and return the instructions that follow from it. InternalError, with the
        recent events, if the event is illegal in this phase.
        """
        self._event_log.append(f"{self._phase.value}: {_brief(event)}")
        method = self.TRANSITIONS.get((self._phase, type(event)))
        if method is None:
            raise InternalError(self._describe(f"{type(event).__name__} is illegal"))
        instructions: list[CoordinatorInstruction] = getattr(self, method)(event)
        wake_s = self._next_wake_s()
        if wake_s != self._wake_s:
            self._wake_s = wake_s
            if wake_s < math.inf:
                instructions.append(WakeAt(time_s=wake_s))
        return instructions

    def validate(self) -> None:
        """Check the invariants of this object between two events; for tests and the simulator."""
        under_way = self._phase in {Phase.PENDING, Phase.PUBLISHING}
        self._check((self._pending is not None) == under_way, "pending record and phase differ")
        if self._pending is not None:
            complete = not self._pending.missing
            self._check(complete == (self._phase is Phase.PUBLISHING), "complete, yet waiting")
            self._check(self._pending.id.counter == self._counter, "not the newest counter")
        if self._phase is not Phase.FAILED:
            tolerable = self._settings.tolerable_failed_checkpoints
            self._check(self.counts.failed_in_a_row <= tolerable, "too many failures")

    def __repr__(self) -> str:
        return (
            f"<CheckpointCoordinator {self._phase.value} attempt={self._attempt} "
            f"pending={self.pending} missing={len(self.missing)} stopping={self._stopping}>"
        )

    # --- beginning ------------------------------------------------------------------------------

    def _start(self, event: AttemptStarted) -> list[CoordinatorInstruction]:
        self._move(Phase.IDLE)
        settings = self._settings
        first_s = max(settings.first_s, settings.min_pause_s)
        self._due_s = event.now_s + min(settings.interval_s, first_s)
        return self._trigger_next(event.now_s) if self._stopping else []

    def _trigger_if_due(self, event: CheckpointTick) -> list[CoordinatorInstruction]:
        if self._gone_reason and event.now_s >= self._outage_ends_s():
            return self._fail_without_storage()
        if event.now_s < self._next_trigger_s():
            return []
        return self._trigger(event.now_s)

    def _trigger(self, now_s: float) -> list[CoordinatorInstruction]:
        self._counter += 1
        self._pending = PendingCheckpoint(
            id=CheckpointId(self._attempt, self._counter),
            final=self._stopping,
            started_s=now_s,
            expected=self._running,
        )
        self._triggered_s = now_s
        self._due_s = now_s + self._settings.interval_s
        self.counts.triggered += 1
        self._move(Phase.PENDING)
        return [TriggerBarriers(checkpoint=self._pending.id, final=self._pending.final)]

    def _stop_now(self, event: StopRequested) -> list[CoordinatorInstruction]:
        self._stopping = True
        return self._trigger_next(event.now_s)

    def _stop_later(self, event: StopRequested) -> list[CoordinatorInstruction]:
        del event
        self._stopping = True
        return []

    def _note_load(self, event: BacklogChanged | IdleChanged) -> list[CoordinatorInstruction]:
        match event:
            case BacklogChanged(behind=behind):
                self._is_processing_backlog = behind
            case IdleChanged(idle=idle):
                self._is_idle = idle
        return []

    def _reschedule(self, event: BacklogChanged | IdleChanged) -> list[CoordinatorInstruction]:
        self._note_load(event)
        return self._trigger_next(event.now_s)

    # --- a storage that is gone -----------------------------------------------------------------

    def _note_storage(self, event: StorageStateChanged) -> list[CoordinatorInstruction]:
        if event.gone and not self._gone_reason:
            self._gone_since_s = event.now_s
        self._gone_reason = event.gone
        return self._trigger_next(event.now_s) if self._phase is Phase.IDLE else []

    def _abort_without_storage(self, event: StorageStateChanged) -> list[CoordinatorInstruction]:
        """Abort the pending checkpoint, which cannot complete without the storage. The abort does
        not count as a failure: the job continues without a restart if the storage returns in time.
        """
        if not event.gone:
            return self._note_storage(event)
        pending = self._remove_pending(self._required_pending().id)
        self._move(Phase.IDLE)
        self.counts.last_failure = f"checkpoint {pending.id} was aborted: {event.gone}"
        return [
            AbortCheckpoint(checkpoint=pending.id, reason=event.gone),
            *self._note_storage(event),
        ]

    def _fail_publication_without_storage(
        self, event: CheckpointTick
    ) -> list[CoordinatorInstruction]:
        if not self._gone_reason or event.now_s < self._outage_ends_s():
            return []
        pending = self._remove_pending(self._required_pending().id)
        self.counts.last_failure = f"checkpoint {pending.id} has no result: {self._gone_reason}"
        return self._fail_without_storage()

    def _fail_without_storage(self) -> list[CoordinatorInstruction]:
        """Fail the attempt before its open transactions time out. The next attempt waits for the
        storage.
        """
        self._move(Phase.FAILED)
        error = StorageGoneError(
            f"The checkpoint storage was gone for {self._settings.tolerated_outage_s:g} s "
            f"(checkpoint.tolerated_outage). {self._gone_reason}"
        )
        return [FailAttempt(error=error)]

    def _outage_ends_s(self) -> float:
        return self._gone_since_s + self._settings.tolerated_outage_s

    # --- acknowledgements -----------------------------------------------------------------------

    def _acknowledge(self, event: Acknowledged) -> list[CoordinatorInstruction]:
        pending = self._required_pending()
        if event.checkpoint != pending.id:
            return self._acknowledge_late(event)
        result = pending.acknowledge(
            event.snapshot, alignment_ms=event.alignment_ms, sync_ms=event.sync_ms
        )
        if result is not AcknowledgeResult.SUCCESS:
            return [_ignored(event, result)]
        self._work.remember(event.checkpoint, event.snapshot)
        self._work.keep_snapshot(event.snapshot)
        if pending.missing:
            return []
        self._move(Phase.PUBLISHING)
        return [
            PublishCheckpoint(
                checkpoint=pending.id,
                final=pending.final,
                duration_ms=round((event.now_s - pending.started_s) * 1000),
                snapshots=self._work.snapshots(pending, self._running),
                transactions=self._work.transactions(),
            )
        ]

    def _acknowledge_late(self, event: Acknowledged) -> list[CoordinatorInstruction]:
        """Handle an acknowledgement that belongs to no pending checkpoint: remember its
        transactions and ignore the rest. An unknown subtask or checkpoint is ignored completely.
        """
        known = subtask_of(event.snapshot) in self._running
        ours = event.checkpoint.attempt == self._attempt
        if not (known and ours and 1 <= event.checkpoint.counter <= self._counter):
            return [_ignored(event, AcknowledgeResult.UNKNOWN)]
        if self._pending is not None and event.checkpoint == self._pending.id:
            return [_ignored(event, AcknowledgeResult.DUPLICATE)]
        self._work.remember(event.checkpoint, event.snapshot)
        return [_ignored(event, AcknowledgeResult.DISCARDED)]

    def _drop_committed(self, event: TransactionsCommitted) -> list[CoordinatorInstruction]:
        self._work.drop_committed(event.transactions)
        return []

    # --- ends -----------------------------------------------------------------------------------

    def _complete(self, event: Published) -> list[CoordinatorInstruction]:
        pending = self._remove_pending(event.checkpoint)
        self._last_completion_s = event.now_s
        self.counts.completed += 1
        self.counts.failed_in_a_row = 0
        self.counts.last = CompletedCheckpoint(
            id=pending.id,
            final=pending.final,
            duration_ms=round((event.now_s - pending.started_s) * 1000),
            size=state_size(self._work.snapshots(pending, self._running)),
            alignment_ms=pending.alignment_ms_max,
            sync_ms=pending.sync_ms_max,
            transactions=sum(len(part.transactions) for part in pending.snapshots),
        )
        self._move(Phase.FINISHED if pending.final else Phase.IDLE)
        return [] if pending.final else self._trigger_next(event.now_s)

    def _fail_publication(self, event: PublishFailed) -> list[CoordinatorInstruction]:
        reason = f"could not be published: {event.reason}"
        return self._fail(event.checkpoint, reason, event.now_s)

    def _decline(self, event: Declined) -> list[CoordinatorInstruction]:
        if event.checkpoint != self._required_pending().id:
            return []
        who = "a slot" if event.subtask is None else f"subtask {event.subtask}"
        return self._fail(event.checkpoint, f"declined by {who}: {event.reason}", event.now_s)

    def _expire_if_due(self, event: CheckpointTick) -> list[CoordinatorInstruction]:
        pending = self._required_pending()
        if event.now_s < pending.started_s + self._settings.timeout_s:
            return []
        missing = ", ".join(str(subtask) for subtask in sorted(pending.missing)[:5])
        reason = (
            f"expired after {self._settings.timeout_s:g} s (checkpoint.timeout) without an "
            f"acknowledgement of {counted(len(pending.missing), 'subtask')}, among them {missing}"
        )
        return self._fail(pending.id, reason, event.now_s)

    def _end_task(self, event: TaskEnded) -> list[CoordinatorInstruction]:
        self._check(self._running != {event.subtask}, "the last subtask has ended")
        self._running -= {event.subtask}
        return []

    def _end_task_while_pending(self, event: TaskEnded) -> list[CoordinatorInstruction]:
        self._end_task(event)
        pending = self._required_pending()
        if event.subtask not in pending.missing:
            return []
        # No subtask is at fault, so this abort is not counted as a failure. The next checkpoint
        # does not wait for the finished subtask.
        self._remove_pending(pending.id)
        self._move(Phase.IDLE)
        abort = AbortCheckpoint(
            checkpoint=pending.id, reason=f"subtask {event.subtask} has finished"
        )
        return [abort, *self._trigger(event.now_s)]

    def _fail(
        self, checkpoint: CheckpointId, reason: str, now_s: float
    ) -> list[CoordinatorInstruction]:
        self._remove_pending(checkpoint)
        self.counts.failed += 1
        self.counts.failed_in_a_row += not self._gone_reason
        self.counts.last_failure = f"checkpoint {checkpoint} {reason}"
        abort = AbortCheckpoint(checkpoint=checkpoint, reason=reason)
        if self.counts.failed_in_a_row <= self._settings.tolerable_failed_checkpoints:
            self._retry_s = now_s + final_retry_s(self.counts.failed_in_a_row)
            self._move(Phase.IDLE)
            return [abort, *self._trigger_next(now_s)]
        self._move(Phase.FAILED)
        error = CheckpointError(
            f"{self.counts.failed_in_a_row} checkpoints in a row failed, and "
            "checkpoint.tolerable_failed_checkpoints is "
            f"{self._settings.tolerable_failed_checkpoints}; the last one: "
            f"{clause(self.counts.last_failure)}."
        )
        return [abort, FailAttempt(error=error)]

    def _trigger_next(self, now_s: float) -> list[CoordinatorInstruction]:
        """Trigger the next checkpoint at once if it is due; called when a checkpoint, a backlog or
        an idle time has ended.
        """
        return self._trigger(now_s) if now_s >= self._next_trigger_s() else []

    def _nothing(self, event: CoordinatorEvent) -> list[CoordinatorInstruction]:
        del event
        return []

    # --- helpers --------------------------------------------------------------------------------

    def _next_trigger_s(self) -> float:
        if self._gone_reason:
            return math.inf
        if self._stopping:
            return self._retry_s
        settings = self._settings
        next_s = max(self._due_s, self._last_completion_s + settings.min_pause_s)
        if self._is_processing_backlog:
            next_s = max(next_s, self._triggered_s + settings.interval_during_backlog_s)
        if self._is_idle:
            next_s = max(next_s, self._triggered_s + settings.interval_when_idle_s)
        return next_s

    def _next_wake_s(self) -> float:
        if self._gone_reason and self._phase in {Phase.IDLE, Phase.PUBLISHING}:
            return self._outage_ends_s()
        if self._phase is Phase.IDLE:
            return self._next_trigger_s()
        if self._phase is Phase.PENDING:
            return self._required_pending().started_s + self._settings.timeout_s
        return math.inf

    def _required_pending(self) -> PendingCheckpoint:
        if self._pending is None:
            raise InternalError(self._describe("no checkpoint is under way"))
        return self._pending

    def _remove_pending(self, checkpoint: CheckpointId) -> PendingCheckpoint:
        pending = self._required_pending()
        self._check(pending.id == checkpoint, f"{checkpoint} is not under way")
        self._pending = None
        return pending

    def _move(self, phase: Phase) -> None:
        self._check(phase in MOVES[self._phase], f"no move to {phase.value}")
        self._phase = phase

    def _check(self, holds: object, what: str) -> None:
        """Raise InternalError unless `holds`, like `errors.check`. The message is long, so it is
        only built on failure.
        """
        if not holds:
            raise InternalError(self._describe(what))

    def _describe(self, what: str) -> str:
        return f"checkpoint coordinator: {what}; {self!r}; its story: {' | '.join(self._event_log)}"


def _ignored(event: Acknowledged, result: AcknowledgeResult) -> LogIgnoredAcknowledge:
    return LogIgnoredAcknowledge(
        checkpoint=event.checkpoint, subtask=subtask_of(event.snapshot), result=result
    )


def _brief(event: CoordinatorEvent) -> str:
    name = type(event).__name__
    match event:
        case Acknowledged():
            return f"{name} {event.checkpoint} by {subtask_of(event.snapshot)}"
        case Declined() | Published() | PublishFailed():
            return f"{name} {event.checkpoint}"
        case TaskEnded():
            return f"{name} {event.subtask}"
        case _:
            return name
