"""The folder of a Spark session. It holds shuffle files, the JVM's temporary files and its log.

The folder is deleted when the session closes. A killed driver cannot delete its folder, so the next
session deletes it. Each folder has a file that its driver keeps locked. If the lock is free, the
driver of the folder has exited.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
import time
from pathlib import Path
from typing import Final

PREFIX: Final = "tidegate-spark-"
LOCK: Final = "lock"
YOUNG_S: Final = 60.0  # a new folder is without its lock for a short time


class SessionFolder:
    """A private folder (mode 0700) that this process holds locked."""

    def __init__(self, parent: Path | None = None) -> None:
        """Create a folder in `parent`, by default in Python's folder for temporary files."""
        parent_folder = Path(parent or tempfile.gettempdir())
        _delete_orphans(parent_folder)
        self.path = Path(tempfile.mkdtemp(prefix=PREFIX, dir=parent_folder))
        self._lock = os.open(self.path / LOCK, os.O_RDWR | os.O_CREAT, 0o600)
        fcntl.flock(self._lock, fcntl.LOCK_EX)
        for each in ("local", "tmp", "warehouse"):
            (self.path / each).mkdir()

    def delete(self) -> None:
        """Delete the folder. If another process still writes a file there, the file may remain
        until the next session.
        """
        shutil.rmtree(self.path, ignore_errors=True)
        os.close(self._lock)


def _delete_orphans(parent_folder: Path) -> None:
    for path in parent_folder.glob(f"{PREFIX}*"):
        try:
            if path.stat().st_uid != os.getuid() or time.time() - path.stat().st_mtime < YOUNG_S:
                continue
            lock = os.open(path / LOCK, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
        except OSError:
            continue  # another session deletes it now
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            continue
        else:
            shutil.rmtree(path, ignore_errors=True)
        finally:
            os.close(lock)
