"""The checkpoint storage, as far as tidegate needs it: named objects, one atomic primitive.

`create` decides everything that must be decided once: the journal's entries. All other files are
written once, under a name that no other process uses. The drivers are a local directory (synced)
and object stores through obstore. A path is relative, has `/` between parts of `[A-Za-z0-9._-]`,
and never contains `..`. Several threads may call an implementation.
"""

from __future__ import annotations

import enum
from pathlib import Path
from typing import Protocol


class CreateResult(enum.Enum):
    """The outcome of `BlobStore.create`."""

    CREATED = "created"
    EXISTS = "exists"
    """An object of that name exists. An earlier try without an answer may have created it."""
    UNKNOWN = "unknown"
    """The store did not answer. Send the same bytes to the same name until it answers."""


class BlobStore(Protocol):
    """Objects by path. The methods raise StorageError if the store fails; see `create`."""

    def create(self, path: str, data: bytes) -> CreateResult:
        """Write `data` to `path` unless an object exists there. The object is durable after CREATED
        or EXISTS.

        Raise StorageError only if this call has certainly written nothing.
        """
        ...

    def put(self, path: str, data: bytes) -> None:
        """Write or replace an object, completely or not at all. It is durable on return."""
        ...

    def put_file(self, path: str, source: Path) -> None:
        """Write or replace an object from a local file, which stays."""
        ...

    def get(self, path: str) -> bytes | None:
        """Return the object's bytes, or None if it does not exist."""
        ...

    def get_file(self, path: str, target: Path) -> bool:
        """Write the object into a new local file. Return False if the object does not exist."""
        ...

    def list(self, prefix: str) -> list[str]:
        """Return the paths below the folder `prefix`, at any depth, sorted."""
        ...

    def delete(self, path: str) -> None:
        """Delete the object. Do nothing if it does not exist."""
        ...

    def probe(self, *, allow_network_filesystem: bool = False) -> None:
        """Check that the store refuses a second `create` of one name. StorageError or RefusedError
        if it does not, or if the kind of the file system cannot promise it and is not allowed.
        """
        ...

    def identify(self) -> str:
        """Return the random id of this storage, which its first user creates. From then on this
        object is bound to it, see `bind`.
        """
        ...

    def bind(self, identity: str) -> None:
        """Use only the storage with this id. From now on, each call raises StorageGoneError, and
        creates nothing, if the storage is gone or is another one. A `create` during which the
        storage vanishes is UNKNOWN. `bind` itself reads and writes nothing.
        """
        ...

    def confirm(self) -> None:
        """Raise StorageGoneError if this object is bound and its storage is gone or replaced."""
        ...
