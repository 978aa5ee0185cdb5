"""Trimming a job's journal: the oldest entries go, once newer hints and publications stand.

Oldest first, never the tail, never what the newest two publications or the newest two hints need:
a reader begins at a hint, and if the newest is torn, at the one before it. So before an entry goes,
a hint above it is there, and one above it stays: whoever creates an entry at a number that was
taken and has been trimmed since, finds that hint and knows that its create counts for nothing
(`claimed_journal.write_entry`).

A crash in the middle leaves fewer entries than before, still without a hole above a hint; the next
trimming goes on. A deposed attempt may trim: all that it knows to be unneeded is so for ever.
Writes nothing into the journal and may run beside anything; a failure is no harm.
"""

from __future__ import annotations

from tidegate.checkpoint.effects import Procedure, delete_object
from tidegate.checkpoint.journal import entry_path, hint_path
from tidegate.checkpoint.procedures.claimed_journal import ClaimedJournal
from tidegate.checkpoint.procedures.reading import list_journal, read_hint
from tidegate.checkpoint.retention import log_start


def truncate(journal: ClaimedJournal) -> Procedure[int]:
    """Delete what is not needed, and return how many entries that were. StorageError: call again.

    Does nothing unless this attempt has written a hint since the last time, and while the last
    publication names what is not settled: it may be taken back.
    """
    state = journal.state
    if not journal.trim_due or state.named:
        return 0
    listing = yield from list_journal(journal.job)
    keep = log_start(state, listing.hints)
    for number in listing.hints[-2:] if keep > 1 else ():
        if (yield from read_hint(journal.job, number)) is None:
            return 0  # what only a hint can replace stays until there are two again
    entries = [number for number in listing.entries if number < keep]
    for number in entries:
        yield from delete_object(entry_path(journal.job, number))
    for number in listing.hints:
        if number < keep:
            yield from delete_object(hint_path(journal.job, number))
    journal.trim_due = False
    return len(entries)
