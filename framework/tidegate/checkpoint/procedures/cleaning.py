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
from tidegate.checkpoint.procedures.own_journal import OwnJournal
from tidegate.checkpoint.procedures.publish import load_manifest
from tidegate.checkpoint.retention import (
    dropped_files,
    leftovers,
    manifests_first,
    needed_paths,
    retained_publications,
    strays,
)
from tidegate.errors import CorruptCheckpointError
from tidegate.ids import JournalNumber


@dataclass(slots=True, kw_only=True)
class Cleaning:
    """What an attempt remembers between two calls of `delete_unneeded`."""

    manifests: dict[JournalNumber, Manifest] = field(default_factory=dict)
    """By the number of their publication: the retained ones, as of the last call."""
    calls: int = 0
    """That came as far as a listing would be."""
    suspects: frozenset[str] = frozenset()
    """What the last listing found of this attempt that no retained manifest refers to."""
    blind: bool = False
    """A retained manifest can not be read, so nobody knows what it needs: no more listings."""


LIST_EVERY: Final = 20
"""Calls per listing: a listing costs as much as a dozen other requests, and strays are few."""


def delete_unneeded(
    journal: OwnJournal, cleaning: Cleaning, *, retained: int
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
    needed = needed_paths(
        journal.job,
        [cleaning.manifests[number] for number in refs if number in cleaning.manifests],
        [ref.manifest for ref in refs.values()],
    )
    dropped = cleaning.manifests.keys() - refs.keys()
    unneeded: set[str] = set()
    for number in dropped:
        unneeded |= dropped_files(journal.job, cleaning.manifests[number], needed)
    suspects = cleaning.suspects
    if not cleaning.blind and cleaning.calls % LIST_EVERY == 0:
        own, left = yield from _list_strays(journal, needed)
        unneeded |= left | (own & suspects)
        suspects = own - unneeded
    in_order = manifests_first(unneeded)
    for path in in_order:
        yield from delete_object(path)
    for number in dropped:
        del cleaning.manifests[number]
    cleaning.suspects = suspects
    cleaning.calls += 1
    return in_order


def _remember(cleaning: Cleaning, ref: PublicationRef) -> Procedure[None]:
    try:
        cleaning.manifests[ref.number] = yield from load_manifest(ref)
    except CorruptCheckpointError:
        # The checkpoint itself is reported by the restore that asks for it.
        cleaning.blind = True


def _list_strays(
    journal: OwnJournal, needed: frozenset[str]
) -> Procedure[tuple[frozenset[str], frozenset[str]]]:
    """What no retained manifest refers to: of this attempt, and what older ones left."""
    listed: list[str] = []
    for folder in (f"{journal.job}/files", manifest_folder(journal.job)):
        listed += yield from list_objects(folder)
    own = strays(listed, attempt=journal.attempt, needed=needed)
    return own, leftovers(listed, attempt=journal.attempt, needed=needed)
