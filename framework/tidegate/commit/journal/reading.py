"""Reading a job's journal: from the newest journal snapshot up to the last entry, without a gap.

The folder is listed before and after the entries are read. A number that is missing below a listed
number is an error and is never skipped. The only exception is a newer journal snapshot, which shows
that the journal was truncated meanwhile. The reading then starts again at that snapshot. Entries
below the newest snapshot do not count. One of them may have been created late by a zombie, at a
number that was used once and truncated since.

This module changes nothing. `claimed.py` adds entries, and `truncation.py` truncates the
journal.
"""

from __future__ import annotations

from dataclasses import dataclass

from tidegate.commit.effects import Procedure, list_objects, read_object
from tidegate.commit.journal.entries import (
    REMEDY,
    AnyEntry,
    decode_entry,
    entry_number,
    entry_path,
    journal_folder,
    snapshot_number,
    snapshot_path,
)
from tidegate.commit.journal.state import JournalState, decode_snapshot
from tidegate.errors import CorruptCheckpointError
from tidegate.ids import JobName, JournalNumber


@dataclass(frozen=True, slots=True, kw_only=True)
class JournalListing:
    """The content of a journal's folder."""

    entries: tuple[JournalNumber, ...]
    """The numbers of the entries, ascending, perhaps with orphans below the newest journal
    snapshot.
    """
    snapshots: tuple[JournalNumber, ...]
    """The numbers of the journal snapshots, ascending."""

    @property
    def last(self) -> int:
        """The highest number of an entry; 0 without entries."""
        return self.entries[-1] if self.entries else 0

    @property
    def newest_snapshot(self) -> int:
        """The highest number of a journal snapshot; 0 without snapshots."""
        return self.snapshots[-1] if self.snapshots else 0


def list_journal(job: JobName) -> Procedure[JournalListing]:
    """List the folder once."""
    paths = yield from list_objects(journal_folder(job))
    entries = (entry_number(path) for path in paths)
    snapshots = (snapshot_number(path) for path in paths)
    return JournalListing(
        entries=tuple(sorted(number for number in entries if number is not None)),
        snapshots=tuple(sorted(number for number in snapshots if number is not None)),
    )


def newest_snapshot(job: JobName) -> Procedure[int]:
    """Return `JournalListing.newest_snapshot`. It is called with every entry, so it parses nothing
    else in the names.
    """
    paths = yield from list_objects(journal_folder(job))
    return max(
        (number for path in paths if (number := snapshot_number(path)) is not None), default=0
    )


def read_journal(job: JobName) -> Procedure[JournalState]:
    """Return the state that all entries add up to. CorruptCheckpointError if the journal is not
    complete.

    This claims nothing and changes nothing.
    """
    listing = yield from list_journal(job)
    state = yield from _start_state(job, listing)
    while True:
        while (entry := (yield from read_entry(job, state.number + 1))) is not None:
            state = state.after(entry)
        listing = yield from list_journal(job)
        if listing.newest_snapshot > state.number:
            state = yield from _start_state(job, listing)
        elif listing.last <= state.number:
            return state
        elif (yield from read_entry(job, state.number + 1)) is None:  # else it was just created
            next_present = next(number for number in listing.entries if number > state.number)
            message = (
                f"Journal entry {entry_path(job, state.number + 1)} is missing, but entry "
                f"{next_present} is there. {REMEDY}"
            )
            raise CorruptCheckpointError(message)


def read_entry(job: JobName, number: int) -> Procedure[AnyEntry | None]:
    """Return one entry; None if it does not exist."""
    path = entry_path(job, number)
    data = yield from read_object(path)
    return None if data is None else decode_entry(data, path)


def _start_state(job: JobName, listing: JournalListing) -> Procedure[JournalState]:
    """Return the state from which to read on: that of the newest readable journal snapshot, or the
    empty state before entry 1.
    """
    while True:
        missing = ""
        for number in reversed(listing.snapshots):
            state = yield from read_snapshot(job, number)
            if state is None:
                continue  # torn: the one before it leads to the same state, with more reading
            entry = yield from read_entry(job, number)
            if entry is not None and entry.nonce == state.nonce:
                return state
            missing = (
                f"Journal entry {entry_path(job, number)} is missing or is not the one that "
                f"{snapshot_path(job, number)} was written after. {REMEDY}"
            )
            break
        else:
            if not listing.entries or listing.entries[0] == 1:
                return JournalState()
            missing = (
                f"The journal of job {job!r} begins with entry {listing.entries[0]}, and no "
                f"snapshot in {journal_folder(job)} can be read. {REMEDY}"
            )
        newer = yield from list_journal(job)
        if newer.newest_snapshot <= listing.newest_snapshot:
            raise CorruptCheckpointError(missing)
        listing = newer  # the journal was truncated between the listing and the reading


def read_snapshot(job: JobName, number: JournalNumber) -> Procedure[JournalState | None]:
    """Return the state in a journal snapshot; None if it does not exist or is torn."""
    path = snapshot_path(job, number)
    data = yield from read_object(path)
    if data is None:
        return None
    try:
        state = decode_snapshot(data, path)
    except CorruptCheckpointError:
        return None
    return state if state.number == number else None
