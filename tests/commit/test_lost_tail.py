"""A journal that was restored from a backup: Kafka knows attempts or checkpoints that it lacks."""

from __future__ import annotations

import pytest

from tests.commit.quiet import ProcedureRunner
from tidegate.commit.journal.claimed import ClaimedJournal
from tidegate.commit.journal.entries import Claim
from tidegate.commit.journal.state import decode_snapshot, encode_snapshot
from tidegate.commit.lost_tail import (
    SHOWN_MAX,
    GroupCommits,
    commit_metadata,
    parse_commit_metadata,
    read_again,
)
from tidegate.errors import JournalLostError, RefusedError
from tidegate.ids import CheckpointId, TransactionalId, Uid
from tidegate.ports.kafka import GroupCommit, TransactionState
from tidegate.protocol.subtask_snapshot import SourceSplit


class Backup:
    """A world in which the journal can be put back to what it was."""

    def __init__(self) -> None:
        self.quiet = ProcedureRunner()
        self.first = self.quiet.claim("s1")
        self.quiet.recover(self.first)
        self.publish(self.first, 1, 1, 2)
        self._kept = dict(self.quiet.world.store.objects)

    def publish(self, journal: ClaimedJournal, counter: int, *records: int) -> None:
        self.quiet.publish(journal, counter, *self.quiet.prepared(journal, *records))
        self.quiet.commit(journal)

    def put_back(self) -> None:
        self.quiet.world.store.objects = dict(self._kept)
        self.quiet.world.store.history = dict(self._kept)
        self.quiet.world._decoded.clear()

    def committed(self, checkpoint: str, journal: str | None = None, at: int = 250) -> GroupCommits:
        name = self.first.journal_id if journal is None else journal
        metadata = commit_metadata(name, CheckpointId.parse(checkpoint))
        return {(Uid("orders"), "orders", 0): GroupCommit(at, metadata)}


@pytest.fixture
def backup() -> Backup:
    return Backup()


def with_newer_attempt(backup: Backup) -> ClaimedJournal:
    """Another attempt runs and writes; then the journal is put back."""
    newer = backup.quiet.claim("s2")
    backup.quiet.recover(newer)
    backup.publish(newer, 1, 3, 4)
    backup.quiet.prepared(newer, 5, 6)  # and these stay open
    backup.put_back()
    return newer


def test_submit_is_refused_if_kafka_has_ids_of_an_unknown_attempt(backup: Backup) -> None:
    newer = with_newer_attempt(backup)
    before = backup.quiet.kinds()
    with pytest.raises(RefusedError) as refused:
        backup.quiet.claim("s3")
    for part in ("'job'", f"attempt {newer.attempt} of this journal", "--restore 1-1", "backup"):
        assert part in str(refused.value)
    assert backup.quiet.kinds() == before, "a refused submit changes nothing"


def test_submit_is_refused_if_kafka_has_offsets_of_an_unknown_checkpoint(backup: Backup) -> None:
    """The same attempt continued after the backup, so its transactional ids show nothing."""
    before = backup.quiet.kinds()
    with pytest.raises(RefusedError, match=r"attempt 1 of this journal, and offsets of .* 1-40"):
        backup.quiet.claim("s2", commits=backup.committed("1-40"))
    assert backup.quiet.kinds() == before


def test_submit_accepts_offsets_of_known_checkpoints_other_journals_or_other_clients(
    backup: Backup,
) -> None:
    """Offsets of the last checkpoint or an older one, of another journal, or of other clients."""
    quiet = backup.quiet
    for commits in (
        backup.committed("1-1"),
        backup.committed("1-40", journal="another"),
        {(Uid("orders"), "orders", 0): GroupCommit(999, "")},
        {(Uid("orders"), "orders", 0): GroupCommit(999, "tidegate job x-y")},
    ):
        assert quiet.claim("s2", commits=commits).state.lost_attempt == 0


def test_submit_accepts_ids_of_older_attempts_and_of_other_journals(backup: Backup) -> None:
    newer = with_newer_attempt(backup)
    broker = backup.quiet.world.broker
    for tid in list(broker):
        other = TransactionalId(tid.replace(backup.first.journal_id, "another"))
        broker[other] = broker[tid]
        if f".totals.{newer.attempt}." in tid:
            del broker[tid]
    assert broker
    assert backup.quiet.claim("s3").state.lost_attempt == 0


def test_restart_of_a_submission_raises_journal_lost_if_the_journal_lacks_an_attempt(
    backup: Backup,
) -> None:
    with_newer_attempt(backup)
    with pytest.raises(JournalLostError, match="Make the newest copy available again"):
        backup.quiet.claim("s1", restore="1-1")


@pytest.mark.parametrize("restore", ["1-1", "none"])
def test_submit_with_explicit_restore_accepts_and_records_the_lost_attempt(
    backup: Backup, restore: str
) -> None:
    newer = with_newer_attempt(backup)
    quiet = backup.quiet
    journal = quiet.claim("s3", restore=restore)
    claim = quiet.entries()[-1]
    assert isinstance(claim, Claim)
    assert claim.lost_attempt == newer.attempt
    assert journal.attempt <= newer.attempt, "its ids are counted again"
    open_ = [t for t, each in quiet.world.broker.items() if each.state is TransactionState.ONGOING]
    assert open_, "of the lost attempt"
    assert set(open_) <= set(quiet.recover(journal).fenced)
    assert decode_snapshot(encode_snapshot(journal.state), "snapshot").lost_attempt == newer.attempt
    again = quiet.claim("s3")
    assert again.attempt == journal.attempt + 1, "its ids are still listed"
    assert quiet.claim("s4").attempt == again.attempt + 1, "the consent is in the journal"


def test_consent_to_lost_checkpoints_ends_once_newer_offsets_are_committed(
    backup: Backup,
) -> None:
    quiet, commits = backup.quiet, backup.committed("1-40")
    first = quiet.claim("s2", restore="1-1", commits=commits)
    quiet.recover(first)
    again = quiet.claim("s3", commits=commits)
    assert again.state.lost_attempt == 1, "the group holds them until the next checkpoint"
    newer = backup.committed(f"{first.attempt}-3")
    with pytest.raises(RefusedError, match=f"offsets of checkpoint {first.attempt}-3"):
        quiet.claim("s4", commits=newer)


def test_ids_of_a_newer_attempt_that_the_journal_holds_are_no_lost_tail(backup: Backup) -> None:
    """Another process claims and writes between the two."""
    quiet = backup.quiet
    newer = quiet.claim("s2")
    quiet.prepared(newer, 5)
    assert quiet.claim("s3").attempt == newer.attempt + 1


def test_commit_metadata_is_parsed_back_and_foreign_metadata_is_ignored() -> None:
    checkpoint = CheckpointId.parse("12-345")
    assert parse_commit_metadata(commit_metadata("j0", checkpoint)) == ("j0", checkpoint)
    for text in ("", "x", "tidegate j0", "tidegate j0 12", "other j0 12-3", "tidegate j0 a-b"):
        assert parse_commit_metadata(text) is None


def split(partition: int, offset: int) -> SourceSplit:
    return SourceSplit(source=Uid("orders"), topic="orders", partition=partition, offset=offset)


def test_report_lists_the_offset_ranges_that_are_read_again(backup: Backup) -> None:
    commits = backup.committed("1-40", at=300)
    text = read_again(
        backup.first.journal_id,
        [split(0, 100), split(1, 50)],
        [split(0, 250), split(1, 50)],
        commits,
    )
    assert text == "orders-0 offsets 100 to 299"
    assert read_again("another", [split(0, 100)], [split(0, 250)], commits) == (
        "orders-0 offsets 100 to 249"
    )
    assert read_again(backup.first.journal_id, [split(0, 300)], [], commits) == ""
    many = range(SHOWN_MAX + 3)
    text = read_again("j", [split(n, 0) for n in many], [split(n, 1) for n in many], {})
    assert text.endswith("offsets 0 to 0 and 3 more partitions")
