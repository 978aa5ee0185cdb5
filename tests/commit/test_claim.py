"""Claims in a quiet world: what they stand on, and what they refuse before they change it."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from tests.commit.quiet import ProcedureRunner, manifest
from tests.commit.world import JOB, RETRY_POLICY
from tidegate.commit import effects
from tidegate.commit.claim import claim, claim_to_close
from tidegate.commit.effects import Effect
from tidegate.commit.journal.claimed import ClaimedJournal
from tidegate.commit.journal.entries import (
    SNAPSHOT_INTERVAL,
    encode_entry,
    entry_path,
    snapshot_path,
)
from tidegate.commit.journal.reading import read_journal
from tidegate.commit.journal.state import decode_snapshot, encode_snapshot
from tidegate.commit.publish import publish
from tidegate.errors import (
    CorruptCheckpointError,
    JobClosedError,
    OutcomeUnknownError,
    RefusedError,
    StorageError,
)
from tidegate.ids import CheckpointId, TransactionalId
from tidegate.ports.blobs import CreateResult
from tidegate.ports.kafka import TransactionState


@pytest.fixture
def quiet() -> ProcedureRunner:
    return ProcedureRunner()


def test_attempt_number_is_the_journal_number_of_its_claim(quiet: ProcedureRunner) -> None:
    first = quiet.claim()
    assert (first.attempt, first.is_first_claim) == (1, True)
    quiet.publish(first, 1)
    second = quiet.claim()
    assert (second.attempt, second.is_first_claim) == (3, False)
    assert second.journal_id == first.journal_id
    assert quiet.kinds() == ["Claim", "Publication", "Claim"]


def test_claim_takes_the_next_number_if_a_concurrent_publication_comes_first(
    quiet: ProcedureRunner,
) -> None:
    older = quiet.claim()
    published: list[Any] = []

    def race(effect: Effect) -> Any:
        if isinstance(effect, effects.CreateEntry) and not published:
            published.append(quiet.publish(older, 1))
        return NotImplemented

    newer = quiet.run(claim(JOB, submission_id="s1", retry_policy=RETRY_POLICY), race)
    assert newer.attempt == 3
    assert newer.state_before_claim.publication is not None
    assert newer.state_before_claim.publication.checkpoint == CheckpointId(older.attempt, 1)


def test_create_with_unknown_result_is_retried_and_recognised_as_own(
    quiet: ProcedureRunner,
) -> None:
    answers = [CreateResult.UNKNOWN, CreateResult.UNKNOWN]
    sent: list[bytes] = []

    def unknown(effect: Effect) -> Any:
        if isinstance(effect, effects.CreateEntry):
            sent.append(effect.data)
            if answers:
                quiet.world.store.land(effect.path, effect.data)
                return answers.pop()
        return NotImplemented

    journal = quiet.run(claim(JOB, submission_id="s1", retry_policy=RETRY_POLICY), unknown)
    assert journal.attempt == 1
    assert len(sent) == 3
    assert len(set(sent)) == 1
    assert quiet.kinds() == ["Claim"]


def test_publication_raises_outcome_unknown_if_its_create_stays_unknown(
    quiet: ProcedureRunner,
) -> None:
    journal = quiet.claim()

    def unknown(effect: Effect) -> Any:
        if isinstance(effect, effects.CreateEntry):
            return CreateResult.UNKNOWN
        return NotImplemented

    with pytest.raises(OutcomeUnknownError, match="did not say in 2 s"):
        quiet.run(publish(journal, manifest(journal, 1), (), storage_retry=RETRY_POLICY), unknown)


def test_storage_error_after_an_unknown_create_is_retried_and_not_raised(
    quiet: ProcedureRunner,
) -> None:
    journal = quiet.claim()
    outcomes: list[object] = [CreateResult.UNKNOWN, StorageError("full"), CreateResult.CREATED]

    def answer(effect: Effect) -> Any:
        if isinstance(effect, effects.CreateEntry):
            outcome = outcomes.pop(0)
            if isinstance(outcome, StorageError):
                raise outcome
            return NotImplemented if outcome is CreateResult.CREATED else outcome
        return NotImplemented

    found = quiet.run(
        publish(journal, manifest(journal, 1), (), storage_retry=RETRY_POLICY), answer
    )
    assert found.number == 2
    outcomes.append(StorageError("full"))
    with pytest.raises(StorageError, match="full"):
        quiet.run(publish(journal, manifest(journal, 2), (), storage_retry=RETRY_POLICY), answer)


def test_closed_journal_accepts_only_a_claim_of_a_new_submission(quiet: ProcedureRunner) -> None:
    quiet.close(quiet.claim())
    with pytest.raises(JobClosedError, match="Job 'job' has ended \\(finished\\)"):
        quiet.claim()
    assert quiet.kinds() == ["Claim", "Closed"]
    assert quiet.claim("s2").attempt == 3


def test_claim_is_refused_without_take_over_if_another_journal_used_the_job_name(
    quiet: ProcedureRunner,
) -> None:
    used = TransactionalId("tidegate.job.otherjournal.totals.4.0.0")
    neighbour = TransactionalId("tidegate.job-2.otherjournal.totals.4.0.0")
    for tid in (used, neighbour):
        quiet.world.init(tid)
        quiet.world.write(tid, 0, 1)
    with pytest.raises(RefusedError, match=r"of journal otherjournal.*--take-over"):
        quiet.claim()
    assert quiet.kinds() == []
    journal = quiet.claim(take_over=True)
    assert quiet.recover(journal).fenced == (used,)
    assert quiet.world.broker[used].state is TransactionState.EMPTY
    assert quiet.world.broker[neighbour].state is TransactionState.ONGOING
    quiet.world.write(used, 2, 1)
    again = quiet.claim()
    assert quiet.recover(again).fenced == (used,), "a crash in between loses nothing"
    quiet.publish(again, 1)
    assert quiet.recover(quiet.claim()).fenced == (), "once is enough: it may be used elsewhere"


def test_existing_journal_ignores_transactional_ids_of_another_journal(
    quiet: ProcedureRunner,
) -> None:
    quiet.claim()
    other = TransactionalId("tidegate.job.otherjournal.totals.4.0.0")
    quiet.world.init(other)
    assert quiet.recover(quiet.claim()).fenced == ()


def test_claim_fails_if_a_journal_entry_is_torn_or_missing(quiet: ProcedureRunner) -> None:
    journal = quiet.claim()
    for counter in range(1, SNAPSHOT_INTERVAL):
        quiet.publish(journal, counter)
    objects = quiet.world.store.objects
    snapshot = snapshot_path(JOB, SNAPSHOT_INTERVAL)
    assert decode_snapshot(objects[snapshot], "snapshot").number == SNAPSHOT_INTERVAL
    quiet.publish(journal, SNAPSHOT_INTERVAL)
    path = entry_path(JOB, SNAPSHOT_INTERVAL)
    whole = objects[path]

    objects[path] = whole[:-9]
    with pytest.raises(CorruptCheckpointError, match="torn or was edited"):
        quiet.claim()
    del objects[path]
    with pytest.raises(CorruptCheckpointError, match="is missing"):
        quiet.claim()
    del objects[snapshot]
    with pytest.raises(CorruptCheckpointError, match=r"0100\.json is missing, but entry 101 is"):
        quiet.claim()


def test_claim_fails_if_several_journal_entries_in_a_row_are_missing(
    quiet: ProcedureRunner,
) -> None:
    journal = quiet.claim()
    for counter in range(1, 10):
        quiet.publish(journal, counter)
    for number in range(3, 9):
        del quiet.world.store.objects[entry_path(JOB, number)]
    with pytest.raises(CorruptCheckpointError, match=r"0003\.json is missing, but entry 9 is"):
        quiet.claim()


def test_publication_fails_if_the_entry_at_its_number_does_not_follow_the_one_before(
    quiet: ProcedureRunner,
) -> None:
    """The attempt has read entry 3; it is lost, and an older one is brought back at 4."""
    older = quiet.claim()
    quiet.publish(older, 1)
    filling = quiet.claim()
    stray = msgspec.structs.replace(quiet.entries()[1], number=4, previous="another")
    quiet.world.store.objects[entry_path(JOB, 4)] = encode_entry(stray)
    with pytest.raises(CorruptCheckpointError, match="does not follow the one before it"):
        quiet.publish(filling, 1)


def test_entries_added_during_a_journal_read_are_not_taken_for_a_gap(
    quiet: ProcedureRunner,
) -> None:
    journal = quiet.claim()
    quiet.publish(journal, 1)
    late: list[Any] = []

    def race(effect: Effect) -> Any:
        third = isinstance(effect, effects.ReadObject) and effect.path == entry_path(JOB, 3)
        if third and not late:
            late.append(None)  # read before two entries are added
            quiet.publish(journal, 2)
            quiet.publish(journal, 3)
            return None
        return NotImplemented

    assert quiet.run(read_journal(JOB), race).number == 4


def test_claims_without_publications_write_journal_snapshots(quiet: ProcedureRunner) -> None:
    """A job restarts for days and never publishes. The cost of a claim does not grow."""
    for _ in range(3 * SNAPSHOT_INTERVAL):
        quiet.asked.clear()
        journal = quiet.claim()
        read = sum(isinstance(effect, effects.ReadObject) for effect in quiet.asked)
        assert read <= SNAPSHOT_INTERVAL + 5, "and its snapshot, its entry, the end and itself"
    snapshots = sorted(path for path in quiet.world.store.objects if path.endswith(".hint"))
    assert snapshots == [snapshot_path(JOB, n * SNAPSHOT_INTERVAL) for n in (1, 2, 3)]
    assert quiet.run(read_journal(JOB)) == journal.state


def test_claim_writes_the_journal_snapshot_that_the_claim_before_could_not_write(
    quiet: ProcedureRunner,
) -> None:
    def no_snapshot(effect: Effect) -> Any:
        if isinstance(effect, effects.WriteObject) and effect.path.endswith(".hint"):
            raise StorageError("full")
        return NotImplemented

    quiet.claim(snapshot_interval=2)
    made = quiet.run(
        claim(JOB, submission_id="s1", retry_policy=RETRY_POLICY, snapshot_interval=2), no_snapshot
    )
    assert (made.attempt, made.snapshot_due) == (2, True)
    assert quiet.claim(snapshot_interval=2).attempt == 3
    snapshots = [path for path in quiet.world.store.objects if path.endswith(".hint")]
    assert snapshots == [snapshot_path(JOB, 3)]


def test_claim_succeeds_if_listing_journal_snapshots_fails(quiet: ProcedureRunner) -> None:
    listings: list[Effect] = []

    def fails(effect: Effect) -> Any:
        if isinstance(effect, effects.ListObjects) and quiet.entries():
            listings.append(effect)
            if len(listings) == 2:  # the first one looks whether the claim counts
                raise StorageError("slow down")
        return NotImplemented

    procedure = claim(JOB, submission_id="s1", retry_policy=RETRY_POLICY, snapshot_interval=1)
    assert quiet.run(procedure, fails).attempt == 1
    assert len(listings) == 2


def test_journal_read_ignores_a_torn_or_wrong_journal_snapshot(quiet: ProcedureRunner) -> None:
    journal = quiet.claim()
    quiet.publish(journal, 1)
    objects = quiet.world.store.objects
    stale = quiet.run(read_journal(JOB))
    objects[snapshot_path(JOB, 2)] = encode_snapshot(stale)
    quiet.publish(journal, 2)
    assert quiet.run(read_journal(JOB)).number == 3
    objects[snapshot_path(JOB, 3)] = b"{torn"
    assert quiet.run(read_journal(JOB)).number == 3
    objects[snapshot_path(JOB, 3)] = encode_snapshot(stale)
    assert quiet.run(read_journal(JOB)).number == 3, "it is not of the entry that its name says"


def test_an_unknown_restore_point_is_refused_before_the_claim(quiet: ProcedureRunner) -> None:
    journal = quiet.claim()
    quiet.publish(journal, 1)
    quiet.publish(journal, 2)
    with pytest.raises(RefusedError, match=r"'1-7' to restore; the last one is 1-2\. `tide"):
        quiet.claim("s2", restore="1-7")
    assert len(quiet.entries()) == 3
    by_hand = quiet.claim("s2", restore="1-1")
    point = by_hand.restore_point("1-1")
    assert point is not None
    assert str(point.checkpoint) == "1-1"
    assert by_hand.restore_point("none") is None
    quiet.publish(by_hand, 1)
    assert (
        quiet.claim("s2", restore="1-1").restore_point("1-1")
        == by_hand.state.recent_checkpoints[-1]
    ), "a restart of the same submit goes on from its own last publication"


def test_a_restore_point_that_is_not_kept_any_more_is_refused_before_the_claim(
    quiet: ProcedureRunner,
) -> None:
    journal = quiet.claim()
    for counter in (1, 2, 3):
        quiet.publish(journal, counter)
    del quiet.world.store.objects[f"{JOB}/manifests/1-1.json"]
    with pytest.raises(RefusedError, match=r"'1-1' are not in .* any more; those of 1-2, 1-3 are"):
        quiet.claim("s2", restore="1-1")
    assert quiet.kinds().count("Claim") == 1
    assert quiet.claim("s2", restore="1-2").restore_point("1-2") is not None


def test_claim_fails_if_the_store_confirmed_a_create_but_reads_back_nothing(
    quiet: ProcedureRunner,
) -> None:
    def forget(effect: Effect) -> Any:
        return CreateResult.CREATED if isinstance(effect, effects.CreateEntry) else NotImplemented

    with pytest.raises(CorruptCheckpointError, match="reads back as nothing"):
        quiet.run(claim(JOB, submission_id="s1", retry_policy=RETRY_POLICY), forget)


def test_a_claim_to_close_needs_an_earlier_claim_of_the_same_submission(
    quiet: ProcedureRunner,
) -> None:
    def to_close(submission_id: str) -> ClaimedJournal | None:
        return quiet.run(
            claim_to_close(JOB, submission_id=submission_id, retry_policy=RETRY_POLICY)
        )

    assert to_close("s1") is None, "there is no journal"
    quiet.claim("s1")
    assert to_close("s2") is None
    assert quiet.kinds() == ["Claim"], "a submission that has not run changes nothing"
    found = to_close("s1")
    assert found is not None
    quiet.close(found)
    assert quiet.kinds() == ["Claim", "Claim", "Closed"]
    with pytest.raises(JobClosedError, match="has ended"):
        to_close("s1")


def test_claim_to_close_commits_listed_transactions_and_fences_the_rest(
    quiet: ProcedureRunner,
) -> None:
    dead = quiet.claim()
    quiet.publish(dead, 1, *quiet.prepared(dead, 0))
    unpublished = quiet.prepared(dead, 1)
    journal = quiet.run(claim_to_close(JOB, submission_id="s1", retry_policy=RETRY_POLICY))
    assert journal is not None
    quiet.close(journal)
    assert quiet.world.output == {0: 1}
    for txn in unpublished:
        found = quiet.world.describe(txn.transactional_id)
        assert found is not None
        assert found.state is not TransactionState.ONGOING
