"""`Changelog`: a full checkpoint of a store and, in files of their own, what was written after it.

A full checkpoint has RocksDB sort, compress and index every key that changed, and the same keys
change again before the next one. So most checkpoints only add a *segment*, the writes since the
checkpoint before, to the files of the last full one (the idea of FLIP-158, "generalized incremental
checkpoints"; here the store itself is not written either until the next full one). Who opens such a
checkpoint applies the segments to the tables, in the order of their numbers.

A segment is one MessagePack array: format, then the writes in their order, each an array of the
deleted keys and of the pairs that were put. It stands in checkpoints, so the format only ever
grows.

The folder holds hard links of the tables, so that RocksDB may drop its own, and the segments. No
file of it ever changes, so a checkpoint is the list of those that are there. A changelog ends when
what an opening would have to apply becomes long; the store begins another one then, and the folder
goes when a checkpoint of that one is asked for. The changelog's number stands behind the name of
each of its files but the tables: RocksDB numbers those, and calls the others the same in each full
checkpoint. So no name stands for two contents.

Not here: which content is in RocksDB and which is not yet (`store.py`). `add`, `roll_segment` and
`can_append` are called by the store's thread; `materialize`, `files` and what `roll_segment`
returns by whoever freezes a checkpoint, one after the other in the order of the checkpoints;
`delete_previous` by who reads them.
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
"""Keys and values of all segments together: a fifth of a second of an opening."""

SEGMENTS_MAX: Final = 32
"""Each is a file that every manifest names."""

FORMAT: Final = 1
TABLE: Final = ".sst"
_SEGMENT: Final = "segment-"

Pairs = list[tuple[bytes, bytes]]
Write = tuple[list[bytes], Pairs]
"""Deleted keys and pairs that were put; the deletes come first."""


class _Segment(msgspec.Struct, array_like=True, frozen=True):
    format: int
    writes: list[Write]


class Changelog:
    """From one full checkpoint on; its files lie in `folder`, which `materialize` makes."""

    def __init__(self, folder: Path, number: int) -> None:
        self._folder, self._number = folder, number
        self._writes: list[Write] = []
        """Those since the last checkpoint."""
        self._bytes = self._segments = 0
        self._files: list[Path] = []
        """Those of the last checkpoint."""
        self._whole = False
        """Whether they hold everything up to it."""
        self._alone = False
        """Whether the folders of earlier changelogs are gone."""

    def add(self, write: Write, size: int) -> None:
        """Keep a write for the next segment; `size` in bytes. Beyond the limit nothing is kept."""
        self._bytes += size
        if self._bytes <= LOG_BYTES_MAX:
            self._writes.append(write)
        else:
            self._writes.clear()

    def can_append(self) -> bool:
        """Whether the next checkpoint may be a segment; else a full one is due. The checkpoints
        before must be frozen.
        """
        return self._whole and self._bytes <= LOG_BYTES_MAX and self._segments < SEGMENTS_MAX

    def roll_segment(self) -> Callable[[], None]:
        """End the next segment here; what is returned writes it into the folder. Where that fails,
        as files do, a full checkpoint is due. Where nothing was written there is none.
        """
        if not self._writes:
            return _nothing
        self._segments += 1
        writes, self._writes = self._writes, []
        name = f"{_SEGMENT}{self._segments:04}.{self._number}"
        return partial(self._append, self._folder / name, writes)

    def materialize(self, make: Callable[[Path], None]) -> None:
        """Have the folder made with the files of the full checkpoint."""
        self._folder.parent.mkdir(mode=FOLDER_MODE, exist_ok=True)
        make(self._folder)
        for path in list(self._folder.iterdir()):
            if path.suffix != TABLE:
                path.rename(path.with_name(f"{path.name}.{self._number}"))
        self._files = sorted(self._folder.iterdir())
        self._whole = True

    def files(self) -> list[Path]:
        """Of the last checkpoint; they stay until the next changelog drops them."""
        return list(self._files)

    def delete_previous(self) -> None:
        """Remove the folders of the changelogs before: nobody reads their checkpoints any more."""
        if self._alone:
            return
        for folder in self._folder.parent.iterdir():
            if int(folder.stem) < self._number:  # a later one, being made, has a suffix
                shutil.rmtree(folder)
        self._alone = True

    def _append(self, path: Path, writes: list[Write]) -> None:
        self._whole = False
        write_private(path, msgspec.msgpack.encode(_Segment(FORMAT, writes)))
        self._files.append(path)
        self._whole = True


def _nothing() -> None:
    """An idle store's checkpoint has the files of the one before."""


def lay_out(directory: Path) -> int:
    """Give the files of a checkpoint in `directory` the names that RocksDB knows them by. Returns
    the number of their changelog, 0 where there are none.
    """
    number = 0
    for path in sorted(directory.iterdir()):
        if path.suffix[1:].isdecimal():
            number = int(path.suffix[1:])
            path.rename(path.with_suffix(""))
    return number


def take_segments(directory: Path) -> Iterator[Write]:
    """The writes of the segments among the files that are laid out, in their order; each segment is
    removed when its writes were taken. CorruptCheckpointError where one is none.
    """
    for path in sorted(directory.glob(f"{_SEGMENT}*")):
        try:
            segment = msgspec.msgpack.decode(path.read_bytes(), type=_Segment)
        except msgspec.DecodeError as error:
            raise CorruptCheckpointError(f"{path} holds no changes of state: {error}") from error
        if segment.format != FORMAT:
            raise CorruptCheckpointError(
                f"{path} holds changes of state in format {segment.format}; this version of "
                f"tidegate reads format {FORMAT}"
            )
        yield from segment.writes
        path.unlink()
