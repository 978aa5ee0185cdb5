"""The truncation of a job's journal: the oldest entries are deleted once newer snapshots exist.

Entries are deleted oldest first. The end of the journal stays, and so do the entries that the
newest two publications or the newest two journal snapshots need. A reader starts at a snapshot, and
if the newest one is torn, at the one before it. So a snapshot with a higher number exists before an
entry is deleted, and one stays. A process that creates an entry at a number that was used and
truncated finds that snapshot, and knows that its create does not count
(`write_entry` of `journal/claimed.py`).

A crash in the middle leaves fewer entries than before, but no gap above a snapshot, and the next
truncation continues. A fenced attempt may truncate: entries that it knows to be unneeded stay
unneeded. The truncation does not write to the journal and may run in parallel with any other
procedure. A failure does no harm.
"""

from __future__ import annotations

from tidegate.commit.effects import Procedure, delete_object
from tidegate.commit.journal.claimed import ClaimedJournal
from tidegate.commit.journal.entries import entry_path, snapshot_path
from tidegate.commit.journal.reading import list_journal, read_snapshot
from tidegate.commit.retention import log_start


def truncate(journal: ClaimedJournal) -> Procedure[int]:
    """Delete the files that are not needed, and return the number of deleted entries. StorageError:
    call again.

    This does nothing unless this attempt has written a journal snapshot since the last truncation.
    It also does nothing while the last publication lists a transaction that is not settled, because
    that publication may be rolled back.
    """
    state = journal.state
    if not journal.truncation_due or state.pending_commits:
        return 0
    listing = yield from list_journal(journal.job)
    keep = log_start(state, listing.snapshots)
    for number in listing.snapshots[-2:] if keep > 1 else ():
        if (yield from read_snapshot(journal.job, number)) is None:
            return 0  # entries that only a snapshot can replace stay until there are two again
    entries = [number for number in listing.entries if number < keep]
    for number in entries:
        yield from delete_object(entry_path(journal.job, number))
    for number in listing.snapshots:
        if number < keep:
            yield from delete_object(snapshot_path(journal.job, number))
    journal.truncation_due = False
    return len(entries)
