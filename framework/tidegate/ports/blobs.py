"""The checkpoint storage, as far as tidegate needs it: named objects, one atomic primitive.

`create` orders everything that must be decided once (the journal's entries); the rest is files that
are written once under a name nobody else uses. Drivers: a local directory (synced), object stores
by obstore. Paths are relative, `/`-separated, of `[A-Za-z0-9._-]` parts, never with `..`.
Implementations are safe to call from several threads.
"""

from __future__ import annotations

import enum
from pathlib import Path
from typing import Protocol


class CreateResult(enum.Enum):
    """The outcome of `BlobStore.create`."""

    CREATED = "created"
    EXISTS = "exists"
    """An object of that name is there; it may be our own from an earlier, unanswered try."""
    UNKNOWN = "unknown"
    """The store did not say. Send the same bytes to the same name until it does."""


class BlobStore(Protocol):
    """Objects by path. StorageError is raised when the store fails; see `create`."""

    def create(self, path: str, data: bytes) -> CreateResult:
        """Write `data` under `path` unless something is there. Durable once CREATED or EXISTS.

        Raises StorageError only where it is certain that nothing was written by this call.
        """
        ...

    def put(self, path: str, data: bytes) -> None:
        """Write or replace, whole or not at all, durable on return."""
        ...

    def put_file(self, path: str, source: Path) -> None:
        """The same from a local file, which is left in place."""
        ...

    def get(self, path: str) -> bytes | None:
        """The object's bytes, or None where there is none."""
        ...

    def get_file(self, path: str, target: Path) -> bool:
        """Write the object into a new local file; False where there is none."""
        ...

    def list(self, prefix: str) -> list[str]:
        """Paths below the folder `prefix`, at any depth, sorted."""
        ...

    def delete(self, path: str) -> None:
        """Remove; nothing happens where there is none."""
        ...

    def probe(self, *, allow_network_filesystem: bool = False) -> None:
        """Prove that a second `create` of one name is refused; StorageError or RefusedError if
        not, and where the kind of the file system makes no such promise and is not allowed.
        """
        ...

    def identify(self) -> str:
        """The random id of this storage, which its first user creates. This object is bound to it
        from then on, see `bind`.
        """
        ...

    def bind(self, identity: str) -> None:
        """Use the storage of this id and no other. From now on every call raises StorageGoneError,
        and creates nothing, where the storage is gone or is another one. A `create` during which
        the storage vanishes is UNKNOWN. Reads and writes nothing.
        """
        ...

    def confirm(self) -> None:
        """StorageGoneError if this object is bound and its storage is gone or is another one."""
        ...
