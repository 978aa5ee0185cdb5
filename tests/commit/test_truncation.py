"""Trimming the journal step by step: what goes, what stays, and who comes too late."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.commit.quiet import ProcedureRunner, manifest
from tests.commit.world import JOB, RETRY_POLICY
from tidegate.commit import effects
from tidegate.commit.claim import claim
from tidegate.commit.effects import Effect
from tidegate.commit.journal.claimed import ClaimedJournal
from tidegate.commit.journal.entries import (
    encode_entry,
    entry_number,
    entry_path,
    snapshot_number,
    snapshot_path,
)
from tidegate.commit.journal.reading import read_journal
from tidegate.commit.journal.state import JournalState, PublicationRef
from tidegate.commit.publish import publish
from tidegate.commit.retention import log_start
from tidegate.commit.truncation import truncate
from tidegate.errors import CorruptCheckpointError, FencedError, OutcomeUnknownError, StorageError
from tidegate.ids import Attempt, CheckpointId, JournalNumber
from tidegate.ports.blobs import CreateResult

EVERY = 4
"""Entries between two snapshots here."""


@pytest.fixture
def quiet() -> ProcedureRunner:
    return ProcedureRunner()


def begun(quiet: ProcedureRunner, **more: Any) -> ClaimedJournal:
    journal = quiet.claim(**more)
    journal.snapshot_interval = EVERY
    return journal


def publish_up_to(quiet: ProcedureRunner, journal: ClaimedJournal, number: int) -> None:
    while journal.state.number < number:
        quiet.publish(journal, journal.state.number + 1)


def numbers(quiet: ProcedureRunner) -> tuple[list[int], list[int]]:
    """The numbers of the entries and of the snapshots that exist."""
    paths = sorted(quiet.world.store.objects)
    return (
        [n for path in paths if (n := entry_number(path)) is not None],
        [n for path in paths if (n := snapshot_number(path)) is not None],
    )


def trimmed(quiet: ProcedureRunner, number: int = 14) -> ClaimedJournal:
    """A journal of 14 entries, snapshots at 4, 8 and 12, trimmed below 8."""
    journal = begun(quiet)
    publish_up_to(quiet, journal, number)
    quiet.run(truncate(journal))
    return journal


# --- what goes ----------------------------------------------------------------------------------


def test_truncate_deletes_the_oldest_entries_and_keeps_the_newest_two_snapshots(
    quiet: ProcedureRunner,
) -> None:
    journal = begun(quiet)
    publish_up_to(quiet, journal, 7)
    assert quiet.run(truncate(journal)) == 0, "one snapshot is not enough"
    publish_up_to(quiet, journal, 14)
    assert quiet.run(truncate(journal)) == 7
    assert numbers(quiet) == ([8, 9, 10, 11, 12, 13, 14], [8, 12])
    deleted = [e.path for e in quiet.asked if isinstance(e, effects.DeleteObject)]
    assert deleted == [*(entry_path(JOB, n) for n in range(1, 8)), snapshot_path(JOB, 4)]
    quiet.asked.clear()
    assert quiet.run(truncate(journal)) == 0
    assert quiet.asked == [], "nothing is asked before the next snapshot"


def test_truncate_keeps_entries_that_the_newest_two_publications_need(
    quiet: ProcedureRunner,
) -> None:
    journal = begun(quiet)
    publish_up_to(quiet, journal, 3)
    for _ in range(12):
        journal = begun(quiet)
    assert quiet.run(truncate(journal)) == 0, "claims alone trim nothing"
    publish_up_to(quiet, journal, 20)
    assert numbers(quiet)[1] == [16, 20]
    last = begun(quiet)
    last.truncation_due = True
    quiet.publish(last, 1)
    assert quiet.run(truncate(last)) == 15


def test_nothing_is_truncated_while_the_last_publication_may_be_rolled_back(
    quiet: ProcedureRunner,
) -> None:
    journal = begun(quiet)
    publish_up_to(quiet, journal, 13)
    quiet.publish(journal, 14, *quiet.prepared(journal, 0))
    assert quiet.run(truncate(journal)) == 0
    quiet.commit(journal)
    assert quiet.run(truncate(journal)) == 7


@pytest.mark.parametrize("number", [8, 12])
def test_nothing_is_truncated_while_one_of_the_newest_two_snapshots_is_torn(
    quiet: ProcedureRunner, number: int
) -> None:
    journal = begun(quiet)
    publish_up_to(quiet, journal, 14)
    quiet.world.store.objects[snapshot_path(JOB, number)] = b"{torn"
    assert quiet.run(truncate(journal)) == 0
    publish_up_to(quiet, journal, 21)
    assert quiet.run(truncate(journal)) == 15, "two newer ones can be read"


@given(
    snapshots=st.lists(st.integers(1, 300), unique=True).map(sorted),
    publications=st.lists(st.integers(1, 300), unique=True).map(sorted),
    tail=st.integers(0, 5),
)
def test_log_start_keeps_the_tail_two_publications_and_two_snapshots(
    snapshots: list[int], publications: list[int], tail: int
) -> None:
    number = max([*snapshots, *publications, 1]) + tail
    refs = tuple(
        PublicationRef(
            number=JournalNumber(n),
            checkpoint=CheckpointId(Attempt(1), n),
            submission_id="s",
            manifest="m",
            sha256="",
            final=False,
        )
        for n in publications
    )
    state = JournalState(number=JournalNumber(number), recent_checkpoints=refs)
    keep = log_start(state, snapshots)
    assert 1 <= keep <= number, "never the tail"
    assert sum(n >= keep for n in publications) >= min(2, len(publications))
    assert sum(n >= keep for n in snapshots) >= min(2, len(snapshots))
    if snapshots and snapshots[-1] > number - tail and keep > 1:
        assert keep <= snapshots[-2]
    fenced = JournalState(number=JournalNumber(1), recent_checkpoints=refs)
    assert log_start(fenced, [*snapshots, 400, 500]) == 1


# --- reading what is left -----------------------------------------------------------------------


def test_truncated_journal_can_be_read_and_claimed(quiet: ProcedureRunner) -> None:
    whole = trimmed(quiet).state
    assert quiet.run(read_journal(JOB)) == whole
    assert quiet.claim().attempt == 15


def test_truncated_journal_is_read_without_its_newest_snapshot(quiet: ProcedureRunner) -> None:
    whole = trimmed(quiet).state
    quiet.world.store.objects[snapshot_path(JOB, 12)] = b"{torn"
    assert quiet.run(read_journal(JOB)) == whole
    del quiet.world.store.objects[snapshot_path(JOB, 12)]
    assert quiet.run(read_journal(JOB)) == whole


def test_truncated_journal_without_any_snapshot_is_not_taken_for_a_new_one(
    quiet: ProcedureRunner,
) -> None:
    trimmed(quiet)
    for number in (8, 12):
        del quiet.world.store.objects[snapshot_path(JOB, number)]
    with pytest.raises(CorruptCheckpointError, match="begins with entry 8, and no snapshot"):
        quiet.claim()


def test_crash_during_truncation_leaves_a_readable_journal(quiet: ProcedureRunner) -> None:
    journal = begun(quiet)
    publish_up_to(quiet, journal, 14)
    whole, budget = journal.state, [0]

    def dies(effect: Effect) -> Any:
        if isinstance(effect, effects.DeleteObject):
            if not budget[0]:
                raise StorageError("dies here")
            budget[0] -= 1
        return NotImplemented

    for deletions in range(3):
        budget[0] = deletions
        with pytest.raises(StorageError):
            quiet.run(truncate(journal), dies)
        assert quiet.run(read_journal(JOB)) == whole
    quiet.run(truncate(journal))
    assert numbers(quiet)[0] == list(range(8, 15))


@pytest.mark.parametrize("nth", range(6))
def test_journal_reader_begins_again_if_truncation_overtakes_it(
    quiet: ProcedureRunner, nth: int
) -> None:
    """It is held up before its n-th question, for as long as three snapshots take."""
    journal = trimmed(quiet)
    asked: list[Effect] = []

    def held_up(effect: Effect) -> Any:
        asked.append(effect)
        if len(asked) == nth + 1:
            publish_up_to(quiet, journal, 40)
            quiet.run(truncate(journal))
        return NotImplemented

    assert quiet.run(read_journal(JOB), held_up) == journal.state


# --- creates that come too late -----------------------------------------------------------------


def test_late_create_at_a_truncated_number_is_fenced_and_ignored(quiet: ProcedureRunner) -> None:
    zombie = quiet.claim()
    journal = begun(quiet)
    quiet.recover(journal)
    publish_up_to(quiet, journal, 14)
    quiet.run(truncate(journal))
    own_claim = entry_path(JOB, 1)

    def saw_its_claim_before(effect: Effect) -> Any:
        if isinstance(effect, effects.ReadObject) and effect.path == own_claim:
            return quiet.world.store.history[own_claim]
        return NotImplemented

    late = publish(zombie, manifest(zombie, 1), (), storage_retry=RETRY_POLICY)
    with pytest.raises(FencedError, match="fenced by a newer attempt"):
        quiet.run(late, saw_its_claim_before)
    assert entry_path(JOB, 2) in quiet.world.store.objects, "it did land, in the past"
    assert quiet.run(read_journal(JOB)) == journal.state
    publish_up_to(quiet, journal, 18)
    quiet.run(truncate(journal))
    assert numbers(quiet)[0][0] == 12, "and goes with the next trimming"


def test_late_create_is_fenced_even_if_its_truncated_predecessor_landed_again(
    quiet: ProcedureRunner,
) -> None:
    """A create that was sent twice lands a second time, after the trimming."""
    zombie = quiet.claim()
    quiet.publish(zombie, 1)
    twice = encode_entry(quiet.entries()[-1])
    journal = begun(quiet)
    publish_up_to(quiet, journal, 14)
    quiet.run(truncate(journal))
    assert quiet.world.store.land(entry_path(JOB, 2), twice)
    with pytest.raises(FencedError, match="fenced by a newer attempt"):
        quiet.publish(zombie, 2)


def test_claim_at_a_truncated_number_is_made_again_at_the_end(quiet: ProcedureRunner) -> None:
    journal = begun(quiet)
    publish_up_to(quiet, journal, 5)

    def held_up(effect: Effect) -> Any:
        if isinstance(effect, effects.CreateEntry) and effect.path == entry_path(JOB, 6):
            publish_up_to(quiet, journal, 20)
            quiet.run(truncate(journal))
        return NotImplemented

    newer = quiet.run(claim(JOB, submission_id="s1", retry_policy=RETRY_POLICY), held_up)
    assert newer.attempt == 21
    assert newer.state_before_claim == journal.state


def test_publication_outcome_is_unknown_if_the_listing_after_the_create_fails(
    quiet: ProcedureRunner,
) -> None:
    journal = quiet.claim()

    def blind(effect: Effect) -> Any:
        if isinstance(effect, effects.ListObjects):
            raise StorageError("slow down")
        return NotImplemented

    with pytest.raises(OutcomeUnknownError):
        quiet.run(publish(journal, manifest(journal, 1), (), storage_retry=RETRY_POLICY), blind)
    assert journal.last_write_unknown


def test_own_entry_created_late_at_a_truncated_number_is_fenced_after_a_lost_answer(
    quiet: ProcedureRunner,
) -> None:
    """The create lands after the trimming, its answer is lost, and the next try says "exists"."""
    zombie = quiet.claim()
    journal = begun(quiet)
    publish_up_to(quiet, journal, 14)
    quiet.run(truncate(journal))
    answers = [CreateResult.UNKNOWN]

    def lost(effect: Effect) -> Any:
        if isinstance(effect, effects.CreateEntry) and answers:
            quiet.world.store.land(effect.path, effect.data)
            return answers.pop()
        return NotImplemented

    with pytest.raises(FencedError):
        quiet.run(publish(zombie, manifest(zombie, 1), (), storage_retry=RETRY_POLICY), lost)
