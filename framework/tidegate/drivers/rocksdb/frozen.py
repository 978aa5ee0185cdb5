"""`RocksDBCheckpoint`: one checkpoint of the RocksDB store on its way into files.

The mailbox thread takes it, an upload thread asks for its files, and either may be the one that
makes them: the upload as a rule, the mailbox thread where it can not wait for that. They are made
once, and not at all where the store was closed before.

Not here: what is made (`store.py`, `changelog.py`).
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

from tidegate.errors import StorageError


class RocksDBCheckpoint:
    """`ports.kv.Frozen`: the files of a checkpoint, made by `freeze`, whoever comes first. Who asks
    for them has `drop` remove those of earlier checkpoints.
    """

    def __init__(self, *, freeze: Callable[[], list[Path]], drop: Callable[[], None]) -> None:
        self._freeze: Callable[[], list[Path]] | None = freeze
        self._drop = drop
        self._freezing = threading.Lock()
        self._files: list[Path] = []
        self._failure: StorageError | None = None

    def files(self) -> list[Path]:
        self.end()
        if self._failure is not None:
            raise self._failure
        self._drop()
        return self._files

    def end(self) -> None:
        """Make the files, or note why that failed."""
        with self._freezing:
            if self._freeze is None:
                return
            try:
                self._files = self._freeze()
            except StorageError as error:
                self._failure = error
            self._freeze = None

    def abandon(self) -> None:
        """The store is about to be closed: whoever has not asked yet comes too late."""
        with self._freezing:
            if self._freeze is not None:
                self._freeze = None
                self._failure = StorageError("the state store was closed before its checkpoint")
