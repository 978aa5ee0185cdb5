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
    """A `ports.kv.StoreCheckpoint`. The first thread that needs the files makes them with
    `make_files`. `files` also calls `drop`, which deletes the files of earlier changelogs.
    """

    def __init__(self, *, make_files: Callable[[], list[Path]], drop: Callable[[], None]) -> None:
        self._make_files: Callable[[], list[Path]] | None = make_files
        self._delete_previous = drop
        self._lock = threading.Lock()
        self._files: list[Path] = []
        self._failure: StorageError | None = None

    def files(self) -> list[Path]:
        self.end()
        if self._failure is not None:
            raise self._failure
        self._delete_previous()
        return self._files

    def end(self) -> None:
        """Make the files, or keep the error for `files` to raise. Do nothing if this was done
        before.
        """
        with self._lock:
            if self._make_files is None:
                return
            try:
                self._files = self._make_files()
            except StorageError as error:
                self._failure = error
            self._make_files = None

    def abandon(self) -> None:
        """Do not make the files if they are not made yet, because the store is being closed.
        `files` then raises StorageError.
        """
        with self._lock:
            if self._make_files is not None:
                self._make_files = None
                self._failure = StorageError("The state store was closed before its checkpoint.")
