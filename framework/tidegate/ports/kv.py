"""A sorted store of bytes under one keyed operator of one subtask (RocksDB, or memory).

The write-back cache above it batches: reads come as lists of keys, writes as one batch per barrier.
The store keeps no log of its own; the checkpoint is the log. Called by one thread only, but for a
`StoreCheckpoint` content, whose files the upload thread asks for and reads.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Protocol


class StoreCheckpoint(Protocol):
    """The content of a store at one moment, on its way into files."""

    def files(self) -> list[Path]:
        """The files, as soon as they are there. They stay, and stay as they are, until those of a
        later checkpoint of the store are asked for, also when the store is closed. From any thread,
        also more than once, but in the order of the checkpoints. Raises StorageError, also where
        the store was closed before.
        """
        ...


class KeyValueStore(Protocol):
    """Bytes to bytes, ordered by key."""

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """The values of `keys`, in their order; None where there is none."""
        ...

    def write(self, puts: Iterable[tuple[bytes, bytes]], deletes: Iterable[bytes]) -> None:
        """Apply as one batch."""
        ...

    def scan(self, first: bytes, end: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Pairs with `first <= key < end`, in order."""
        ...

    def checkpoint(self) -> StoreCheckpoint:
        """Freeze the present content as files below the store's folder. Returns at once; what is
        written to the store from now on is not among them.

        A file whose name appeared in an earlier checkpoint of this store, or in the one that it was
        opened with, has the same content.
        """
        ...

    def close(self) -> None:
        """Release the files."""
        ...
