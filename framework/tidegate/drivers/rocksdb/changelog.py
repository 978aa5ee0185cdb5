"""`Changelog`: a full checkpoint of a store, and files with the writes that came after it.

In a full checkpoint, RocksDB sorts, compresses and indexes every changed key, and the same keys
change again before the next full checkpoint. So most checkpoints only add a *segment* to the files
of the last full checkpoint. A segment contains the writes since the previous checkpoint. FLIP-158,
"generalized incremental checkpoints", has the same idea. In addition, RocksDB itself receives these
writes only at the next full checkpoint. A store that opens such a checkpoint applies the segments
to the tables, in the order of their numbers.

A segment is one MessagePack array: format, then the writes in their order. Each write is an array
of the deleted keys and of the pairs that were put. Segments are part of checkpoints, so new
versions may extend the format but must still read the old one.

The folder contains the segments, and hard links to the tables, so that RocksDB may delete its own
links. Its files never change, so a checkpoint is the list of the present files. A changelog ends
when an opening would have to apply too much. The store then begins the next changelog. The folder
is deleted when the upload asks for the files of a checkpoint of the next changelog. RocksDB numbers
the table files, but gives its other files the same names in each full checkpoint. So the
changelog's number is added to the names of all its files except the tables, and no name has two
contents.

Which content is already in RocksDB is the responsibility of `store.py`. The store's thread calls
`add`, `roll_segment` and `can_append`. The thread that freezes a checkpoint calls `materialize`,
`files` and the function that `roll_segment` returns; checkpoints are frozen one after the other, in
their order. The thread that reads the files calls `delete_previous`.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Final

import msgspec

from tidegate.errors import CorruptCheckpointError
from tidegate.private_files import FOLDER_MODE, write_private

LOG_BYTES_MAX: Final = 16 << 20
"""The maximum size of the keys and values of all segments together, in bytes. To apply this much
takes about a fifth of a second when a store is opened.
"""

SEGMENTS_MAX: Final = 32
"""The maximum number of segments. Each is a file that every manifest lists."""

FORMAT: Final = 1
TABLE: Final = ".sst"
_SEGMENT: Final = "segment-"

Pairs = list[tuple[bytes, bytes]]
Write = tuple[list[bytes], Pairs]
"""The deleted keys, and the pairs that were put. The deletes are applied first."""


class _Segment(msgspec.Struct, array_like=True, frozen=True):
    format: int
    writes: list[Write]


class Changelog:
    """One full checkpoint and the segments after it. The files are in `folder`, which `materialize`
    makes.
    """

    def __init__(self, folder: Path, number: int) -> None:
        self._folder, self._number = folder, number
        self._writes: list[Write] = []
        """The writes since the last checkpoint."""
        self._bytes = self._segments = 0
        self._files: list[Path] = []
        """The files of the last checkpoint."""
        self._is_complete = False
        """Whether the files have all writes up to the last checkpoint. False before the full
        checkpoint is made, and after a segment could not be written.
        """
        self._previous_deleted = False
        """Whether the folders of earlier changelogs are gone."""

    def add(self, write: Write, size: int) -> None:
        """Keep a write for the next segment; `size` is in bytes. Keep no writes once their size,
        added to that of the segments, is above the limit.
        """
        self._bytes += size
        if self._bytes <= LOG_BYTES_MAX:
            self._writes.append(write)
        else:
            self._writes.clear()

    def can_append(self) -> bool:
        """Return whether the next checkpoint may be a segment. Otherwise it must be a full one. All
        earlier checkpoints must be frozen.
        """
        return self._is_complete and self._bytes <= LOG_BYTES_MAX and self._segments < SEGMENTS_MAX

    def roll_segment(self) -> Callable[[], None]:
        """End the current segment and return a function that writes it into the folder. The
        function raises OSError if that fails, and then the next checkpoint must be a full one.
        Without writes since the last checkpoint there is no segment, and the function does nothing.
        """
        if not self._writes:
            return _append_nothing
        self._segments += 1
        writes, self._writes = self._writes, []
        name = f"{_SEGMENT}{self._segments:04}.{self._number}"
        return partial(self._append, self._folder / name, writes)

    def materialize(self, make: Callable[[Path], None]) -> None:
        """Let `make` create the folder with the files of the full checkpoint. Add the changelog's
        number to the names of all files except the tables.
        """
        self._folder.parent.mkdir(mode=FOLDER_MODE, exist_ok=True)
        make(self._folder)
        for path in list(self._folder.iterdir()):
            if path.suffix != TABLE:
                path.rename(path.with_name(f"{path.name}.{self._number}"))
        self._files = sorted(self._folder.iterdir())
        self._is_complete = True

    def files(self) -> list[Path]:
        """Return the files of the last checkpoint. They stay until the next changelog deletes
        them.
        """
        return list(self._files)

    def delete_previous(self) -> None:
        """Delete the folders of earlier changelogs. No thread reads their checkpoints any more."""
        if self._previous_deleted:
            return
        for folder in self._folder.parent.iterdir():
            if int(folder.stem) < self._number:  # a later folder has a suffix while it is made
                shutil.rmtree(folder)
        self._previous_deleted = True

    def _append(self, path: Path, writes: list[Write]) -> None:
        self._is_complete = False
        write_private(path, msgspec.msgpack.encode(_Segment(FORMAT, writes)))
        self._files.append(path)
        self._is_complete = True


def _append_nothing() -> None:
    """Add no segment: the checkpoint of an idle store has the files of the previous checkpoint."""


def restore_file_names(directory: Path) -> int:
    """Rename the files of a checkpoint in `directory` to the names that RocksDB expects. Return the
    number of their changelog, or 0 if there are no such files.
    """
    number = 0
    for path in sorted(directory.iterdir()):
        if path.suffix[1:].isdecimal():
            number = int(path.suffix[1:])
            path.rename(path.with_suffix(""))
    return number


def take_segments(directory: Path) -> Iterator[Write]:
    """Yield the writes of all segments in `directory`, in their order, after `restore_file_names`
    has renamed the files. Delete each segment after its last write. CorruptCheckpointError if a
    file is not a segment or has an unknown format.
    """
    for path in sorted(directory.glob(f"{_SEGMENT}*")):
        try:
            segment = msgspec.msgpack.decode(path.read_bytes(), type=_Segment)
        except msgspec.DecodeError as error:
            raise CorruptCheckpointError(f"{path} holds no changes of state: {error}") from error
        if segment.format != FORMAT:
            raise CorruptCheckpointError(
                f"{path} holds changes of state in format {segment.format}; this version of "
                f"tidegate reads format {FORMAT}."
            )
        yield from segment.writes
        path.unlink()
