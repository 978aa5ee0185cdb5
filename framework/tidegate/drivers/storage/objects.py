"""Checkpoint storage in an object store (S3, Google Cloud, Azure), through obstore.

An object store writes objects atomically, and a conditional put is the create-if-absent that the
journal needs. Credentials, regions and endpoints come from the environment in each cloud's own way.
A request that fails after it was sent may have been executed. In that case a create returns
UNKNOWN, and the caller sends the same bytes again. A refusal proves that nothing was written only
if it answers the first request: obstore repeats requests, and an earlier one may have been
executed. So the first request of a create is sent by a client that repeats nothing.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Final, Self

import obstore
from obstore.exceptions import (
    AlreadyExistsError,
    BaseError,
    InvalidPathError,
    NotSupportedError,
    PermissionDeniedError,
    PreconditionError,
    UnauthenticatedError,
    UnknownConfigurationKeyError,
)
from obstore.store import ObjectStore as Store
from obstore.store import from_url

from tidegate.drivers.process.user_forks import end_if_forked
from tidegate.drivers.storage.identity import IDENTITY, compare, read_or_create, storage_gone_error
from tidegate.drivers.storage.probe import check_create_if_absent
from tidegate.errors import ConfigError, StorageError
from tidegate.ports.blobs import CreateResult
from tidegate.private_files import private_opener

if TYPE_CHECKING:
    from obstore.store import RetryConfig

_CHUNK: Final = 4 << 20
"""The bytes per write of a download: large enough that Python's part of the time is small."""

_NO_RETRIES: Final[RetryConfig] = {"max_retries": 0, "retry_timeout": timedelta(seconds=30)}

_NEVER_WRITES: Final = (
    FileNotFoundError,
    InvalidPathError,
    NotSupportedError,
    PermissionDeniedError,
    UnauthenticatedError,
    UnknownConfigurationKeyError,
)
"""The errors of a create that was sent once and refused: no bucket, no right, no valid
credentials."""

_REFUSED_STATUS: Final = re.compile(r"\bstatus code: 4(?!08|09|25|29)\d\d\b")
"""The part of obstore's text that has the status of an answer for which it has no exception. These
statuses say that the request is wrong. 408, 409, 425 and 429 ask for another try."""


class ObjectStore:
    """A BlobStore in a bucket, below the path of its URL. `once` is a client of the same bucket
    that repeats no request.
    """

    def __init__(self, store: Store, where: str, once: Store) -> None:
        self._store, self._once = store, once
        self._where = where
        self._identity = ""

    @classmethod
    def open(cls, url: str) -> Self:
        """Return the store at a URL. ConfigError if the URL is not valid. Reads and writes
        nothing.
        """
        try:
            store = from_url(url)
            # A second memory store would be another, empty one, and it repeats nothing anyway.
            once = store if url.startswith("memory:") else from_url(url, retry_config=_NO_RETRIES)
            return cls(store, url, once)
        except (BaseError, ValueError) as error:
            message = f"checkpoint.dir {url!r} cannot be opened: {_first_line(error)}"
            raise ConfigError(message) from error

    def create(self, path: str, data: bytes) -> CreateResult:
        """See BlobStore. The second request follows at once if the first one has no clear answer.
        Its refusal proves nothing, because the first one may have been executed.
        """
        end_if_forked()
        try:
            obstore.put(self._once, path, data, mode="create", use_multipart=False)
        except (AlreadyExistsError, PreconditionError):
            return CreateResult.EXISTS
        except (BaseError, OSError) as error:
            if isinstance(error, _NEVER_WRITES) or _REFUSED_STATUS.search(str(error)):
                raise self._translated(error, "create", path) from error
        else:
            return CreateResult.CREATED
        try:
            obstore.put(self._store, path, data, mode="create", use_multipart=False)
        except (AlreadyExistsError, PreconditionError):
            return CreateResult.EXISTS
        except (BaseError, OSError):
            return CreateResult.UNKNOWN
        return CreateResult.CREATED

    def put(self, path: str, data: bytes) -> None:
        """See BlobStore."""
        with self._translated_errors("write", path):
            obstore.put(self._store, path, data)

    def put_file(self, path: str, source: Path) -> None:
        """See BlobStore."""
        with self._translated_errors("write", path):
            obstore.put(self._store, path, source)

    def get(self, path: str) -> bytes | None:
        """See BlobStore."""
        with self._translated_errors("read", path):
            try:
                return bytes(obstore.get(self._store, path).bytes())
            except FileNotFoundError:
                return None

    def get_file(self, path: str, target: Path) -> bool:
        """See BlobStore."""
        with self._translated_errors(f"copy to {target} from", path):
            try:
                found = obstore.get(self._store, path)
            except FileNotFoundError:
                return False
            with open(target, "xb", opener=private_opener) as out:
                out.writelines(found.stream(min_chunk_size=_CHUNK))
            return True

    def list(self, prefix: str) -> list[str]:
        """See BlobStore."""
        with self._translated_errors("list", prefix):
            batches = obstore.list(self._store, prefix=prefix or None)
            return sorted(found["path"] for batch in batches for found in batch)

    def delete(self, path: str) -> None:
        """See BlobStore."""
        with self._translated_errors("delete", path):
            try:
                obstore.delete(self._store, path)
            except FileNotFoundError:
                return

    def probe(self, *, allow_network_filesystem: bool = False) -> None:
        """See BlobStore."""
        del allow_network_filesystem  # an object store has no file system
        check_create_if_absent(self, self._where, secrets.token_hex(8))

    def identify(self) -> str:
        """See BlobStore."""
        self._identity = read_or_create(self, self._where)
        return self._identity

    def bind(self, identity: str) -> None:
        """See BlobStore. Only `confirm` checks the identity, because a check in each call would
        cost a second request. A bucket cannot vanish behind its name without errors.
        """
        self._identity = identity

    def confirm(self) -> None:
        """See BlobStore."""
        if not self._identity:
            return
        found = self.get(IDENTITY)
        if found is None:
            raise storage_gone_error(self._where)
        compare(found, self._identity, self._where)

    def __repr__(self) -> str:
        return f"<ObjectStore {self._where}>"

    @contextmanager
    def _translated_errors(self, what: str, path: str) -> Iterator[None]:
        """Translate obstore's exceptions into StorageError."""
        end_if_forked()
        try:
            yield
        except (BaseError, OSError) as error:
            raise self._translated(error, what, path) from error

    def _translated(self, error: Exception, what: str, path: str) -> StorageError:
        if isinstance(error, FileNotFoundError):
            remedy = " Check that the bucket exists."
        elif isinstance(error, PermissionDeniedError | UnauthenticatedError):
            remedy = " Check the credentials, and their rights to read, write, list and delete."
        else:
            remedy = ""
        return StorageError(
            f"Checkpoint storage {self._where}: cannot {what} {path}: {_first_line(error)}{remedy}"
        )


def _first_line(error: Exception) -> str:
    """Return the first line of an error's message. In obstore's messages, a dump of the library's
    own objects follows after it.
    """
    return str(error).split("\n", maxsplit=1)[0] or type(error).__name__
