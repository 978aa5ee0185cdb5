"""The checkpoint coordinator: when it completes or aborts a checkpoint, and that it drops nothing.

`test_triggers.py` tests when it triggers one.
"""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.checkpoint.coordinated import (
    ATTEMPT,
    SETTINGS,
    A,
    B,
    ack,
    cid,
    complete,
    part,
    started,
)
from tests.checkpoint.examples import txn
from tidegate.checkpoint.coordinator import (
    MOVES,
    CheckpointCoordinator,
    Phase,
)
from tidegate.checkpoint.coordinator_events import (
    AbortCheckpoint,
    Acknowledged,
    AttemptStarted,
    BacklogChanged,
    CheckpointTick,
    CoordinatorInstruction,
    Declined,
    FailAttempt,
    IdleChanged,
    LogIgnoredAcknowledge,
    PublishCheckpoint,
    Published,
    PublishFailed,
    StopRequested,
    TaskEnded,
    TransactionsCommitted,
    TriggerBarriers,
    WakeAt,
)
from tidegate.checkpoint.coordinator_settings import (
    FINAL_RETRY_S,
    FINAL_RETRY_S_MAX,
    CoordinatorSettings,
)
from tidegate.checkpoint.pending import AcknowledgeResult
from tidegate.errors import InternalError
from tidegate.ids import Attempt, CheckpointId, SubtaskId, SubtaskIndex, VertexId
from tidegate.protocol.subtask_snapshot import (
    PreparedTransaction,
)

# --- acknowledgements ---------------------------------------------------------------------------


def test_checkpoint_with_all_acknowledgements_is_published_with_all_transactions() -> None:
    coordinator = started()
    coordinator.handle(CheckpointTick(now_s=110))
    assert coordinator.missing == {A, B}
    assert coordinator.handle(ack(1, B, txn(1), txn(2))) == []
    assert coordinator.handle(ack(1, A, now_s=113)) == [
        PublishCheckpoint(
            checkpoint=cid(1),
            final=False,
            duration_ms=3_000,
            snapshots=(part(B, txn(1), txn(2)), part(A)),
            transactions=(txn(1), txn(2)),
        )
    ]
    coordinator.validate()


def ignored(counter: int, subtask: SubtaskId, result: AcknowledgeResult) -> LogIgnoredAcknowledge:
    return LogIgnoredAcknowledge(checkpoint=cid(counter), subtask=subtask, result=result)


def test_duplicate_and_unknown_acknowledgements_are_logged_as_ignored() -> None:
    coordinator = started()
    coordinator.handle(CheckpointTick(now_s=110))
    coordinator.handle(ack(1, A))
    unknown = SubtaskId(VertexId("other"), SubtaskIndex(0))
    assert coordinator.handle(ack(1, A)) == [ignored(1, A, AcknowledgeResult.DUPLICATE)]
    assert coordinator.handle(ack(1, unknown)) == [ignored(1, unknown, AcknowledgeResult.UNKNOWN)]
    assert coordinator.handle(ack(2, A)) == [ignored(2, A, AcknowledgeResult.UNKNOWN)]
    old = Acknowledged(checkpoint=CheckpointId(Attempt(6), 1), snapshot=part(A), now_s=0)
    assert coordinator.handle(old) == [
        LogIgnoredAcknowledge(
            checkpoint=old.checkpoint, subtask=A, result=AcknowledgeResult.UNKNOWN
        )
    ]
    coordinator.handle(ack(1, B))
    assert coordinator.handle(ack(1, B)) == [ignored(1, B, AcknowledgeResult.DUPLICATE)]


def test_transactions_of_an_aborted_checkpoint_are_in_the_next_checkpoint() -> None:
    coordinator = started()
    coordinator.handle(CheckpointTick(now_s=110))
    coordinator.handle(ack(1, B, txn(1)))
    coordinator.handle(Declined(checkpoint=cid(1), subtask=A, reason="full", now_s=111))
    coordinator.handle(CheckpointTick(now_s=120))
    coordinator.handle(ack(2, A))
    found = coordinator.handle(ack(2, B, txn(1), txn(2)))[0]
    assert isinstance(found, PublishCheckpoint)
    assert found.transactions == (txn(1), txn(2))


def test_late_acknowledgement_of_an_aborted_checkpoint_is_kept_for_an_ended_subtask() -> None:
    coordinator = started()
    coordinator.handle(CheckpointTick(now_s=110))
    coordinator.handle(Declined(checkpoint=cid(1), subtask=A, reason="full", now_s=111))
    late = coordinator.handle(ack(1, B, txn(1)))
    assert late == [ignored(1, B, AcknowledgeResult.DISCARDED)]
    coordinator.handle(TaskEnded(subtask=B, now_s=112))
    coordinator.handle(CheckpointTick(now_s=120))
    found = coordinator.handle(ack(2, A))[0]
    assert isinstance(found, PublishCheckpoint)
    assert found.transactions == (txn(1),)


def test_an_older_acknowledgement_does_not_hide_a_newer_one() -> None:
    coordinator = started()
    coordinator.handle(CheckpointTick(now_s=110))
    coordinator.handle(Declined(checkpoint=cid(1), subtask=A, reason="full", now_s=111))
    coordinator.handle(CheckpointTick(now_s=120))
    coordinator.handle(ack(2, B, txn(1), txn(2)))
    coordinator.handle(ack(1, B, txn(1)))
    found = coordinator.handle(ack(2, A))[0]
    assert isinstance(found, PublishCheckpoint)
    assert found.transactions == (txn(1), txn(2))


def test_snapshot_of_an_ended_subtask_is_carried_without_its_ended_transactions() -> None:
    coordinator = started()
    coordinator.handle(CheckpointTick(now_s=110))
    coordinator.handle(ack(1, A))
    coordinator.handle(ack(1, B, txn(1), txn(2)))
    coordinator.handle(Published(checkpoint=cid(1), now_s=112))
    coordinator.handle(TaskEnded(subtask=B, now_s=113))
    coordinator.handle(TransactionsCommitted(transactions=(txn(1),)))
    coordinator.handle(CheckpointTick(now_s=120))
    assert coordinator.missing == {A}
    found = coordinator.handle(ack(2, A))[0]
    assert isinstance(found, PublishCheckpoint)
    assert found.snapshots == (part(B, txn(2)), part(A))
    assert found.transactions == (txn(2),)


def test_subtask_that_ends_before_it_acknowledges_aborts_the_checkpoint_without_a_failure() -> None:
    coordinator = started()
    coordinator.handle(CheckpointTick(now_s=110))
    assert coordinator.handle(TaskEnded(subtask=B, now_s=112))[:2] == [
        AbortCheckpoint(checkpoint=cid(1), reason="subtask sink#0 has finished"),
        TriggerBarriers(checkpoint=cid(2), final=False),
    ]
    assert coordinator.counts.failed == 0


def test_subtask_that_ends_after_its_acknowledgement_is_in_the_checkpoint_once() -> None:
    coordinator = started()
    coordinator.handle(CheckpointTick(now_s=110))
    coordinator.handle(ack(1, B, txn(1)))
    coordinator.handle(TaskEnded(subtask=B, now_s=112))
    found = coordinator.handle(ack(1, A))[0]
    assert isinstance(found, PublishCheckpoint)
    assert found.snapshots == (part(B, txn(1)), part(A))


# --- failures -----------------------------------------------------------------------------------


def test_declined_checkpoint_is_aborted_and_counts_as_one_failure() -> None:
    coordinator = started()
    coordinator.handle(CheckpointTick(now_s=110))
    declined = Declined(checkpoint=cid(1), subtask=B, reason="disk full", now_s=111)
    assert coordinator.handle(declined) == [
        AbortCheckpoint(checkpoint=cid(1), reason="declined by subtask sink#0: disk full"),
        WakeAt(time_s=120),
    ]
    assert coordinator.handle(declined) == []
    assert coordinator.counts.failed == 1
    coordinator.handle(CheckpointTick(now_s=120))
    assert coordinator.handle(declined) == [], "of an older checkpoint"
    coordinator.validate()


def test_checkpoint_timeout_aborts_and_names_the_missing_subtasks() -> None:
    coordinator = started()
    coordinator.handle(CheckpointTick(now_s=110))
    coordinator.handle(ack(1, A))
    assert coordinator.handle(CheckpointTick(now_s=169.9)) == []
    abort = coordinator.handle(CheckpointTick(now_s=170))[0]
    assert isinstance(abort, AbortCheckpoint)
    assert "expired after 60 s (checkpoint.timeout)" in abort.reason
    assert "sink#0" in abort.reason
    assert "source#0" not in abort.reason


def test_more_failures_in_a_row_than_tolerable_fail_the_attempt() -> None:
    coordinator = started()
    now_s = 110.0
    for counter in (1, 2):
        coordinator.handle(CheckpointTick(now_s=now_s))
        coordinator.handle(Declined(checkpoint=cid(counter), subtask=A, reason="x", now_s=now_s))
        now_s += 10
    coordinator.handle(CheckpointTick(now_s=now_s))
    complete(coordinator, 3)
    failed = coordinator.handle(PublishFailed(checkpoint=cid(3), reason="no disk", now_s=now_s))
    assert isinstance(failed[1], FailAttempt)
    assert "3 checkpoints in a row failed" in str(failed[1].error)
    assert "could not be published: no disk" in str(failed[1].error)
    assert coordinator.handle(CheckpointTick(now_s=10_000)) == []
    coordinator.validate()


def test_a_publication_resets_the_failures() -> None:
    coordinator = started()
    for counter in range(1, 12):
        now_s = 110.0 + 10 * counter
        coordinator.handle(CheckpointTick(now_s=now_s))
        if counter % 3 == 0:
            complete(coordinator, counter)
            coordinator.handle(Published(checkpoint=cid(counter), now_s=now_s + 1))
        else:
            declined = Declined(checkpoint=cid(counter), subtask=None, reason="x", now_s=now_s + 1)
            coordinator.handle(declined)
    assert coordinator.phase is Phase.IDLE
    assert (coordinator.counts.completed, coordinator.counts.failed) == (3, 8)


# --- the final checkpoint -----------------------------------------------------------------------


def test_a_stop_begins_the_final_checkpoint_at_once() -> None:
    coordinator = started()
    assert coordinator.handle(StopRequested(now_s=101))[0] == TriggerBarriers(
        checkpoint=cid(1), final=True
    )
    assert complete(coordinator, 1).final
    assert coordinator.handle(Published(checkpoint=cid(1), now_s=102)) == []
    assert coordinator.phase is Phase.FINISHED
    assert coordinator.handle(CheckpointTick(now_s=1000)) == []


def test_stop_waits_only_for_the_checkpoint_under_way() -> None:
    settings = CoordinatorSettings(interval_s=10, timeout_s=60, min_pause_s=100)
    coordinator = started(settings)
    coordinator.handle(CheckpointTick(now_s=110))
    assert coordinator.handle(StopRequested(now_s=111)) == []
    assert not complete(coordinator, 1).final
    published = coordinator.handle(Published(checkpoint=cid(1), now_s=112))
    assert published[0] == TriggerBarriers(checkpoint=cid(2), final=True)


def test_stop_before_the_start_of_an_attempt_triggers_the_final_checkpoint() -> None:
    coordinator = CheckpointCoordinator(ATTEMPT, [A, B], SETTINGS)
    assert coordinator.handle(StopRequested(now_s=1)) == []
    assert coordinator.handle(AttemptStarted(now_s=2))[0] == TriggerBarriers(
        checkpoint=cid(1), final=True
    )


def test_a_final_checkpoint_is_retried_after_growing_pauses_until_too_many_fail() -> None:
    coordinator = started()
    coordinator.handle(StopRequested(now_s=101))
    for counter, due_s in ((1, 102 + FINAL_RETRY_S), (2, 103 + 2 * FINAL_RETRY_S)):
        now_s = 101 + counter
        declined = Declined(checkpoint=cid(counter), subtask=A, reason="x", now_s=now_s)
        assert coordinator.handle(declined)[1:] == [WakeAt(time_s=due_s)]
        assert coordinator.handle(CheckpointTick(now_s=due_s - 0.1)) == []
        again = TriggerBarriers(checkpoint=cid(counter + 1), final=True)
        assert coordinator.handle(CheckpointTick(now_s=due_s))[0] == again
    last = coordinator.handle(Declined(checkpoint=cid(3), subtask=A, reason="x", now_s=106))
    assert isinstance(last[-1], FailAttempt)


def test_the_pause_before_a_final_checkpoint_has_a_limit() -> None:
    many = CoordinatorSettings(interval_s=10, timeout_s=60, tolerable_failed_checkpoints=2_000)
    coordinator = started(many)
    coordinator.handle(StopRequested(now_s=101))
    for counter in range(1, 1_200):  # 2 to the power of 1,100 is no float
        declined = Declined(checkpoint=cid(counter), subtask=A, reason="x", now_s=200)
        (wake,) = coordinator.handle(declined)[1:]
        assert isinstance(wake, WakeAt)
        assert wake.time_s <= 200 + FINAL_RETRY_S_MAX
        coordinator.handle(CheckpointTick(now_s=wake.time_s))


# --- the machine --------------------------------------------------------------------------------


def test_illegal_event_is_a_bug_and_its_error_has_the_history_of_events() -> None:
    coordinator = started()
    with pytest.raises(
        InternalError, match=r"Started is illegal.*created: AttemptStarted \| idle: Att"
    ):
        coordinator.handle(AttemptStarted(now_s=1))
    with pytest.raises(InternalError, match="Published is illegal"):
        coordinator.handle(Published(checkpoint=cid(1), now_s=1))


def test_a_publication_of_another_checkpoint_is_a_bug() -> None:
    coordinator = started()
    coordinator.handle(CheckpointTick(now_s=110))
    complete(coordinator, 1)
    with pytest.raises(InternalError, match="7-2 is not under way"):
        coordinator.handle(Published(checkpoint=cid(2), now_s=1))


def test_transition_tables_cover_every_phase_and_name_existing_methods() -> None:
    assert set(MOVES) == set(Phase)
    methods = set(CheckpointCoordinator.TRANSITIONS.values())
    assert all(callable(getattr(CheckpointCoordinator, method)) for method in methods)
    for phase in Phase:
        assert (phase, CheckpointTick) in CheckpointCoordinator.TRANSITIONS
        assert (phase, StopRequested) in CheckpointCoordinator.TRANSITIONS


def test_published_checkpoint_reports_its_duration_size_alignment_and_sync_time() -> None:
    coordinator = started()
    coordinator.handle(CheckpointTick(now_s=110))
    for subtask, alignment_ms in ((A, 0), (B, 40)):
        coordinator.handle(
            Acknowledged(
                checkpoint=cid(1),
                snapshot=part(subtask, txn(1), size=100),
                now_s=111,
                alignment_ms=alignment_ms,
                sync_ms=7,
            )
        )
    coordinator.handle(Published(checkpoint=cid(1), now_s=112.5))
    last = coordinator.counts.last
    assert last is not None
    assert (last.id, last.duration_ms, last.size) == (cid(1), 2500, 200)
    assert (last.alignment_ms, last.sync_ms) == (40, 7)


class Slots:
    """A random environment of a coordinator: subtasks prepare and decline, messages are lost."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.subtasks = [SubtaskId(VertexId("v"), SubtaskIndex(index)) for index in range(3)]
        settings = CoordinatorSettings(
            interval_s=1,
            interval_during_backlog_s=rng.choice([0, 4]),
            interval_when_idle_s=rng.choice([0, 6]),
            timeout_s=3,
            min_pause_s=rng.choice([0, 2]),
            tolerable_failed_checkpoints=3,
        )
        self.coordinator = CheckpointCoordinator(ATTEMPT, self.subtasks, settings)
        self.now_s = 0.0
        self.carried: dict[SubtaskId, tuple[PreparedTransaction, ...]] = dict.fromkeys(
            self.subtasks, ()
        )
        self.next_transaction = 0
        self.mail: list[Acknowledged] = []
        self.seen: set[CheckpointId] = set()
        self.live: CheckpointId | None = None
        self.publishing: PublishCheckpoint | None = None
        self.wake_s = 0.0
        self.published: list[CheckpointId] = []
        self.failed = False

    def obey(self, instructions: list[CoordinatorInstruction]) -> None:
        for instruction in instructions:
            assert not self.failed
            match instruction:
                case TriggerBarriers(checkpoint=checkpoint):
                    assert self.live is None, "one at a time"
                    assert checkpoint not in self.seen, "no id twice"
                    self.seen.add(checkpoint)
                    self.live = checkpoint
                    for subtask in self.subtasks:
                        self.prepare(checkpoint, subtask)
                case PublishCheckpoint():
                    self.check_complete(instruction)
                    self.publishing = instruction
                case AbortCheckpoint(checkpoint=checkpoint):
                    assert checkpoint == self.live
                    self.live = self.publishing = None
                case FailAttempt():
                    self.failed = True
                case WakeAt(time_s=time_s):
                    self.wake_s = time_s
                case LogIgnoredAcknowledge():
                    pass

    def prepare(self, checkpoint: CheckpointId, subtask: SubtaskId) -> None:
        if self.rng.random() < 0.7:
            self.next_transaction += 1
            self.carried[subtask] += (txn(self.next_transaction),)
        if self.rng.random() < 0.9:
            snapshot = part(subtask, *self.carried[subtask])
            event = Acknowledged(checkpoint=checkpoint, snapshot=snapshot, now_s=self.now_s)
            self.mail.append(event)

    def check_complete(self, found: PublishCheckpoint) -> None:
        assert found.checkpoint == self.live
        of_subtasks = [t for snapshot in found.snapshots for t in snapshot.transactions]
        assert set(found.transactions) == set(of_subtasks)
        assert len(found.transactions) == len(set(found.transactions))
        assert len(found.snapshots) == len(self.subtasks)

    def step(self) -> None:
        self.now_s += self.rng.random()
        handle = self.coordinator.handle
        choice = self.rng.random()
        if choice < 0.55 and self.mail:
            # In order per subtask, any order between them; sometimes delivered twice.
            event = next(
                mail
                for mail in self.mail
                if mail.snapshot.index == self.rng.choice(self.mail).snapshot.index
                or mail is self.mail[0]
            )
            if self.rng.random() < 0.8:
                self.mail.remove(event)
            self.obey(handle(event))
        elif choice < 0.65 and self.publishing is not None:
            checkpoint, self.publishing, self.live = self.publishing.checkpoint, None, None
            self.published.append(checkpoint)
            self.obey(handle(Published(checkpoint=checkpoint, now_s=self.now_s)))
        elif choice < 0.7 and self.publishing is not None:
            checkpoint = self.publishing.checkpoint
            failed = PublishFailed(checkpoint=checkpoint, reason="x", now_s=self.now_s)
            self.obey(handle(failed))
        elif choice < 0.75 and self.live is not None:
            declined = Declined(checkpoint=self.live, subtask=None, reason="", now_s=self.now_s)
            self.obey(handle(declined))
        elif choice < 0.85:
            behind = self.rng.random() < 0.5
            self.obey(handle(BacklogChanged(behind=behind, now_s=self.now_s)))
        elif choice < 0.9:
            idle = self.rng.random() < 0.5
            self.obey(handle(IdleChanged(idle=idle, now_s=self.now_s)))
        else:
            idle = self.live is None and not self.failed
            self.obey(handle(CheckpointTick(now_s=self.now_s)))
            due = idle and self.now_s >= self.wake_s
            assert not due or self.live is not None, "a wake-up is lost"
        self.coordinator.validate()


@given(st.randoms(use_true_random=False))
def test_random_events_keep_one_checkpoint_under_way_and_drop_no_prepared_transaction(
    rng: random.Random,
) -> None:
    slots = Slots(rng)
    slots.obey(slots.coordinator.handle(AttemptStarted(now_s=0)))
    for _ in range(120):
        slots.step()
        if slots.failed:
            break
    assert slots.published == sorted(set(slots.published))
    assert slots.coordinator.counts.completed == len(slots.published)
