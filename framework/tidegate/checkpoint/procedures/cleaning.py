"""Deleting what no retained checkpoint needs, after a publication of one's own.

The first call of an attempt also lists the job's folder and removes what older attempts have left;
later calls only drop what the publications that fall out of retention referred to, without listing.
Writes nothing into the journal and may run beside anything; a failure is no harm and is tried again
with the next publication.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from tidegate.checkpoint.effects import Procedure, delete_object, list_objects
from tidegate.checkpoint.journal_state import PublicationRef
from tidegate.checkpoint.manifest import Manifest, manifest_folder
from tidegate.checkpoint.procedures.own_journal import OwnJournal
from tidegate.checkpoint.procedures.publish import load_manifest
from tidegate.checkpoint.retention import (
    dropped_files,
    leftovers,
    needed_paths,
    retained_publications,
)
from tidegate.errors import CorruptCheckpointError
from tidegate.ids import JournalNumber


@dataclass(slots=True, kw_only=True)
class Cleaning:
    """What an attempt remembers between two calls of `delete_unneeded`."""

    manifests: dict[JournalNumber, Manifest] = field(default_factory=dict)
    """By the number of their publication: the retained ones, as of the last call."""
    swept: bool = False
    """What older attempts left has been removed."""


def delete_unneeded(
    journal: OwnJournal, cleaning: Cleaning, *, retained: int
) -> Procedure[tuple[str, ...]]:
    """Delete, and return the paths. StorageError: call again after the next publication.

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
    unneeded: list[str] = []
    for number in sorted(cleaning.manifests.keys() - refs.keys()):
        found = dropped_files(journal.job, cleaning.manifests[number], needed)
        yield from _delete(found)
        del cleaning.manifests[number]
        unneeded += found
    if not cleaning.swept:
        found = yield from _left_by_older(journal, needed)
        yield from _delete(found)
        cleaning.swept = True
        unneeded += found
    return tuple(unneeded)


def _remember(cleaning: Cleaning, ref: PublicationRef) -> Procedure[None]:
    try:
        cleaning.manifests[ref.number] = yield from load_manifest(ref)
    except CorruptCheckpointError:
        # What it needs can not be known, so nothing of older attempts is removed; the checkpoint
        # itself is reported by the restore that asks for it.
        cleaning.swept = True


def _left_by_older(journal: OwnJournal, needed: frozenset[str]) -> Procedure[tuple[str, ...]]:
    listed: list[str] = []
    for folder in (f"{journal.job}/files", manifest_folder(journal.job)):
        listed += yield from list_objects(folder)
    return leftovers(listed, attempt=journal.attempt, needed=needed)


def _delete(paths: Iterable[str]) -> Procedure[None]:
    for path in paths:
        yield from delete_object(path)
