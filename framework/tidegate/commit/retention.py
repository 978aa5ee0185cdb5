"""The files of the checkpoint storage that no checkpoint needs any more.

These are pure decisions over paths; `cleanup.py` lists and deletes. An attempt deletes files only
after a publication of its own that no longer needs them. So a fenced attempt deletes nothing that
its successor needs. Only these files are deleted:

- Of this attempt: files that an expired manifest referred to and no retained manifest refers to.
- Also of this attempt: files that no retained manifest refers to, in two successive listings.
  Aborted checkpoints leave such files. At the first listing the file may belong to a pending
  checkpoint. At the second listing, some publications later, such a file would be in a publication.
  A subtask refers only to files of its last acknowledged checkpoint and to files that it has
  uploaded since.
- Of older attempts: all files that no retained manifest refers to. Only zombies still write such
  files, and no process reads them.

Files of newer attempts are never deleted, nor files whose path this version does not understand.
`cleanup.py` also deletes initial offsets, which have no attempt in their path.
This module also decides how far the journal is truncated (`truncation.py`).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Final

from tidegate.checkpoint.manifest import Manifest, manifest_path
from tidegate.commit.journal.state import JournalState, PublicationRef
from tidegate.errors import check
from tidegate.ids import Attempt

RETAINED_MIN: Final = 2
"""The fewest publications to keep: the last one, and the one that a rollback would return to."""

SNAPSHOTS_MIN: Final = 2
"""The fewest journal snapshots to keep: if the newest cannot be read, the one before it
is needed.
"""

_OWN_FILE: Final = re.compile(
    r"[^/]+/(?:files/(?P<files>\d+)/.+|manifests/(?P<manifest>\d+)-\d+\.json)"
)


def retained_publications(state: JournalState, retained: int) -> tuple[PublicationRef, ...]:
    """Return the publications to keep, oldest first. `retained` is `checkpoint.num_retained`."""
    check(retained >= RETAINED_MIN, f"{retained} publications are too few to retain")
    return state.recent_checkpoints[-retained:]


def referenced_paths(
    job: str, manifests: Iterable[Manifest], paths: Iterable[str]
) -> frozenset[str]:
    """Return the storage paths that retained manifests need. `paths` are the manifests'
    own paths.
    """
    files = {f"{job}/{file}" for manifest in manifests for file in manifest.files}
    return frozenset(files | set(paths))


def expired_files(job: str, dropped: Manifest, needed: frozenset[str]) -> frozenset[str]:
    """Return the files to delete with a checkpoint that has expired: its manifest, and those of its
    files that no retained checkpoint needs.
    """
    own = {f"{job}/{file}" for file in dropped.files} | {
        manifest_path(dropped.job, dropped.checkpoint)
    }
    return frozenset(own - needed)


def orphans_of_older_attempts(
    listed: Iterable[str], *, attempt: Attempt, needed: frozenset[str]
) -> frozenset[str]:
    """Return the files of older attempts that can be deleted, among all paths listed below the
    job's folder.
    """
    return frozenset(path for path in set(listed) - needed if 0 <= _attempt_of(path) < attempt)


def manifests_first(paths: Iterable[str]) -> tuple[str, ...]:
    """Return the paths in the order in which to delete them: manifests before files.

    A restore by hand checks only that the manifest exists. If it does, the restore claims the
    journal and relies on all files of the checkpoint. Two manifests may share a file, so all
    manifests go first.
    """

    def order(path: str) -> tuple[bool, str]:
        match = _OWN_FILE.fullmatch(path)
        return (match is None or match["manifest"] is None, path)

    return tuple(sorted(paths, key=order))


def orphans(listed: Iterable[str], *, attempt: Attempt, needed: frozenset[str]) -> frozenset[str]:
    """Return the files of this attempt that no retained manifest needs, among all listed paths. A
    pending checkpoint may still need them.
    """
    return frozenset(path for path in set(listed) - needed if _attempt_of(path) == attempt)


def log_start(state: JournalState, snapshots: Sequence[int]) -> int:
    """Return the number of the first journal entry to keep; 1 if all must stay. `hints` are the
    numbers of the journal snapshots, ascending.

    The newest two publications are kept, and so is the entry of the journal snapshot before the
    newest.
    """
    if (
        len(state.recent_checkpoints) < RETAINED_MIN
        or len(snapshots) < SNAPSHOTS_MIN
        or snapshots[-1] > state.number
    ):
        return 1
    return min(snapshots[-SNAPSHOTS_MIN], state.recent_checkpoints[-RETAINED_MIN].number)


def _attempt_of(path: str) -> int:
    """Return the attempt that wrote a state file or a manifest; -1 for any other path."""
    match = _OWN_FILE.fullmatch(path)
    return -1 if match is None else int(match["files"] or match["manifest"])
