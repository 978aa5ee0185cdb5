"""`MemoryStore`: the key-value store of one keyed step in memory, with the semantics of the RocksDB
store.

It is meant for small state and for tests. A checkpoint is one file with the whole content, so
checkpoints share no files. Opening a folder that holds such a file loads the file. The files are
numbered, so that no file name has two contents. They are in a folder of their own, which keeps only
the newest one. One thread calls the store. The thread that asks a checkpoint for its files encodes
and writes the file.

The file is one MessagePack array: format, keys in ascending order, values in the same order. It is
part of checkpoints, so new versions may extend the format but must still read the old one.
"""

from __future__ import annotations

import re
import threading
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Final

import msgspec

from tidegate.errors import CorruptCheckpointError, StorageError
from tidegate.private_files import FOLDER_MODE, make_private_folder, write_private

_NAME: Final = re.compile(r"memory(?:-([0-9]+))?\.kv")
"""The name of a checkpoint file. Files of old checkpoints have no number."""
FORMAT: Final = 1
_CHECKPOINTS: Final = "checkpoints"
"""The folder of the checkpoint files, inside the store's folder."""


class _Content(msgspec.Struct, array_like=True, frozen=True):
    """The content of a checkpoint file: keys in ascending order, and their values."""

    format: int
    keys: list[bytes]
    values: list[bytes]


class MemoryStore:
    """A store that loads the checkpoint file in `directory`. Without such a file it is empty.

    Without `make_folder`, the folder is made only with the first checkpoint. Most pipeline tests
    take none.
    """

    def __init__(self, directory: Path, *, make_folder: bool = True) -> None:
        self._directory, self._makes_folder = directory, not make_folder
        self._values: dict[bytes, bytes] = {}
        self._sorted: list[bytes] | None = []
        """The keys in order; None after a write that added or removed one."""
        self._checkpoints = 0
        """The number of the newest checkpoint file, which this store wrote or was opened with."""
        try:
            if make_folder:
                make_private_folder(directory)
            for path in directory.iterdir() if directory.exists() else ():
                if named := _NAME.fullmatch(path.name):
                    self._checkpoints = int(named[1] or 0)
                    self._load(path, path.read_bytes())
        except OSError as error:
            raise StorageError(f"The state store in {directory} could not open: {error}") from error

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        get = self._values.get
        return [get(key) for key in keys]

    def write(self, puts: Iterable[tuple[bytes, bytes]], deletes: Iterable[bytes]) -> None:
        size = len(self._values)
        removed = False
        for key in deletes:
            removed = self._values.pop(key, None) is not None or removed
        self._values.update(puts)
        if removed or len(self._values) != size:
            self._sorted = None

    def scan(self, first: bytes, end: bytes) -> Iterator[tuple[bytes, bytes]]:
        keys = self._in_order()
        pairs = [
            (key, self._values[key])
            for key in keys[bisect_left(keys, first) : bisect_left(keys, end)]
        ]
        return iter(pairs)

    def checkpoint(self) -> MemoryCheckpoint:
        if self._makes_folder:
            make_private_folder(self._directory)
        keys = list(self._in_order())
        content = _Content(FORMAT, keys, [self._values[key] for key in keys])
        self._checkpoints += 1
        path = self._directory / _CHECKPOINTS / f"memory-{self._checkpoints}.kv"
        return MemoryCheckpoint(content, self._directory, path)

    def close(self) -> None:
        self._values.clear()
        self._sorted = []

    def _in_order(self) -> list[bytes]:
        if self._sorted is None:
            self._sorted = sorted(self._values)
        return self._sorted

    def _load(self, path: Path, data: bytes) -> None:
        try:
            content = msgspec.msgpack.decode(data, type=_Content)
        except msgspec.DecodeError as error:
            raise CorruptCheckpointError(f"{path} holds no state store: {error}") from error
        if content.format != FORMAT or len(content.keys) != len(content.values):
            raise CorruptCheckpointError(
                f"{path} holds a state store of format {content.format}; this version of tidegate "
                f"reads format {FORMAT}."
            )
        self._values = dict(zip(content.keys, content.values, strict=True))
        self._sorted = content.keys


class MemoryCheckpoint:
    """A `ports.kv.StoreCheckpoint`: holds the pairs until they are written to their file."""

    def __init__(self, content: _Content, store: Path, path: Path) -> None:
        self._content, self._store, self._path = content, store, path
        self._writing = threading.Lock()
        self._written = False

    def files(self) -> list[Path]:
        with self._writing:
            if not self._written:
                self._write()
                self._written = True
        return [self._path]

    def _write(self) -> None:
        try:
            self._path.parent.mkdir(mode=FOLDER_MODE, exist_ok=True)
            others = list(self._path.parent.iterdir())
            write_private(self._path, msgspec.msgpack.encode(self._content))
            for other in others:
                if other != self._path:  # an earlier try may have left part of it on a full disk
                    other.unlink()
        except OSError as error:
            raise StorageError(
                f"The state store in {self._store} could not checkpoint: {error}"
            ) from error
