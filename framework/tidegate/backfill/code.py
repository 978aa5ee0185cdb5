"""The code of a backfill: an archive in the checkpoint storage, from which workers install it."""

from __future__ import annotations

import msgspec

from tidegate.api.archive import CodeArchive
from tidegate.errors import InternalError
from tidegate.ports.blobs import BlobStore
from tidegate.protocol.messages import Submission


def with_stored_code(
    submission: Submission, archive: CodeArchive, storage: BlobStore
) -> Submission:
    """Put the archive into the storage; the submission that names where it lies.

    StorageError if the storage does not take it.
    """
    code = submission.code
    if code is None or code.digest != archive.digest:
        raise InternalError(f"the archive {archive.digest} is not of job {submission.job}")
    path = f"{submission.job}/backfills/{submission.id}/{archive.digest}.zip"
    storage.put(path, archive.data)
    return msgspec.structs.replace(submission, code=msgspec.structs.replace(code, path=path))
