"""Checkpoint storage in an object store (S3, Google Cloud, Azure), through obstore.

An object store writes objects atomically, and a conditional put is the create-if-absent that the
journal needs. Credentials, regions and endpoints come from the environment in each cloud's own way.
A request that fails after it was sent may have been executed. In that case a create returns
UNKNOWN, and the caller sends the same bytes again.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, Self

import obstore
from obstore.exceptions import (
    AlreadyExistsError,
    BaseError,
    InvalidPathError,
    NotSupportedError,
    PreconditionError,
    UnknownConfigurationKeyError,
)
from obstore.store import ObjectStore as Store
from obstore.store import from_url

from tidegate.drivers.storage.identity import IDENTITY, compare, read_or_create, storage_gone_error
from tidegate.drivers.storage.probe import check_create_if_absent
from tidegate.errors import ConfigError, StorageError
from tidegate.ports.blobs import CreateResult
from tidegate.private_files import private_opener

_CHUNK: Final = 4 << 20
"""The bytes per write of a download: large enough that Python's part of the time is small."""


class ObjectStore:
    """A BlobStore in a bucket, below the path of its URL."""

    def __init__(self, store: Store, where: str) -> None:
        self._store = store
        self._where = where
        self._identity = ""

    @classmethod
    def open(cls, url: str) -> Self:
        """Return the store at a URL. ConfigError if the URL is not valid. Reads and writes
        nothing.
        """
        try:
            return cls(from_url(url), url)
        except (BaseError, ValueError) as error:
            message = f"checkpoint.dir {url!r} can not be opened: {_first_line(error)}"
            raise ConfigError(message) from error

    def create(self, path: str, data: bytes) -> CreateResult:
        """See BlobStore."""
        try:
            obstore.put(self._store, path, data, mode="create", use_multipart=False)
        except (AlreadyExistsError, PreconditionError):
            return CreateResult.EXISTS
        except (NotSupportedError, InvalidPathError, UnknownConfigurationKeyError) as error:
            raise self._translated(error, "create", path) from error
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
        try:
            yield
        except (BaseError, OSError) as error:
            raise self._translated(error, what, path) from error

    def _translated(self, error: Exception, what: str, path: str) -> StorageError:
        return StorageError(
            f"Checkpoint storage {self._where}: can not {what} {path}: {_first_line(error)}"
        )


def _first_line(error: Exception) -> str:
    """Return the first line of an error's message. In obstore's messages, a dump of the library's
    own objects follows after it.
    """
    return str(error).split("\n", maxsplit=1)[0] or type(error).__name__
