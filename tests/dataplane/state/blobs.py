"""A checkpoint storage in memory that refuses to overwrite, for the tests of this room."""

from __future__ import annotations

import threading
from pathlib import Path

from tidegate.errors import StorageError
from tidegate.ports.blobs import CreateResult


class MemoryBlobs:
    """Objects by path. `puts` and `gets` are the paths of uploads and of files that were fetched;
    `failing` paths (by ending) are refused.
    """

    def __init__(self) -> None:
        self.objects: dict[str, bytes] = {}
        self.puts: list[str] = []
        self.gets: list[str] = []
        self.failing = ""
        self._lock = threading.Lock()

    def create(self, path: str, data: bytes) -> CreateResult:
        with self._lock:
            if path in self.objects:
                return CreateResult.EXISTS
            self.objects[path] = data
            return CreateResult.CREATED

    def put(self, path: str, data: bytes) -> None:
        if self.failing and path.endswith(self.failing):
            raise StorageError(f"{path}: refused by the test")
        assert path not in self.objects, f"{path} was overwritten"
        self.puts.append(path)
        self.objects[path] = data

    def put_file(self, path: str, source: Path) -> None:
        self.put(path, source.read_bytes())

    def get(self, path: str) -> bytes | None:
        return self.objects.get(path)

    def get_file(self, path: str, target: Path) -> bool:
        self.gets.append(path)
        data = self.objects.get(path)
        if data is not None:
            target.write_bytes(data)
        return data is not None

    def list(self, prefix: str) -> list[str]:
        return sorted(path for path in self.objects if path.startswith(f"{prefix}/"))

    def delete(self, path: str) -> None:
        self.objects.pop(path, None)

    def probe(self, *, allow_network_filesystem: bool = False) -> None:
        pass

    def identify(self) -> str:
        return "in memory"

    def bind(self, identity: str) -> None:
        pass

    def confirm(self) -> None:
        pass
