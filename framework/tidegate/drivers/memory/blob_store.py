"""`MemoryBlobStore`: a checkpoint storage in memory, for tests within one process.

The objects end with the store. The store is used by one process, so nothing else can replace it:
`bind` and `confirm` compare an identity that never changes. Several threads may call it.
"""

from __future__ import annotations

import threading
from pathlib import Path
from typing import TYPE_CHECKING, Final

from tidegate.errors import StorageError, StorageGoneError
from tidegate.ports.blobs import BlobStore, CreateResult

_IDENTITY: Final = "memory"


class MemoryBlobStore:
    """Objects by path, in a dictionary."""

    def __init__(self) -> None:
        self._objects: dict[str, bytes] = {}
        self._creating = threading.Lock()
        self._bound_to = _IDENTITY

    def create(self, path: str, data: bytes) -> CreateResult:
        self.confirm()
        with self._creating:
            if path in self._objects:
                return CreateResult.EXISTS
            self._objects[path] = data
        return CreateResult.CREATED

    def put(self, path: str, data: bytes) -> None:
        self.confirm()
        self._objects[path] = data

    def put_file(self, path: str, source: Path) -> None:
        try:
            self.put(path, source.read_bytes())
        except OSError as error:
            raise StorageError(f"Cannot write {path}: {source}: {error.strerror}") from error

    def get(self, path: str) -> bytes | None:
        self.confirm()
        return self._objects.get(path)

    def get_file(self, path: str, target: Path) -> bool:
        data = self.get(path)
        if data is None:
            return False
        try:
            target.write_bytes(data)
        except OSError as error:
            raise StorageError(f"Cannot read {path} into {target}: {error.strerror}") from error
        return True

    def list(self, prefix: str) -> list[str]:
        self.confirm()
        return sorted(path for path in list(self._objects) if path.startswith(f"{prefix}/"))

    def delete(self, path: str) -> None:
        self.confirm()
        self._objects.pop(path, None)

    def probe(self, *, allow_network_filesystem: bool = False) -> None:
        """Do nothing: `create` of a dictionary is atomic."""

    def identify(self) -> str:
        return _IDENTITY

    def bind(self, identity: str) -> None:
        self._bound_to = identity

    def confirm(self) -> None:
        if self._bound_to != _IDENTITY:
            raise StorageGoneError("The storage in memory is not the storage that was bound.")


if TYPE_CHECKING:
    _: BlobStore = MemoryBlobStore()
