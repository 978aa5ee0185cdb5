"""Reading a job's journal: from the newest hint up to the last entry, with no hole.

The folder is listed before and after the walk. A number that is missing below one that is listed is
an error, never skipped, unless a newer hint shows that the journal was trimmed meanwhile: then the
walk begins again at that hint. Entries below the newest hint count for nothing: among them may be
one that a zombie created late, at a number that was taken once and has been trimmed since.

Changes nothing. For one's own entries see `claimed_journal.py`, for the trimming `truncation.py`.
"""

from __future__ import annotations

from dataclasses import dataclass

from tidegate.checkpoint.effects import Procedure, list_objects, read_object
from tidegate.checkpoint.journal import (
    REMEDY,
    AnyEntry,
    decode_entry,
    entry_number,
    entry_path,
    hint_number,
    hint_path,
    journal_folder,
)
from tidegate.checkpoint.journal_state import JournalState, decode_hint
from tidegate.errors import CorruptCheckpointError
from tidegate.ids import JobName, JournalNumber


@dataclass(frozen=True, slots=True, kw_only=True)
class JournalListing:
    """What lies in a journal's folder."""

    entries: tuple[JournalNumber, ...]
    """Ascending; perhaps with strays below the newest hint."""
    hints: tuple[JournalNumber, ...]
    """Ascending."""

    @property
    def last(self) -> int:
        """The highest number of an entry; 0 where there is none."""
        return self.entries[-1] if self.entries else 0

    @property
    def newest_hint(self) -> int:
        """The highest number of a hint; 0 where there is none."""
        return self.hints[-1] if self.hints else 0


def list_journal(job: JobName) -> Procedure[JournalListing]:
    """List the folder once."""
    paths = yield from list_objects(journal_folder(job))
    entries = (entry_number(path) for path in paths)
    hints = (hint_number(path) for path in paths)
    return JournalListing(
        entries=tuple(sorted(number for number in entries if number is not None)),
        hints=tuple(sorted(number for number in hints if number is not None)),
    )


def newest_hint(job: JobName) -> Procedure[int]:
    """`JournalListing.newest_hint`; asked with every entry, so nothing else is read out of the
    names.
    """
    paths = yield from list_objects(journal_folder(job))
    return max((number for path in paths if (number := hint_number(path)) is not None), default=0)


def read_journal(job: JobName) -> Procedure[JournalState]:
    """What all entries add up to. CorruptCheckpointError if the journal is not whole.

    Claims nothing and changes nothing.
    """
    listing = yield from list_journal(job)
    state = yield from _start_state(job, listing)
    while True:
        while (entry := (yield from read_entry(job, state.number + 1))) is not None:
            state = state.after(entry)
        listing = yield from list_journal(job)
        if listing.newest_hint > state.number:
            state = yield from _start_state(job, listing)
        elif listing.last <= state.number:
            return state
        elif (yield from read_entry(job, state.number + 1)) is None:  # else it has just come
            beyond = next(number for number in listing.entries if number > state.number)
            message = (
                f"journal entry {entry_path(job, state.number + 1)} is missing, but entry "
                f"{beyond} is there. {REMEDY}"
            )
            raise CorruptCheckpointError(message)


def read_entry(job: JobName, number: int) -> Procedure[AnyEntry | None]:
    """One entry, None where there is none."""
    path = entry_path(job, number)
    data = yield from read_object(path)
    return None if data is None else decode_entry(data, path)


def _start_state(job: JobName, listing: JournalListing) -> Procedure[JournalState]:
    """Where the walk begins: the newest hint that can be read, or nothing before entry 1."""
    while True:
        missing = ""
        for number in reversed(listing.hints):
            state = yield from read_hint(job, number)
            if state is None:
                continue  # torn: the one before it costs more reading, and says the same
            entry = yield from read_entry(job, number)
            if entry is not None and entry.nonce == state.nonce:
                return state
            missing = (
                f"journal entry {entry_path(job, number)} is missing or is not the one that "
                f"{hint_path(job, number)} was written after. {REMEDY}"
            )
            break
        else:
            if not listing.entries or listing.entries[0] == 1:
                return JournalState()
            missing = (
                f"the journal of job {job!r} begins with entry {listing.entries[0]}, and no hint "
                f"in {journal_folder(job)} can be read. {REMEDY}"
            )
        newer = yield from list_journal(job)
        if newer.newest_hint <= listing.newest_hint:
            raise CorruptCheckpointError(missing)
        listing = newer  # trimmed between the listing and the reading


def read_hint(job: JobName, number: JournalNumber) -> Procedure[JournalState | None]:
    """The state at an entry; None if there is no hint of it, or it is torn."""
    path = hint_path(job, number)
    data = yield from read_object(path)
    if data is None:
        return None
    try:
        state = decode_hint(data, path)
    except CorruptCheckpointError:
        return None
    return state if state.number == number else None
