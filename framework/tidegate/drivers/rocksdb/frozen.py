"""`RocksDBCheckpoint`: one checkpoint of the RocksDB store while its files are made.

The mailbox thread takes the checkpoint, and an upload thread asks for its files. Usually the upload
thread makes the files. The mailbox thread makes them if it cannot wait for the upload. The files
are made once, or never if the store is closed earlier.

`store.py` and `changelog.py` decide which files are made.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

from tidegate.errors import StorageError


class RocksDBCheckpoint:
    """A `ports.kv.StoreCheckpoint`. The first thread that needs the files makes them with `freeze`.
    `files` also calls `drop`, which deletes the files of earlier changelogs.
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
        """Make the files, or keep the error for `files` to raise. Do nothing if this was done
        before.
        """
        with self._freezing:
            if self._freeze is None:
                return
            try:
                self._files = self._freeze()
            except StorageError as error:
                self._failure = error
            self._freeze = None

    def abandon(self) -> None:
        """Do not make the files if they are not made yet, because the store is being closed.
        `files` then raises StorageError.
        """
        with self._freezing:
            if self._freeze is not None:
                self._freeze = None
                self._failure = StorageError("the state store was closed before its checkpoint")
