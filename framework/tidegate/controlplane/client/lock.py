"""One run of a job at a time from one folder.

Two clusters on one journal would depose each other: exactly once would hold, but the run that was
started first would end, to its user's surprise. So a local run holds a lock on the job beside its
checkpoints, and a second one is refused. The lock is the kernel's: it goes with the process,
however that ends. It is a courtesy of one machine; what protects the data everywhere is the
journal's claim.
"""

from __future__ import annotations

import fcntl
import os
from pathlib import Path
from types import TracebackType
from typing import Self

from tidegate.errors import RefusedError
from tidegate.ids import JobName
from tidegate.private_files import FILE_MODE, make_private_folder


class RunLock:
    """Held as a context manager; RefusedError if another live process holds it."""

    def __init__(self, folder: Path, storage: str, job: JobName) -> None:
        base = folder / ".tidegate" if "://" in storage else folder / storage
        self._path = base / f"{job}.lock"
        self._job = job
        self._file: int | None = None

    def __enter__(self) -> Self:
        try:
            make_private_folder(self._path.parent)
            self._file = os.open(self._path, os.O_RDWR | os.O_CREAT, FILE_MODE)
        except OSError as error:
            raise RefusedError(
                f"The folder {self._path.parent} cannot be written: {error.strerror}. Set "
                "checkpoint.storage to a folder of your own, or run the command where you may "
                "make one."
            ) from error
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.read(self._file, 32).decode(errors="replace").strip() or "unknown"
            os.close(self._file)
            raise RefusedError(
                f"Job {self._job!r} is running already, started by process {holder}. Stop it there "
                "first (Ctrl-C), or give this pipeline another name."
            ) from None
        os.ftruncate(self._file, 0)
        os.write(self._file, str(os.getpid()).encode())
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._file is not None:
            os.close(self._file)
