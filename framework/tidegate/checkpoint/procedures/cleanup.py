"""Deleting what no retained checkpoint needs, after a publication of one's own.

Each call drops what the publications that fall out of retention referred to. The first one of an
attempt, and one of twenty after it, also lists the job's folder: to remove what older attempts have
left, and what aborted checkpoints of this one have.
Writes nothing into the journal and may run beside anything; a failure is no harm and is tried again
with the next publication.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from tidegate.checkpoint.effects import Procedure, delete_object, list_objects
from tidegate.checkpoint.journal_state import PublicationRef
from tidegate.checkpoint.manifest import Manifest, manifest_folder
from tidegate.checkpoint.procedures.claimed_journal import ClaimedJournal
from tidegate.checkpoint.procedures.publish import load_manifest
from tidegate.checkpoint.retention import (
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
    """What an attempt remembers between two calls of `clean_up`."""

    manifests: dict[JournalNumber, Manifest] = field(default_factory=dict)
    """By the number of their publication: the retained ones, as of the last call."""
    calls: int = 0
    """That came as far as a listing would be."""
    orphan_candidates: frozenset[str] = frozenset()
    """What the last listing found of this attempt that no retained manifest refers to."""
    manifest_unreadable: bool = False
    """A retained manifest can not be read, so nobody knows what it needs: no more listings."""


LIST_EVERY: Final = 20
"""Calls per listing: a listing costs as much as a dozen other requests, and strays are few."""


def clean_up(
    journal: ClaimedJournal, cleaning: CheckpointCleanup, *, retained: int
) -> Procedure[tuple[str, ...]]:
    """Delete, and return the paths in that order. StorageError: call again after the next
    publication.

    Does nothing before this attempt's first publication, and while the last one names what is not
    settled: it may be taken back.
    """
    state = journal.state
    last = state.publication
    if last is None or last.attempt != journal.attempt:
        return ()
    refs = {ref.number: ref for ref in retained_publications(state, retained)}
    for number, ref in refs.items():
        if number not in cleaning.manifests:
            yield from _remember(cleaning, ref)
    if state.named:
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
    suspects = cleaning.orphan_candidates
    if not cleaning.manifest_unreadable and cleaning.calls % LIST_EVERY == 0:
        own, left = yield from _list_strays(journal, needed)
        unneeded |= left | (own & suspects)
        suspects = own - unneeded
    in_order = manifests_first(unneeded)
    for path in in_order:
        yield from delete_object(path)
    for number in dropped:
        del cleaning.manifests[number]
    cleaning.orphan_candidates = suspects
    cleaning.calls += 1
    return in_order


def _remember(cleaning: CheckpointCleanup, ref: PublicationRef) -> Procedure[None]:
    try:
        cleaning.manifests[ref.number] = yield from load_manifest(ref)
    except CorruptCheckpointError:
        # The checkpoint itself is reported by the restore that asks for it.
        cleaning.manifest_unreadable = True


def _list_strays(
    journal: ClaimedJournal, needed: frozenset[str]
) -> Procedure[tuple[frozenset[str], frozenset[str]]]:
    """What no retained manifest refers to: of this attempt, and what older ones left."""
    listed: list[str] = []
    for folder in (f"{journal.job}/files", manifest_folder(journal.job)):
        listed += yield from list_objects(folder)
    own = orphans(listed, attempt=journal.attempt, needed=needed)
    return own, orphans_of_older_attempts(listed, attempt=journal.attempt, needed=needed)
