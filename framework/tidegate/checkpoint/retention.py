"""Which files of the checkpoint storage nobody needs any more.

Pure decisions over paths; `procedures/cleanup.py` lists and deletes. Files are deleted only after
a publication of one's own that no longer needs them (so a deposed attempt deletes nothing that its
successor stands on), and only files that this can be said of for certain:

- of this attempt: what a manifest that is not retained any more referred to, and no retained one
  does;
- of this attempt too: what no retained manifest refers to, now and some publications ago. Aborted
  checkpoints leave it. A pending checkpoint may have uploaded it the first time; the second time
  it would be in a publication, for a subtask refers only to files of its last acknowledged
  checkpoint and to what it has uploaded since;
- of older attempts: everything that no retained manifest refers to. Nobody writes there any more
  but zombies, whose files nobody reads.

Files of newer attempts are never touched, nor anything whose path this version does not understand.
How far the journal itself is trimmed is decided here too (`procedures/truncation.py`).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Final

from tidegate.checkpoint.journal_state import JournalState, PublicationRef
from tidegate.checkpoint.manifest import Manifest, manifest_path
from tidegate.errors import check
from tidegate.ids import Attempt

RETAINED_MIN: Final = 2
"""Publications kept at least: the last one, and the one that a retraction would fall back to."""

HINTS_MIN: Final = 2
"""Hints kept at least: where the newest can not be read, the one before it is needed."""

_OWN_FILE: Final = re.compile(
    r"[^/]+/(?:files/(?P<files>\d+)/.+|manifests/(?P<manifest>\d+)-\d+\.json)"
)


def retained_publications(state: JournalState, retained: int) -> tuple[PublicationRef, ...]:
    """The publications to keep, oldest first. `retained` is checkpoint.num_retained."""
    check(retained >= RETAINED_MIN, f"{retained} publications are too few to retain")
    return state.recent[-retained:]


def referenced_paths(
    job: str, manifests: Iterable[Manifest], paths: Iterable[str]
) -> frozenset[str]:
    """Storage paths that retained manifests (`paths` are their own) need."""
    files = {f"{job}/{file}" for manifest in manifests for file in manifest.files}
    return frozenset(files | set(paths))


def expired_files(job: str, dropped: Manifest, needed: frozenset[str]) -> frozenset[str]:
    """What goes with a checkpoint that is retained no more: its manifest, and its files that no
    retained one needs.
    """
    own = {f"{job}/{file}" for file in dropped.files} | {
        manifest_path(dropped.job, dropped.checkpoint)
    }
    return frozenset(own - needed)


def orphans_of_older_attempts(
    listed: Iterable[str], *, attempt: Attempt, needed: frozenset[str]
) -> frozenset[str]:
    """What can be deleted of older attempts, among all paths listed below the job's folder."""
    return frozenset(path for path in set(listed) - needed if 0 <= _attempt_of(path) < attempt)


def manifests_first(paths: Iterable[str]) -> tuple[str, ...]:
    """The order in which to delete: a restore by hand asks for the manifest, and where that is
    there it claims the journal and relies on the files. Two manifests may share one.
    """

    def order(path: str) -> tuple[bool, str]:
        match = _OWN_FILE.fullmatch(path)
        return (match is None or match["manifest"] is None, path)

    return tuple(sorted(paths, key=order))


def orphans(listed: Iterable[str], *, attempt: Attempt, needed: frozenset[str]) -> frozenset[str]:
    """What nothing needs of this attempt, among all paths listed; a pending checkpoint may."""
    return frozenset(path for path in set(listed) - needed if _attempt_of(path) == attempt)


def log_start(state: JournalState, hints: Sequence[int]) -> int:
    """Entries below this number may go; 1 where all must stay. `hints` are the numbers of hints,
    ascending.

    Neither the newest two publications go, nor the entry of the hint before the newest.
    """
    if len(state.recent) < RETAINED_MIN or len(hints) < HINTS_MIN or hints[-1] > state.number:
        return 1
    return min(hints[-HINTS_MIN], state.recent[-RETAINED_MIN].number)


def _attempt_of(path: str) -> int:
    """The attempt that wrote a file of state or a manifest; -1 for anything else."""
    match = _OWN_FILE.fullmatch(path)
    return -1 if match is None else int(match["files"] or match["manifest"])
