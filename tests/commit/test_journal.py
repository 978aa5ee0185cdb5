"""Journal entries: their files, what they add up to, and what cannot follow what."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from tests.checkpoint.examples import txn
from tidegate.checkpoint.envelope import encode_file
from tidegate.commit.journal.entries import (
    AnyEntry,
    Claim,
    Closed,
    LossAccepted,
    Lost,
    Publication,
    RolledBack,
    Settled,
    decode_entry,
    encode_entry,
    entry_number,
    entry_path,
    snapshot_number,
    snapshot_path,
)
from tidegate.commit.journal.state import (
    RECENT_MAX,
    ROLLBACK_TARGETS_MAX,
    JournalState,
    decode_snapshot,
    encode_snapshot,
)
from tidegate.errors import CorruptCheckpointError, InternalError
from tidegate.ids import Attempt, CheckpointId, JobName, JournalNumber
from tidegate.protocol.subtask_snapshot import PreparedTransaction

JOB = JobName("job")


class Book:
    """Writes entries that follow each other."""

    def __init__(self) -> None:
        self.state = JournalState()
        self.entries: list[AnyEntry] = []

    def header(self) -> dict[str, Any]:
        number = self.state.number + 1
        return {
            "number": JournalNumber(number),
            "nonce": f"n{number}",
            "previous": self.state.nonce,
            "journal_id": self.state.journal_id or "abc123",
            "created_ms": 1,
        }

    def add(self, entry: AnyEntry) -> JournalState:
        self.state = self.state.after(entry)
        self.entries.append(entry)
        return self.state

    def claim(self, submission_id: str = "s1", **more: Any) -> JournalState:
        return self.add(
            Claim(**self.header(), submission_id=submission_id, restore="latest", **more)
        )

    def publication(self, counter: int, *named: PreparedTransaction, **changes: Any) -> Publication:
        attempt = changes.pop("attempt", self.state.attempt)
        return Publication(
            **self.header(),
            attempt=attempt,
            checkpoint=changes.pop("checkpoint", CheckpointId(attempt, counter)),
            submission_id="s1",
            manifest=f"job/manifests/{attempt}-{counter}.json",
            sha256="0",
            transactions=named,
            final=changes.pop("final", False),
        )

    def settled(self, **changes: Any) -> Settled:
        assert self.state.publication is not None
        fields = {"attempt": self.state.attempt, "publication": self.state.publication.number}
        return Settled(**self.header(), **{**fields, **changes})

    def rolled_back(self, **changes: Any) -> RolledBack:
        assert self.state.publication is not None
        fields: dict[str, Any] = {
            "attempt": self.state.attempt,
            "publication": self.state.publication.number,
            "aborted": self.state.introduced,
        }
        return RolledBack(**self.header(), **{**fields, **changes})

    def lost(self, *transactions: PreparedTransaction) -> Lost:
        assert self.state.publication is not None
        return Lost(
            **self.header(),
            attempt=self.state.attempt,
            publication=self.state.publication.number,
            transactions=transactions,
            statement="gone",
        )


@pytest.fixture
def book() -> Book:
    return Book()


# --- the fold -----------------------------------------------------------------------------------


def test_claim_sets_the_attempt_the_journal_id_and_the_submission(book: Book) -> None:
    assert book.claim().attempt == 1
    state = book.claim("s2", fences_other_journals=True)
    assert (state.attempt, state.journal_id, state.submission_id) == (2, "abc123", "s2")
    assert state.fences_other_journals
    assert book.claim("s3").fences_other_journals


def test_publication_has_pending_commits_until_it_is_settled(book: Book) -> None:
    book.claim()
    state = book.add(book.publication(1, txn(1), txn(2)))
    assert state.pending_commits == (txn(1), txn(2))
    assert book.claim().pending_commits == (txn(1), txn(2)), "a claim settles nothing"
    state = book.add(book.settled())
    assert state.settled
    assert state.pending_commits == ()
    state = book.add(book.publication(1, txn(3)))
    assert not state.settled
    assert state.pending_commits == (txn(3),)


def test_lost_publication_has_pending_commits_until_the_loss_is_accepted(book: Book) -> None:
    book.claim()
    book.add(book.publication(1, txn(1), txn(2)))
    state = book.add(book.lost(txn(2)))
    assert state.lost is not None
    assert state.pending_commits == (txn(1), txn(2))
    state = book.add(LossAccepted(**book.header(), lost=state.number, submission_id="s2"))
    assert state.accepted
    assert state.pending_commits == ()
    book.claim("s2")
    state = book.add(book.publication(1))
    assert state.lost is None
    assert not state.accepted


def checkpoints(state: JournalState) -> list[str]:
    return [str(ref.checkpoint) for ref in state.recent_checkpoints]


def test_rollback_restores_the_publication_before_with_its_still_carried_transactions(
    book: Book,
) -> None:
    book.claim()
    book.add(book.publication(1, txn(1), txn(2)))
    book.add(book.publication(2, txn(2), txn(3)))
    assert book.state.introduced == (txn(3),)
    state = book.add(book.rolled_back())
    assert checkpoints(state) == ["1-1"]
    assert state.publication is not None
    assert state.publication.number == 2
    assert state.pending_commits == (txn(2),), "1 was seen ended, and its id may be in use again"
    refused(book, book.rolled_back(), "may be committed")
    assert book.add(book.settled()).settled


def test_publications_are_rolled_back_one_by_one_until_none_is_left(book: Book) -> None:
    book.claim()
    book.add(book.publication(1, txn(1)))
    book.add(book.publication(2, txn(1), txn(2)))
    book.add(book.publication(3, txn(1), txn(2)))
    book.claim()
    for left in (["1-1", "1-2"], ["1-1"], []):
        assert checkpoints(book.add(book.rolled_back())) == left
    assert book.state.publication is None
    assert book.state.pending_commits == ()
    assert checkpoints(book.add(book.publication(1, txn(4)))) == ["5-1"]


def test_settled_publication_is_never_rolled_back(book: Book) -> None:
    book.claim()
    book.add(book.publication(1, txn(1)))
    book.add(book.settled())
    refused(book, book.rolled_back(), "decided before")
    book.add(book.publication(2, txn(2)))
    state = book.add(book.rolled_back())
    assert state.settled
    assert state.pending_commits == ()
    refused(book, book.rolled_back(), "decided before")


def test_rollback_to_a_publication_with_an_accepted_loss_finds_it_settled(book: Book) -> None:
    book.claim()
    book.add(book.publication(1, txn(1)))
    book.add(book.lost(txn(1)))
    refused(book, book.rolled_back(), "decided before")
    book.add(LossAccepted(**book.header(), lost=book.state.number, submission_id="s2"))
    book.claim("s2")
    book.add(book.publication(1, txn(2)))
    state = book.add(book.rolled_back())
    assert (state.pending_commits, state.lost, state.settled) == ((), None, True)


def test_rollback_is_refused_unless_of_the_last_publication_by_the_newest_attempt(
    book: Book,
) -> None:
    book.claim()
    book.add(book.publication(1, txn(1)))
    book.add(book.publication(2, txn(2)))
    refused(book, book.rolled_back(publication=JournalNumber(2)), "names entry 2, not 3")
    late = book.rolled_back()
    book.claim()
    late = msgspec.structs.replace(late, **book.header())
    refused(book, late, "of attempt 1, but the newest claim is 4")


def test_number_of_publications_that_can_be_rolled_back_is_limited(book: Book) -> None:
    book.claim()
    for counter in range(1, ROLLBACK_TARGETS_MAX + 5):
        book.add(book.publication(counter, *map(txn, range(counter))))
    assert len(book.state.rollback_targets) == ROLLBACK_TARGETS_MAX
    for _ in range(ROLLBACK_TARGETS_MAX):
        book.add(book.rolled_back())
    refused(book, book.rolled_back(), "may be committed")


def test_rollback_is_refused_after_a_journal_snapshot_of_a_version_without_rollback(
    book: Book,
) -> None:
    book.claim()
    book.add(book.publication(1, txn(1)))
    body = json.loads(msgspec.json.encode(book.state))
    for field in ("carried", "own", "firm", "earlier"):
        del body[field]
    book.state = msgspec.json.decode(msgspec.json.encode(body), type=JournalState)
    assert book.state.pending_commits == (txn(1),)
    refused(book, book.rolled_back(), "may be committed")


def test_only_a_claim_follows_a_close(book: Book) -> None:
    book.claim()
    book.add(Closed(**book.header(), attempt=Attempt(1), outcome="finished"))
    with pytest.raises(CorruptCheckpointError, match="follows the closing"):
        book.add(book.publication(1))
    assert book.claim("s2").closed is None


def test_journal_state_keeps_only_the_most_recent_checkpoints(book: Book) -> None:
    book.claim()
    for counter in range(1, RECENT_MAX + 3):
        book.add(book.publication(counter))
    recent = [ref.checkpoint.counter for ref in book.state.recent_checkpoints]
    assert recent == list(range(3, RECENT_MAX + 3))


def refused(book: Book, entry: AnyEntry, why: str) -> None:
    before = book.state
    kind = entry.__struct_config__.tag
    with pytest.raises(CorruptCheckpointError, match=rf"entry {entry.number} \({kind}\).*{why}"):
        book.add(entry)
    assert book.state == before


def test_publication_of_an_older_attempt_is_refused_after_a_newer_claim(book: Book) -> None:
    book.claim()
    book.claim()
    old = book.publication(1, attempt=Attempt(1))
    refused(book, old, "of attempt 1, but the newest claim is 2")


def test_entry_that_skips_a_number_is_refused(book: Book) -> None:
    book.claim()
    later = msgspec.structs.replace(book.publication(1), number=JournalNumber(3))
    refused(book, later, "stands where number 2 belongs")


def test_entry_is_refused_if_it_names_another_previous_nonce(book: Book) -> None:
    book.claim()
    other = msgspec.structs.replace(book.publication(1), previous="another nonce")
    refused(book, other, "does not follow the entry before it")


def test_entries_of_another_journal_are_refused(book: Book) -> None:
    book.claim()
    other = msgspec.structs.replace(book.publication(1), journal_id="xyz")
    refused(book, other, "of another journal")


def test_publication_is_refused_unless_its_checkpoint_id_grows(book: Book) -> None:
    book.claim()
    book.add(book.publication(2))
    refused(book, book.publication(2), "checkpoint 1-2 follows 1-2")
    refused(book, book.publication(1), "checkpoint 1-1 follows 1-2")
    foreign = book.publication(3, checkpoint=CheckpointId(Attempt(9), 3))
    refused(book, foreign, "9-3 is not its checkpoint")


def test_settled_or_lost_is_refused_unless_for_the_last_undecided_publication(book: Book) -> None:
    book.claim()
    book.add(book.publication(1, txn(1)))
    book.add(book.publication(2, txn(1)))
    refused(book, book.settled(publication=JournalNumber(2)), "names entry 2, not 3")
    refused(book, book.settled(attempt=Attempt(0)), "of attempt 0")
    book.add(book.settled())
    refused(book, book.settled(), "decided before")
    refused(book, book.lost(txn(1)), "decided before")


def test_publication_is_refused_after_a_loss_that_is_not_accepted(book: Book) -> None:
    book.claim()
    book.add(book.publication(1, txn(1)))
    book.add(book.lost(txn(1)))
    refused(book, book.publication(2), "follows a loss")


def test_only_the_last_loss_can_be_accepted(book: Book) -> None:
    book.claim()
    book.add(book.publication(1, txn(1)))
    refused(
        book,
        LossAccepted(**book.header(), lost=JournalNumber(2), submission_id="s"),
        "not the last loss",
    )


# --- files --------------------------------------------------------------------------------------


def full_book() -> Book:
    book = Book()
    book.claim()
    book.add(book.publication(1, txn(1), txn(2)))
    book.add(book.settled())
    book.add(book.publication(2, txn(4)))
    book.add(book.rolled_back())
    book.add(book.publication(3, txn(3), final=True))
    lost = book.add(book.lost(txn(3)))
    book.add(LossAccepted(**book.header(), lost=lost.number, submission_id="s2"))
    book.add(Closed(**book.header(), attempt=Attempt(1), outcome="failed"))
    return book


@pytest.mark.parametrize("entry", full_book().entries, ids=lambda entry: type(entry).__name__)
def test_an_entry_is_read_back_from_its_file(entry: AnyEntry) -> None:
    path = entry_path(JOB, entry.number)
    assert decode_entry(encode_entry(entry), path) == entry
    assert encode_entry(entry) == encode_entry(decode_entry(encode_entry(entry), path))
    assert entry_number(path) == entry.number


def test_journal_snapshot_holds_the_whole_journal_state() -> None:
    state = full_book().state
    assert decode_snapshot(encode_snapshot(state), "snapshot") == state


def test_entry_and_snapshot_paths_hold_the_zero_padded_number() -> None:
    assert entry_path(JOB, 7) == "job/journal/00000000000000000007.json"
    assert snapshot_path(JOB, 7) == "job/journal/00000000000000000007.hint"
    assert entry_number(snapshot_path(JOB, 7)) is None
    assert snapshot_number(snapshot_path(JOB, 7)) == 7
    assert snapshot_number(entry_path(JOB, 7)) is None
    with pytest.raises(InternalError):
        entry_path(JOB, 0)


def test_torn_or_damaged_entry_never_decodes_to_other_content() -> None:
    entry = full_book().entries[1]
    data = encode_entry(entry)
    for cut in range(len(data) - 1):
        with pytest.raises(CorruptCheckpointError, match=r"Journal entry p is torn"):
            decode_entry(data[:cut], "p")
    for position in range(0, len(data) - 1, 7):
        damaged = bytearray(data)
        damaged[position] ^= 1
        try:
            found = decode_entry(bytes(damaged), "p")
        except CorruptCheckpointError:
            continue
        assert found == entry, "damage outside the content may go unseen, in it never"


def test_entry_of_an_unknown_kind_is_reported_as_written_by_a_newer_version() -> None:
    class Unknown(msgspec.Struct):
        kind: str
        number: int = 4

    with pytest.raises(CorruptCheckpointError, match=r"newer version of tidegate.*something"):
        decode_entry(encode_file(Unknown(kind="something")), "p")


def test_file_of_a_newer_format_is_reported_as_written_by_a_newer_version() -> None:
    newer = json.dumps({"version": 2, "sha256": "", "body": {}}).encode()
    with pytest.raises(CorruptCheckpointError, match=r"newer version of tidegate.*version 2"):
        decode_entry(newer, "p")


def test_entry_with_missing_fields_is_reported_with_file_and_remedy() -> None:
    class Half(msgspec.Struct):
        kind: str = "claim"

    with pytest.raises(CorruptCheckpointError, match=r"entry p does not read.*cannot be skipped"):
        decode_entry(encode_file(Half()), "p")


def test_unknown_fields_of_a_later_version_are_ignored() -> None:
    entry = full_book().entries[0]
    body = {**json.loads(msgspec.json.encode(entry)), "added_later": 1}
    raw = msgspec.json.encode(body)
    assert msgspec.json.decode(raw, type=AnyEntry) == entry


def test_closed_entry_without_the_field_stopped_reads_as_not_stopped() -> None:
    header: dict[str, Any] = {"number": 2, "nonce": "n", "previous": "p", "journal_id": "j"}
    closed = Closed(
        **header, created_ms=0, attempt=Attempt(1), outcome="finished", stopped="with_checkpoint"
    )
    raw = msgspec.to_builtins(closed)
    del raw["stopped"]
    assert msgspec.convert(raw, Closed).stopped == ""
    assert decode_entry(encode_entry(closed), "x") == closed
