"""The live attempt: its slots, its checkpoints, what it has told them and heard from them.

One object per attempt, made when the claim is there and dropped when the attempt ends, so that
nothing of an attempt can survive it. It joins the checkpoint coordinator (pure) to the slots'
lines; what must be written down or ended at the broker it hands to `publish`, which the service
runs in its journal thread. All methods run in the JobMaster's loop.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

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
    LogIgnoredAcknowledge,
    PublishCheckpoint,
    Published,
    PublishFailed,
    StopRequested,
    StorageSeen,
    TransactionsEnded,
    TriggerBarriers,
    WakeAt,
)
from tidegate.controlplane.jobmaster.slot_gateway import SlotGateway
from tidegate.errors import ExternalError, TidegateError
from tidegate.ids import Attempt, CheckpointId, JobName, SlotId
from tidegate.ports.clock import Clock
from tidegate.protocol.messages import (
    AcknowledgeCheckpoint,
    CheckpointAborted,
    CheckpointCompleted,
    CloseTasks,
    DeclineCheckpoint,
    RegisterSlot,
    SlotCommand,
    SlotMetrics,
    SlotReport,
    StartSources,
    TriggerCheckpoint,
)
from tidegate.protocol.snapshots import PreparedTransaction
from tidegate.protocol.versions import difference

SHOWN_MAX: Final = 4
"""Subtasks that a status names of those that it waits for."""

_log = logging.getLogger(__name__)


@dataclass(slots=True, kw_only=True)
class RegisteredSlot:
    """A slot that has registered."""

    registered: RegisterSlot
    line: SlotGateway
    heard_s: float
    lost: bool = False
    """Lost, and known to be; it keeps its place until another one takes it."""
    metrics: SlotMetrics = field(default_factory=SlotMetrics)
    progressed_s: float = 0.0
    """When the restore of its state last brought something."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptCallbacks:
    """What the attempt asks of the service around it."""

    clock: Clock
    connect_slot: Callable[[RegisterSlot], SlotGateway]
    wake_at: Callable[[float], None]
    """Call `tick` at this monotonic time."""
    publish: Callable[[PublishCheckpoint], None]
    """Publish, commit and settle; `published` or `publish_failed` follows."""
    fail: Callable[[TidegateError], None]


class LiveAttempt:
    """One attempt of the job in this process."""

    def __init__(
        self,
        job: JobName,
        attempt: Attempt,
        coordinator: CheckpointCoordinator,
        backlog: Backlog,
        shell: AttemptCallbacks,
    ) -> None:
        self.job, self.attempt, self.coordinator = job, attempt, coordinator
        self.backlog, self._shell = backlog, shell
        self.slots: dict[int, RegisteredSlot] = {}
        self.deployed = False
        """The slots have been told what to run: from here on nobody else can take their places."""
        self.ended = False
        self._storage_gone = ""

    # --- slots ----------------------------------------------------------------------------------

    def register(self, registered: RegisterSlot) -> bool:
        """A slot has registered; False for a repeated delivery, and for one that comes too late.

        A slot that was given up before it registered may register all the same, beside the one that
        was brought in its place, before it or after it. Of two the later order's, by its serial,
        takes the place as long as nothing is deployed, and the other is told to leave. Afterwards
        one without tasks must not take the place of one that runs them: no checkpoint would ever be
        complete. A slot of another version fails the attempt.
        """
        known = self.slots.get(registered.ordinal)
        if known is not None and known.registered == registered:
            return False
        sender = f"Slot {registered.slot} at {registered.address}"
        other = difference(sender, registered.tidegate_version, registered.python_version)
        if other is not None:
            self._shell.fail(ExternalError(other))
            return False
        if known is not None and (self.deployed or registered.serial < known.registered.serial):
            _log.warning(
                "a second slot for a place that is taken", extra={"slot": str(registered.slot)}
            )
            self._reject(self._shell.connect_slot(registered))
            return False
        if known is not None:
            self._reject(known.line)
        self.slots[registered.ordinal] = RegisteredSlot(
            registered=registered,
            line=self._shell.connect_slot(registered),
            heard_s=self._shell.clock.monotonic(),
        )
        return True

    def _reject(self, line: SlotGateway) -> None:
        line.send(CloseTasks(job=self.job, attempt=self.attempt))
        line.close()

    def heartbeat(self, ordinal: int, metrics: SlotMetrics) -> None:
        """A sign of life, and what the slot counts."""
        slot = self.slots.get(ordinal)
        if slot is None:
            return
        self._watch_deployment(slot, metrics)
        slot.heard_s, slot.metrics = self._now(), metrics
        each = [one.metrics for one in self.slots.values()]
        waiting = sum(one.lag or 0 for one in each if one.saturated)
        before = self.backlog.is_processing_backlog
        behind = self.backlog.sample(self._now(), self.metrics().records_in, waiting)
        if behind is not before:
            _log.info("backlog", extra={"behind": behind, "waiting": waiting})
            self.dispatch(BacklogChanged(behind=behind, now_s=self._now()))

    def _watch_deployment(self, slot: RegisteredSlot, metrics: SlotMetrics) -> None:
        """End the attempt if the slot waits for a storage call that brings nothing. Progress counts
        and not time: a large state may take long to restore.
        """
        before = slot.metrics
        same = (metrics.restoring, metrics.restored_bytes) == (
            before.restoring,
            before.restored_bytes,
        )
        if not (metrics.restoring and same):
            slot.progressed_s = self._now()
        elif self._now() - slot.progressed_s > self.coordinator.timeout_s and not self.ended:
            self._shell.fail(
                ExternalError(
                    f"Slot {slot.registered.slot} made no progress for "
                    f"{self.coordinator.timeout_s:g} s (checkpoint.timeout) while it restored: the "
                    f"checkpoint storage does not answer {metrics.restoring!r}."
                )
            )

    def metrics(self) -> SlotMetrics:
        """What all slots of the attempt count."""
        each = [slot.metrics for slot in self.slots.values()]
        lags = [one.lag for one in each if one.lag is not None]
        return SlotMetrics(
            records_in=sum(one.records_in for one in each),
            records_out=sum(one.records_out for one in each),
            skipped=sum(one.skipped for one in each),
            dead_letters=sum(one.dead_letters for one in each),
            lag=sum(lags) if lags else None,
        )

    def waits_for(self) -> str:
        """What keeps the attempt from going on: sources that cannot read, a checkpoint that is not
        complete; empty if nothing does.
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
        """Why sources cannot read, each reason once; empty if all can."""
        errors = (slot.metrics.source_error for slot in self.slots.values())
        return " ".join(dict.fromkeys(error for error in errors if error))

    def silent(self, timeout_s: float) -> list[RegisterSlot]:
        """Slots that have not been heard of for so long, and were not given up before."""
        before = self._shell.clock.monotonic() - timeout_s
        return [
            slot.registered
            for slot in self.slots.values()
            if slot.heard_s < before and not slot.lost
        ]

    def give_up(self, slot: SlotId, serial: int) -> None:
        """This use of the slot is lost."""
        for attached in self.slots.values():
            if (attached.registered.slot, attached.registered.serial) == (slot, serial):
                attached.lost = True

    def send(self, ordinal: int, message: SlotCommand) -> None:
        """To one slot."""
        self.slots[ordinal].line.send(message)

    def send_all(self, message: SlotCommand) -> None:
        """To every slot, in the order in which messages were sent."""
        for slot in self.slots.values():
            slot.line.send(message)

    def reports(self) -> tuple[SlotReport, ...]:
        """The slots, for display."""
        return tuple(
            SlotReport(
                ordinal=ordinal,
                slot=slot.registered.slot,
                pid=slot.registered.pid,
                task_manager_pid=slot.registered.task_manager_pid,
            )
            for ordinal, slot in sorted(self.slots.items())
        )

    def end(self) -> None:
        """The attempt is over: nothing is sent any more, and what comes of it is ignored."""
        self.ended = True
        for slot in self.slots.values():
            slot.line.close()

    # --- checkpoints ----------------------------------------------------------------------------

    def start(self) -> None:
        """Every slot is ready: sources read, checkpoints begin."""
        self.send_all(StartSources(job=self.job, attempt=self.attempt))
        self.dispatch(AttemptStarted(now_s=self._now()))

    def stop(self) -> None:
        """Take a final checkpoint."""
        self.dispatch(StopRequested(now_s=self._now()))

    def close_tasks(self) -> None:
        """The job has ended: slots close the user's functions and leave."""
        self.send_all(CloseTasks(job=self.job, attempt=self.attempt))

    def tick(self) -> None:
        """The coordinator's time has come."""
        self.dispatch(CheckpointTick(now_s=self._now()))

    def storage_seen(self, gone: str) -> None:
        """The checkpoint storage has vanished, or is there again if `gone` is empty."""
        if gone != self._storage_gone:
            self._storage_gone = gone
            self.dispatch(StorageSeen(gone=gone, now_s=self._now()))

    def acknowledged(self, message: AcknowledgeCheckpoint) -> None:
        """A subtask's part is durable."""
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
        """A subtask's part could not be made."""
        self.dispatch(
            Declined(
                checkpoint=message.checkpoint,
                subtask=message.subtask,
                reason=message.reason,
                now_s=self._now(),
            )
        )

    def published(self, checkpoint: CheckpointId) -> None:
        """The checkpoint stands in the journal."""
        self.dispatch(Published(checkpoint=checkpoint, now_s=self._now()))

    def publish_failed(self, checkpoint: CheckpointId, reason: str) -> None:
        """The checkpoint does not stand in the journal and never will."""
        self.dispatch(PublishFailed(checkpoint=checkpoint, reason=reason, now_s=self._now()))

    def committed(
        self,
        checkpoint: CheckpointId,
        ended: tuple[PreparedTransaction, ...],
        freed: tuple[PreparedTransaction, ...],
    ) -> None:
        """All that the publication names was seen CompleteCommit; the journal names `freed` no
        more, and their ids may be used again.
        """
        self.dispatch(TransactionsEnded(transactions=ended))
        self.send_all(
            CheckpointCompleted(
                job=self.job,
                attempt=self.attempt,
                checkpoint=checkpoint,
                ended=tuple(transaction.transactional_id for transaction in ended),
                freed=tuple(transaction.transactional_id for transaction in freed),
            )
        )

    def dispatch(self, event: CoordinatorEvent) -> None:
        """Give the coordinator an event and carry out what it answers."""
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
                    self._shell.publish(instruction)
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
                        "late part", extra={"checkpoint": str(checkpoint), "result": result.value}
                    )
                case WakeAt(time_s=time_s):
                    self._shell.wake_at(time_s)
                case FailAttempt(error=error):
                    _log.error("the attempt fails", extra={"reason": str(error)})
                    self._shell.fail(error)

    def _now(self) -> float:
        return self._shell.clock.monotonic()
