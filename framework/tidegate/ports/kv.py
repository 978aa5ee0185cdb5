"""A sorted store of bytes under one keyed operator of one subtask (RocksDB, or memory).

The write-back cache above it makes batches: it reads lists of keys, and writes one batch per
barrier. The store keeps no log, because the checkpoint is the log. One thread calls the store. The
upload thread takes and reads the files of a `StoreCheckpoint`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Protocol


class StoreCheckpoint(Protocol):
    """The content of a store at the time of a barrier, while it is written to files."""

    def files(self) -> list[Path]:
        """Wait for the files and return them. They stay unchanged until the files of a later
        checkpoint of the store are requested, also if the store is closed. Any thread may call
        this, and more than once, but in the order of the checkpoints. StorageError on failure, and
        if the store was closed before.
        """
        ...


class KeyValueStore(Protocol):
    """A map of bytes to bytes, ordered by key."""

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """Return the values of `keys`, in their order. None for a key without a value."""
        ...

    def write(self, puts: Iterable[tuple[bytes, bytes]], deletes: Iterable[bytes]) -> None:
        """Apply all changes as one batch."""
        ...

    def scan(self, first: bytes, end: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Return the pairs with `first <= key < end`, in order."""
        ...

    def checkpoint(self) -> StoreCheckpoint:
        """Write the present content to files below the store's folder. Return at once. Later writes
        to the store are not in these files.

        A file has the same content as the file of that name in an earlier checkpoint of this store,
        or in the checkpoint with which the store was opened.
        """
        ...

    def close(self) -> None:
        """Close the files."""
        ...
