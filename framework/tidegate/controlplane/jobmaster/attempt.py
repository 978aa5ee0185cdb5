"""The live attempt: its slots, its checkpoints, and the messages to and from the slots.

Each attempt has one object. It is created when the journal is claimed and dropped when the attempt
ends, so that no state of an attempt outlives it. It connects the checkpoint coordinator (pure) to
the slot gateways and to the journal thread, which publishes and commits. All methods run in the
JobMaster's loop.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

import msgspec

from tidegate.checkpoint.backlog import Backlog
from tidegate.checkpoint.coordinator import CheckpointCoordinator
from tidegate.checkpoint.coordinator_events import (
    AbortCheckpoint,
    Acknowledged,
    AttemptStarted,
    BacklogChanged,
    CheckpointTick,
    CoordinatorEvent,
    Declined,
    FailAttempt,
    IdleChanged,
    LogIgnoredAcknowledge,
    PublishCheckpoint,
    Published,
    PublishFailed,
    StopRequested,
    StorageStateChanged,
    TransactionsCommitted,
    TriggerBarriers,
    WakeAt,
)
from tidegate.checkpoint.idleness import Idleness
from tidegate.controlplane.jobmaster.slot_gateway import SlotGateway
from tidegate.controlplane.jobmaster.storage_watch import StorageWatch
from tidegate.controlplane.journal.journal_worker import (
    CheckpointCommitted,
    CheckpointNotPublished,
    CheckpointPublished,
    JournalWorker,
    PublicationEvent,
    PublicationFailed,
)
from tidegate.errors import ExternalError, TidegateError
from tidegate.ids import Attempt, JobName, SlotId
from tidegate.ports.clock import Clock
from tidegate.protocol.messages import (
    AcknowledgeCheckpoint,
    CheckpointAborted,
    CheckpointCompleted,
    CloseTasks,
    DeclineCheckpoint,
    DrainSources,
    RegisterSlot,
    SlotCommand,
    SlotStalled,
    StartSources,
    TriggerCheckpoint,
)
from tidegate.protocol.reports import SlotReport, add_counts
from tidegate.protocol.slot_metrics import HangingCall, SlotMetrics
from tidegate.protocol.versions import difference

SHOWN_MAX: Final = 4
"""The most missing subtasks that a status lists."""

_log = logging.getLogger(__name__)


@dataclass(slots=True, kw_only=True)
class RegisteredSlot:
    """A slot that has registered."""

    registered: RegisterSlot
    gateway: SlotGateway
    last_heartbeat_s: float
    lost: bool = False
    """Whether the slot is known to be lost. It keeps its place until another slot takes the
    place."""
    metrics: SlotMetrics = field(default_factory=SlotMetrics)
    progressed_s: float = 0.0
    """The monotonic time of the last progress while it restored. At other times, the time of the
    last heartbeat."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptCallbacks:
    """Callbacks of the attempt into the service around it."""

    clock: Clock
    connect_slot: Callable[[RegisterSlot], SlotGateway]
    wake_at: Callable[[float], None]
    """A callback that calls `tick` at the given monotonic time."""
    stops_early: Callable[[], bool]
    """Whether the final checkpoint is taken for a user's stop, before the end of the input."""
    committed: Callable[[CheckpointCommitted], None]
    """A callback for a checkpoint whose transactions are committed."""
    fail: Callable[[TidegateError], None]


class LiveAttempt:
    """One attempt of the job in this process."""

    def __init__(
        self,
        job: JobName,
        attempt: Attempt,
        coordinator: CheckpointCoordinator,
        backlog: Backlog,
        callbacks: AttemptCallbacks,
        *,
        journal: JournalWorker,
        storage: StorageWatch,
    ) -> None:
        self.job, self.attempt, self.coordinator = job, attempt, coordinator
        self.backlog, self._callbacks = backlog, callbacks
        self._journal, self._storage = journal, storage
        self.slots: dict[int, RegisteredSlot] = {}
        self.deployed = False
        """Whether the deployment has begun. From then on no other slot can take a slot's place."""
        self.ended = False
        self._storage_gone = ""
        self._idleness = Idleness()
        self._is_idle = False
        """Whether the job is idle, as in the last event for the coordinator."""

    # --- slots ----------------------------------------------------------------------------------

    def register(self, registered: RegisterSlot) -> bool:
        """Register a slot. Return False for a repeated delivery and for a slot that is rejected. A
        slot of another version fails the attempt and also returns False.

        A slot that was declared lost before it registered may still register, before or after the
        slot that replaces it. Until the deployment, the slot with the higher allocation id takes
        the place. The other slot is asked to exit. After the deployment, a slot
        without tasks must not replace a slot that runs them, because then no checkpoint would
        become complete.
        """
        known = self.slots.get(registered.ordinal)
        if known is not None and known.registered == registered:
            return False
        sender = f"Slot {registered.slot} at {registered.address}"
        other = difference(sender, registered.tidegate_version, registered.python_version)
        if other is not None:
            self._callbacks.fail(ExternalError(other))
            return False
        if known is not None and (
            self.deployed or registered.allocation_id < known.registered.allocation_id
        ):
            _log.warning("duplicate slot registration", extra={"slot": str(registered.slot)})
            self._reject(self._callbacks.connect_slot(registered))
            return False
        if known is not None:
            self._reject(known.gateway)
        self.slots[registered.ordinal] = RegisteredSlot(
            registered=registered,
            gateway=self._callbacks.connect_slot(registered),
            last_heartbeat_s=self._callbacks.clock.monotonic(),
        )
        return True

    def _reject(self, gateway: SlotGateway) -> None:
        gateway.send(CloseTasks(job=self.job, attempt=self.attempt))
        gateway.close()

    def heartbeat(self, ordinal: int, metrics: SlotMetrics) -> None:
        """Handle a heartbeat of a slot and its metrics. Detect a processing backlog and the end of
        an idle time, and tell the coordinator when this changes.
        """
        slot = self.slots.get(ordinal)
        if slot is None:
            return
        self._watch_deployment(slot, metrics)
        slot.last_heartbeat_s, slot.metrics = self._now(), metrics
        each = [one.metrics for one in self.slots.values()]
        waiting = sum(one.lag or 0 for one in each if one.busy)
        before = self.backlog.is_processing_backlog
        behind = self.backlog.sample(self._now(), self.metrics().records_in, waiting)
        if behind is not before:
            _log.info("backlog", extra={"behind": behind, "waiting": waiting})
            self.dispatch(BacklogChanged(behind=behind, now_s=self._now()))
        self._idleness.reported(ordinal, metrics.progress)
        self._update_idle()

    def _update_idle(self) -> None:
        idle = self._idleness.is_idle
        if idle is not self._is_idle:
            self._is_idle = idle
            _log.debug("idle", extra={"idle": idle})
            self.dispatch(IdleChanged(idle=idle, now_s=self._now()))

    def stalled(self, message: SlotStalled) -> None:
        """Handle the news that no thread of a slot can run. The next heartbeat of the slot, if one
        comes, says that this is over.
        """
        slot = self.slots.get(message.ordinal)
        if slot is not None and slot.registered.allocation_id == message.allocation_id:
            slot.metrics = msgspec.structs.replace(slot.metrics, hanging=message.call)

    def hanging_calls(self) -> tuple[HangingCall, ...]:
        """Return the calls of user code that have not returned, by the ordinal of their slots."""
        each = (slot.metrics.hanging for _, slot in sorted(self.slots.items()))
        return tuple(call for call in each if call is not None)

    def registered_slots(self) -> list[SlotId]:
        """Return all slots that have registered."""
        return [slot.registered.slot for slot in self.slots.values()]

    def responding(self) -> list[SlotId]:
        """Return the slots that no call of user code holds up."""
        return [
            slot.registered.slot for slot in self.slots.values() if slot.metrics.hanging is None
        ]

    def _watch_deployment(self, slot: RegisteredSlot, metrics: SlotMetrics) -> None:
        """Fail the attempt if the slot restores and has made no progress for `checkpoint.timeout`.
        The total time has no limit, because a large state may take long to restore.
        """
        before = slot.metrics
        same = (metrics.restoring, metrics.restored_bytes) == (
            before.restoring,
            before.restored_bytes,
        )
        if not (metrics.restoring and same):
            slot.progressed_s = self._now()
        elif self._now() - slot.progressed_s > self.coordinator.timeout_s and not self.ended:
            self._callbacks.fail(
                ExternalError(
                    f"Slot {slot.registered.slot} made no progress for "
                    f"{self.coordinator.timeout_s:g} s (checkpoint.timeout) while it restored: the "
                    f"checkpoint storage does not answer {metrics.restoring!r}."
                )
            )

    def metrics(self) -> SlotMetrics:
        """Return the sum of the metrics of all slots of the attempt."""
        each = [slot.metrics for slot in self.slots.values()]
        lags = [one.lag for one in each if one.lag is not None]
        with_watermark = [
            (one.watermark_ms, one.watermark_held_by)
            for one in each
            if one.watermark_ms is not None
        ]
        watermark_ms, held_by = min(with_watermark, default=(None, ""))
        return SlotMetrics(
            records_in=sum(one.records_in for one in each),
            records_out=sum(one.records_out for one in each),
            skipped=sum(one.skipped for one in each),
            dead_letters=sum(one.dead_letters for one in each),
            lag=sum(lags) if lags else None,
            watermark_ms=watermark_ms,
            watermark_held_by=held_by,
            backward_watermarks=sum(one.backward_watermarks for one in each),
            late=add_counts(one.late for one in each),
        )

    def waits_for(self) -> str:
        """Return a text that says what the attempt waits for: sources that cannot read, or a
        checkpoint that is not complete. Empty if it does not wait.
        """
        pending = self.coordinator.pending
        if pending is None:
            return self.source_errors()
        missing = sorted(self.coordinator.missing)
        shown = ", ".join(map(str, missing[:SHOWN_MAX]))
        more = f" and {len(missing) - SHOWN_MAX} more" if len(missing) > SHOWN_MAX else ""
        what = f"waits for subtasks {shown}{more}" if missing else "is published"
        return f"{self.source_errors()} Checkpoint {pending} {what}".lstrip()

    def source_errors(self) -> str:
        """Return the reasons why sources cannot read, each once. Empty if all sources can read."""
        errors = (slot.metrics.source_error for slot in self.slots.values())
        return " ".join(dict.fromkeys(error for error in errors if error))

    def silent(self, timeout_s: float) -> list[RegisterSlot]:
        """Return the slots that sent no heartbeat for `timeout_s` and are not yet marked as
        lost.
        """
        before = self._callbacks.clock.monotonic() - timeout_s
        return [
            slot.registered
            for slot in self.slots.values()
            if slot.last_heartbeat_s < before and not slot.lost
        ]

    def mark_lost(self, slot: SlotId, allocation_id: int) -> None:
        """Mark this use of the slot as lost."""
        for attached in self.slots.values():
            if (attached.registered.slot, attached.registered.allocation_id) == (
                slot,
                allocation_id,
            ):
                attached.lost = True

    def send(self, ordinal: int, message: SlotCommand) -> None:
        """Send a message to one slot."""
        self.slots[ordinal].gateway.send(message)

    def send_all(self, message: SlotCommand) -> None:
        """Send a message to every slot. Each slot receives messages in the order of the calls."""
        for slot in self.slots.values():
            slot.gateway.send(message)

    def reports(self) -> tuple[SlotReport, ...]:
        """Return the slots, for display."""
        return tuple(
            SlotReport(
                ordinal=ordinal,
                slot=slot.registered.slot,
                pid=slot.registered.pid,
                task_manager_pid=slot.registered.task_manager_pid,
                host=slot.registered.host,
            )
            for ordinal, slot in sorted(self.slots.items())
        )

    def end(self) -> None:
        """End the attempt. After this, the coordinator gets no events, and nothing more is sent.
        Messages that were sent before are still delivered if the slot answers.
        """
        self.ended = True
        for slot in self.slots.values():
            slot.gateway.close()

    # --- checkpoints ----------------------------------------------------------------------------

    def start(self) -> None:
        """Start the sources and the checkpoints, because every slot is ready."""
        self.send_all(StartSources(job=self.job, attempt=self.attempt))
        self.dispatch(AttemptStarted(now_s=self._now()))

    def end_input(self) -> None:
        """End the input where the sources are now, and fire all timers and windows."""
        self.send_all(DrainSources(job=self.job, attempt=self.attempt))

    def stop(self) -> None:
        """Take a final checkpoint."""
        self.dispatch(StopRequested(now_s=self._now()))

    def close_tasks(self) -> None:
        """Ask all slots to close the user's functions and to exit, because the job has ended."""
        self.send_all(CloseTasks(job=self.job, attempt=self.attempt))

    def tick(self) -> None:
        """Notify the coordinator that a time that it asked for has come."""
        self.dispatch(CheckpointTick(now_s=self._now()))

    def update_storage_state(self) -> None:
        """Notify the coordinator if the state of the checkpoint storage has changed."""
        gone = self._storage.gone
        if gone != self._storage_gone:
            self._storage_gone = gone
            self.dispatch(StorageStateChanged(gone=gone, now_s=self._now()))

    def acknowledged(self, message: AcknowledgeCheckpoint) -> None:
        """Notify the coordinator that a subtask's part of a checkpoint is durable."""
        self._idleness.acknowledged(message.ordinal, message.metrics.progress)
        self.dispatch(
            Acknowledged(
                checkpoint=message.checkpoint,
                snapshot=message.snapshot,
                now_s=self._now(),
                alignment_ms=message.alignment_ms,
                sync_ms=message.sync_ms,
            )
        )

    def declined(self, message: DeclineCheckpoint) -> None:
        """Notify the coordinator that a subtask could not make its part of a checkpoint."""
        self._judge_failure(
            lambda: Declined(
                checkpoint=message.checkpoint,
                subtask=message.subtask,
                reason=message.reason,
                now_s=self._now(),
            )
        )

    def handle_publication(self, event: PublicationEvent) -> None:
        """Handle an event of a publication of this attempt. After the end of the attempt an event
        changes nothing, because the next recovery reads the outcome from the journal.
        """
        if isinstance(event, CheckpointNotPublished):
            self._judge_failure(
                lambda: PublishFailed(
                    checkpoint=event.checkpoint, reason=event.reason, now_s=self._now()
                )
            )
        elif not self.ended:
            match event:
                case CheckpointPublished():
                    self._idleness.completed()
                    self._update_idle()
                    self.dispatch(Published(checkpoint=event.checkpoint, now_s=self._now()))
                case CheckpointCommitted():
                    self._committed(event)
                case PublicationFailed():
                    self._callbacks.fail(event.error)

    def _committed(self, event: CheckpointCommitted) -> None:
        """Notify the coordinator, the slots and the service that the transactions of a publication
        have ended.
        """
        self.dispatch(TransactionsCommitted(transactions=event.committed))
        self.send_all(
            CheckpointCompleted(
                job=self.job,
                attempt=self.attempt,
                checkpoint=event.checkpoint,
                committed=tuple(transaction.transactional_id for transaction in event.committed),
                reusable=tuple(transaction.transactional_id for transaction in event.reusable),
            )
        )
        self._callbacks.committed(event)

    def _judge_failure(self, failure: Callable[[], Declined | PublishFailed]) -> None:
        """Give the coordinator the event of a failed checkpoint, after another check of the
        storage. If the storage has vanished, the failure does not count.
        """

        def judge() -> None:
            self.update_storage_state()
            self.dispatch(failure())

        self._storage.check_storage_then(judge)

    def dispatch(self, event: CoordinatorEvent) -> None:
        """Give the coordinator an event and carry out the instructions that it returns. After the
        end of the attempt, do nothing.
        """
        if self.ended:
            return
        for instruction in self.coordinator.handle(event):
            match instruction:
                case TriggerBarriers(checkpoint=checkpoint, final=final):
                    self.send_all(
                        TriggerCheckpoint(
                            job=self.job, attempt=self.attempt, checkpoint=checkpoint, final=final
                        )
                    )
                case PublishCheckpoint():
                    stopped = instruction.final and self._callbacks.stops_early()
                    self._journal.publish(instruction, self.handle_publication, stopped=stopped)
                case AbortCheckpoint(checkpoint=checkpoint, reason=reason):
                    _log.warning(
                        "checkpoint aborted",
                        extra={"checkpoint": str(checkpoint), "reason": reason},
                    )
                    self.send_all(
                        CheckpointAborted(job=self.job, attempt=self.attempt, checkpoint=checkpoint)
                    )
                case LogIgnoredAcknowledge(checkpoint=checkpoint, result=result):
                    _log.info(
                        "late acknowledgement ignored",
                        extra={"checkpoint": str(checkpoint), "result": result.value},
                    )
                case WakeAt(time_s=time_s):
                    self._callbacks.wake_at(time_s)
                case FailAttempt(error=error):
                    _log.error("the attempt fails", extra={"reason": str(error)})
                    self._callbacks.fail(error)

    def _now(self) -> float:
        return self._callbacks.clock.monotonic()
