"""A lock that allows one local run of a job at a time.

Two clusters on one journal would fence each other. Exactly-once would still hold, but the run that
was started first would end, to its user's surprise. So a local run holds a lock on the job, in a
file next to its checkpoints, and a second run is refused. It is a lock of the kernel (`flock`), so
it is released when the process ends for any reason. The lock only helps users of one machine. The
claim in the journal is what protects the data, on all machines.
"""

from __future__ import annotations

import errno
import fcntl
import os
from pathlib import Path
from types import TracebackType
from typing import Self

from tidegate.errors import RefusedError
from tidegate.ids import JobName
from tidegate.private_files import FILE_MODE, make_private_folder
from tidegate.storage_location import is_url, locate


class RunLock:
    """The lock of one job, held as a context manager.

    Entering raises RefusedError if another live process holds the lock, or if its folder cannot be
    written.
    """

    def __init__(self, folder: Path, storage: str, job: JobName) -> None:
        base = folder / ".tidegate" if is_url(storage) else Path(locate(storage, folder))
        self._path = base / f"{job}.lock"
        self._job = job
        self._file: int | None = None

    def __enter__(self) -> Self:
        try:
            make_private_folder(self._path.parent)
            self._file = os.open(self._path, os.O_RDWR | os.O_CREAT, FILE_MODE)
        except OSError as error:
            raise self._unwritable(error) from error
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.read(self._file, 32).decode(errors="replace").strip() or "unknown"
            os.close(self._file)
            raise RefusedError(
                f"Job {self._job!r} is running already, started by process {holder}. Stop it there "
                "first (Ctrl-C), or give this pipeline another name."
            ) from None
        try:
            os.ftruncate(self._file, 0)
            os.write(self._file, str(os.getpid()).encode())
        except OSError as error:
            os.close(self._file)
            raise self._unwritable(error) from error
        return self

    def _unwritable(self, error: OSError) -> RefusedError:
        remedy = "run the command where you may make one"
        if error.errno in {errno.ENOSPC, errno.EDQUOT}:
            remedy = "make room on its disk"
        return RefusedError(
            f"The folder {self._path.parent} cannot be written: {error.strerror}. Set "
            f"checkpoint.dir to a folder of your own, or {remedy}."
        )

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._file is not None:
            os.close(self._file)
