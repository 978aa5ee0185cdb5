"""The deletion of files that no retained checkpoint needs, after a publication of this attempt.

Each call deletes the files of publications that are no longer retained. The first call of an
attempt, and every twentieth after it, also lists the job's folder. It then deletes the files that
older attempts and aborted checkpoints of this attempt have left.

It also deletes the initial offsets of this submission and of older ones. This submission has a
publication that cannot be rolled back any more, so no attempt reads them again. The names do not
show which submission is newer. So the folder is listed first, and then the journal must hold no
newer claim: a submission claims before it writes its initial offsets.

`clean_up` does not write to the journal and may run in parallel with any other procedure that does
not. A failure does no harm, and the next publication retries.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from tidegate.checkpoint.manifest import Manifest, manifest_folder
from tidegate.commit.effects import Procedure, delete_object, list_objects
from tidegate.commit.initial_offsets import initial_offsets_folder
from tidegate.commit.journal.claimed import ClaimedJournal, check_ownership
from tidegate.commit.journal.state import PublicationRef
from tidegate.commit.publish import load_manifest
from tidegate.commit.retention import (
    expired_files,
    manifests_first,
    orphans,
    orphans_of_older_attempts,
    referenced_paths,
    retained_publications,
)
from tidegate.errors import CorruptCheckpointError
from tidegate.ids import JournalNumber


@dataclass(slots=True, kw_only=True)
class CheckpointCleanup:
    """The data that an attempt keeps between two calls of `clean_up`."""

    manifests: dict[JournalNumber, Manifest] = field(default_factory=dict)
    """The retained manifests at the last call, by the number of their publication."""
    calls: int = 0
    """The number of calls that reached the place of a listing and completed."""
    orphan_candidates: frozenset[str] = frozenset()
    """The files of this attempt to which no retained manifest referred at the last listing."""
    manifest_unreadable: bool = False
    """Whether a retained manifest cannot be read. The files that it needs are then unknown, so no
    listing follows.
    """


LIST_EVERY: Final = 20
"""The number of calls per listing: a listing costs as much as a dozen other requests, and orphans
are few.
"""


def clean_up(
    journal: ClaimedJournal, cleaning: CheckpointCleanup, *, retained: int
) -> Procedure[tuple[str, ...]]:
    """Delete files and return their paths in the order of deletion. StorageError: call again after
    the next publication. FencedError if a newer attempt has claimed.

    Nothing is deleted before this attempt's first publication. Nothing is deleted either while the
    last publication lists a transaction that is not settled, because it may still be rolled back.
    """
    state = journal.state
    last = state.publication
    if last is None or last.attempt != journal.attempt:
        return ()
    refs = {ref.number: ref for ref in retained_publications(state, retained)}
    for number, ref in refs.items():
        if number not in cleaning.manifests:
            yield from _remember(cleaning, ref)
    if state.pending_commits:
        return ()
    needed = referenced_paths(
        journal.job,
        [cleaning.manifests[number] for number in refs if number in cleaning.manifests],
        [ref.manifest for ref in refs.values()],
    )
    dropped = cleaning.manifests.keys() - refs.keys()
    unneeded: set[str] = set()
    for number in dropped:
        unneeded |= expired_files(journal.job, cleaning.manifests[number], needed)
    candidates = cleaning.orphan_candidates
    if not cleaning.manifest_unreadable and cleaning.calls % LIST_EVERY == 0:
        own, left = yield from _list_orphans(journal, needed)
        unneeded |= left | (own & candidates)
        unneeded |= yield from _list_initial_offsets(journal)
        candidates = own - unneeded
    in_order = manifests_first(unneeded)
    for path in in_order:
        yield from delete_object(path)
    for number in dropped:
        del cleaning.manifests[number]
    cleaning.orphan_candidates = candidates
    cleaning.calls += 1
    return in_order


def _remember(cleaning: CheckpointCleanup, ref: PublicationRef) -> Procedure[None]:
    try:
        cleaning.manifests[ref.number] = yield from load_manifest(ref)
    except CorruptCheckpointError:
        # A restore that reads this checkpoint reports the error.
        cleaning.manifest_unreadable = True


def _list_orphans(
    journal: ClaimedJournal, needed: frozenset[str]
) -> Procedure[tuple[frozenset[str], frozenset[str]]]:
    """Return the files to which no retained manifest refers: those of this attempt, and those of
    older attempts.
    """
    listed: list[str] = []
    for folder in (f"{journal.job}/files", manifest_folder(journal.job)):
        listed += yield from list_objects(folder)
    own = orphans(listed, attempt=journal.attempt, needed=needed)
    return own, orphans_of_older_attempts(listed, attempt=journal.attempt, needed=needed)


def _list_initial_offsets(journal: ClaimedJournal) -> Procedure[frozenset[str]]:
    """Return the files with the initial offsets of this submission and of older ones."""
    listed = yield from list_objects(initial_offsets_folder(journal.job))
    if listed:
        yield from check_ownership(journal)
    return frozenset(listed)
