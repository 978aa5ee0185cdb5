"""A checkpoint storage that is gone: no checkpoint begins, and no entry without its predecessor."""

from __future__ import annotations

import msgspec
import pytest

from tests.checkpoint.coordinated import SETTINGS, A, ack, cid, complete, started
from tests.commit.quiet import ProcedureRunner
from tests.commit.world import JOB
from tidegate.checkpoint.coordinator import Phase
from tidegate.checkpoint.coordinator_events import (
    AbortCheckpoint,
    CheckpointTick,
    FailAttempt,
    Published,
    PublishFailed,
    StopRequested,
    StorageStateChanged,
    TriggerBarriers,
    WakeAt,
)
from tidegate.commit.journal.entries import entry_path
from tidegate.errors import FencedError, StorageGoneError

OUTAGE = msgspec.structs.replace(SETTINGS, tolerated_outage_s=180)


class TestCoordinator:
    def test_no_checkpoint_begins_until_the_storage_is_back(self) -> None:
        coordinator = started(OUTAGE)
        assert coordinator.handle(StorageStateChanged(gone="gone", now_s=105)) == [
            WakeAt(time_s=285)
        ]
        assert coordinator.handle(CheckpointTick(now_s=120)) == []
        back = coordinator.handle(StorageStateChanged(gone="", now_s=130))
        assert back[0] == TriggerBarriers(checkpoint=cid(1), final=False)

    def test_pending_checkpoint_is_aborted_and_not_counted_if_the_storage_is_gone(self) -> None:
        coordinator = started(OUTAGE)
        coordinator.handle(CheckpointTick(now_s=110))
        gone = coordinator.handle(StorageStateChanged(gone="X is gone", now_s=111))
        assert gone == [AbortCheckpoint(checkpoint=cid(1), reason="X is gone"), WakeAt(time_s=291)]
        assert coordinator.counts.failed_in_a_row == 0
        assert coordinator.phase is Phase.IDLE
        coordinator.validate()
        coordinator.handle(ack(1, A))  # late, and only remembered
        assert coordinator.handle(StorageStateChanged(gone="", now_s=112)) == [WakeAt(time_s=120)]

    def test_failed_publication_is_not_counted_while_the_storage_is_gone(self) -> None:
        coordinator = started(msgspec.structs.replace(OUTAGE, tolerable_failed_checkpoints=0))
        coordinator.handle(CheckpointTick(now_s=110))
        complete(coordinator, 1)
        coordinator.handle(StorageStateChanged(gone="gone", now_s=111))
        failed = PublishFailed(checkpoint=cid(1), reason="gone", now_s=112)
        assert isinstance(coordinator.handle(failed)[0], AbortCheckpoint)
        assert coordinator.phase is Phase.IDLE

    def test_publication_that_succeeds_while_the_storage_is_gone_counts_as_completed(self) -> None:
        coordinator = started(OUTAGE)
        coordinator.handle(CheckpointTick(now_s=110))
        complete(coordinator, 1)
        coordinator.handle(StorageStateChanged(gone="gone", now_s=111))
        coordinator.handle(Published(checkpoint=cid(1), now_s=112))
        assert coordinator.counts.completed == 1

    def test_a_stop_waits_for_the_storage(self) -> None:
        coordinator = started(OUTAGE)
        coordinator.handle(StorageStateChanged(gone="gone", now_s=105))
        assert coordinator.handle(StopRequested(now_s=106)) == []
        back = coordinator.handle(StorageStateChanged(gone="", now_s=107))
        assert back[0] == TriggerBarriers(checkpoint=cid(1), final=True)

    def test_attempt_fails_if_the_storage_is_gone_for_the_tolerated_outage(self) -> None:
        coordinator = started(OUTAGE)
        coordinator.handle(StorageStateChanged(gone="X is gone.", now_s=105))
        coordinator.handle(StorageStateChanged(gone="X is another.", now_s=200))
        assert coordinator.handle(CheckpointTick(now_s=284)) == []
        (abandoned,) = coordinator.handle(CheckpointTick(now_s=285))
        assert isinstance(abandoned, FailAttempt)
        assert isinstance(abandoned.error, StorageGoneError)
        assert "gone for 180 s (checkpoint.tolerated_outage). X is another." in str(abandoned.error)

    def test_attempt_fails_after_the_tolerated_outage_even_during_a_publication(self) -> None:
        coordinator = started(OUTAGE)
        coordinator.handle(CheckpointTick(now_s=110))
        complete(coordinator, 1)
        assert coordinator.handle(StorageStateChanged(gone="X is gone.", now_s=111)) == [
            WakeAt(time_s=291)
        ]
        assert coordinator.handle(CheckpointTick(now_s=290)) == []
        (abandoned,) = coordinator.handle(CheckpointTick(now_s=291))
        assert isinstance(abandoned, FailAttempt)
        assert "gone for 180 s (checkpoint.tolerated_outage). X is gone." in str(abandoned.error)
        coordinator.validate()
        # The job closes meanwhile, so its attempt stays, and the storage comes back.
        assert coordinator.handle(Published(checkpoint=cid(1), now_s=292)) == []

    def test_a_publication_goes_on_if_the_storage_is_back_in_time(self) -> None:
        coordinator = started(OUTAGE)
        coordinator.handle(CheckpointTick(now_s=110))
        complete(coordinator, 1)
        coordinator.handle(StorageStateChanged(gone="X is gone.", now_s=111))
        coordinator.handle(StorageStateChanged(gone="", now_s=112))
        assert coordinator.handle(CheckpointTick(now_s=291)) == []
        coordinator.handle(Published(checkpoint=cid(1), now_s=292))
        assert coordinator.counts.completed == 1


class TestJournal:
    @pytest.fixture
    def quiet(self) -> ProcedureRunner:
        return ProcedureRunner()

    def test_an_entry_is_not_created_without_its_predecessor(self, quiet: ProcedureRunner) -> None:
        journal = quiet.claim()
        stored = dict(quiet.world.store.objects)
        quiet.world.store.objects.clear()
        with pytest.raises(StorageGoneError, match=r"Journal entry .* is not in the checkpoint"):
            quiet.publish(journal, 1)
        assert entry_path(JOB, 2) not in quiet.world.store.objects
        assert not journal.last_write_unknown
        quiet.world.store.objects.update(stored)
        quiet.publish(journal, 2)
        assert quiet.kinds() == ["Claim", "Publication"]

    def test_publication_is_fenced_if_its_claim_was_truncated_after_a_newer_claim(
        self, quiet: ProcedureRunner
    ) -> None:
        journal = quiet.claim()
        newer = quiet.claim("s2", snapshot_interval=1)
        quiet.publish(newer, 1)
        del quiet.world.store.objects[entry_path(JOB, 1)]
        with pytest.raises(FencedError):
            quiet.publish(journal, 1)
