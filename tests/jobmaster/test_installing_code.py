"""Where a JobMaster has the code of its job from."""

from __future__ import annotations

from pathlib import Path
from typing import cast

import msgspec
import pytest

from tests.api.test_archive import zipped
from tests.controlplane.test_dispatcher import submission
from tests.controlplane.test_store import Blobs
from tidegate.api.archive import digest_of
from tidegate.config import Config
from tidegate.controlplane.jobmaster.plan_of_job import installed_code, try_plan
from tidegate.errors import CorruptCheckpointError, Retry, StorageError
from tidegate.ports.blobs import BlobStore
from tidegate.protocol.messages import StoredCode, Submission

DATA = zipped("job.py")
PATH = "a/submissions/1/x.zip"


class Storage(Blobs):
    """Does not answer so many requests."""

    def __init__(self, silent: int) -> None:
        super().__init__()
        self.objects[PATH] = DATA
        self.silent = silent

    def get(self, path: str) -> bytes | None:
        if self.silent:
            self.silent -= 1
            raise StorageError("away")
        return super().get(path)


def bound(storage: Storage) -> BlobStore:
    return cast("BlobStore", storage)


def submitted(folder: Path) -> Submission:
    code = StoredCode(digest=digest_of(DATA), size=1, path=PATH)
    return msgspec.structs.replace(
        submission(), working_folder=str(folder), settings=Config().to_dict(), code=code
    )


def test_the_code_is_unpacked_beside_the_local_state_of_the_job(tmp_path: Path) -> None:
    folder = installed_code(submitted(tmp_path), Config(), bound(Storage(0)))
    assert folder == tmp_path / ".tidegate" / "state" / "a" / "code" / digest_of(DATA)
    assert (folder / "job.py").read_bytes() == b"x"


def test_a_submission_of_an_older_version_has_no_archive(tmp_path: Path) -> None:
    old = msgspec.structs.replace(submitted(tmp_path), code=None)
    assert installed_code(old, Config(), bound(Storage(0))) is None


def test_a_storage_that_does_not_answer_fails_the_attempt_and_not_the_job(tmp_path: Path) -> None:
    found = try_plan(submitted(tmp_path), Config(), bound(Storage(1)))
    assert isinstance(found, StorageError)
    assert found.retry is not Retry.NO


def test_a_damaged_archive_is_not_waited_for(tmp_path: Path) -> None:
    storage = Storage(0)
    storage.objects[PATH] = b"damaged"
    with pytest.raises(CorruptCheckpointError, match="is damaged"):
        installed_code(submitted(tmp_path), Config(), bound(storage))
