"""Where a JobMaster has the code of its job from."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest

from tests.api.test_archive import zipped
from tests.controlplane.jobmanager.dispatching import submission
from tests.controlplane.jobmanager.test_job_store import Blobs
from tidegate.api.code.archive import digest_of
from tidegate.config import Config
from tidegate.controlplane.journal.effect_runner import run_to_end
from tidegate.controlplane.journal.job_plan import installed_code
from tidegate.controlplane.journal.job_storage import JobStorage
from tidegate.drivers.clock import SystemClock
from tidegate.errors import (
    CorruptCheckpointError,
    ResourceExhaustedError,
    Retry,
    StorageError,
    StorageGoneError,
)
from tidegate.ports.blobs import BlobStore
from tidegate.protocol.submission import StoredCode, Submission

DATA = zipped("job.py")
PATH = "a/submissions/1/x.zip"


class Storage(Blobs):
    """Does not answer so many requests."""

    def __init__(self, silent: int) -> None:
        super().__init__()
        self.objects[PATH] = DATA
        self.silent = silent
        self.error: Exception = StorageError("away")
        self.while_read: Callable[[], None] = lambda: None

    def confirm(self) -> None:
        """It is always there when it is looked for."""

    def bind(self, identity: str) -> None:
        del identity

    def get(self, path: str) -> bytes | None:
        self.while_read()
        if self.silent:
            self.silent -= 1
            raise self.error
        return super().get(path)


def bound(storage: Storage) -> BlobStore:
    return cast("BlobStore", storage)


def job_storage(storage: Storage, folder: Path) -> JobStorage:
    drivers = SimpleNamespace(clock=SystemClock(), blob_store=lambda _: storage)
    return JobStorage(Config().checkpoint, str(folder), cast("Any", drivers), "id")


def submitted(folder: Path) -> Submission:
    code = StoredCode(digest=digest_of(DATA), size=1, path=PATH)
    return msgspec.structs.replace(
        submission(), working_folder=str(folder), settings=Config().to_dict(), code=code
    )


def test_code_is_unpacked_below_the_local_state_directory_of_the_job(tmp_path: Path) -> None:
    folder = installed_code(submitted(tmp_path), Config(), bound(Storage(0)))
    assert folder == tmp_path / ".tidegate" / "state" / "a" / "code" / digest_of(DATA)
    assert (folder / "job.py").read_bytes() == b"x"


def test_submission_without_code_installs_nothing(tmp_path: Path) -> None:
    old = msgspec.structs.replace(submitted(tmp_path), code=None)
    assert installed_code(old, Config(), bound(Storage(0))) is None


def test_storage_error_during_the_code_fetch_is_retryable(tmp_path: Path) -> None:
    found = job_storage(Storage(1), tmp_path).fetch_code(submitted(tmp_path), Config(), run_to_end)
    assert isinstance(found, StorageError)
    assert found.retry is not Retry.NO


def test_code_fetch_waits_while_the_storage_is_gone(tmp_path: Path) -> None:
    storage = Storage(2)
    storage.error = StorageGoneError("X is gone.")
    fetched = job_storage(storage, tmp_path).fetch_code(submitted(tmp_path), Config(), run_to_end)
    assert isinstance(fetched, Path)
    assert (fetched / "job.py").is_file()


def test_code_fetch_is_a_watched_storage_call(tmp_path: Path) -> None:
    hanging = list[str]()
    storage = Storage(0)
    fetching = job_storage(storage, tmp_path)
    storage.while_read = lambda: hanging.extend(
        call.what for call in [fetching.calls.hanging(-1.0)] if call is not None
    )
    fetching.fetch_code(submitted(tmp_path), Config(), run_to_end)
    assert hanging == ["the code of the job"]


def test_memory_error_during_the_code_fetch_is_a_resource_error_of_the_attempt(
    tmp_path: Path,
) -> None:
    storage = Storage(1)
    storage.error = MemoryError()
    found = job_storage(storage, tmp_path).fetch_code(submitted(tmp_path), Config(), run_to_end)
    assert isinstance(found, ResourceExhaustedError)


def test_damaged_code_archive_is_not_retried(tmp_path: Path) -> None:
    storage = Storage(0)
    storage.objects[PATH] = b"damaged"
    with pytest.raises(CorruptCheckpointError, match="is damaged"):
        installed_code(submitted(tmp_path), Config(), bound(storage))
