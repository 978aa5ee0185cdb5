"""The checkpoint storage of a simulated cluster: objects in memory, and a hook for faults.

`MemoryBlobs` holds the objects, and `SimBlobStore` is the access of one process to them. A request
arrives at its time even if its sender is dead by then, so a killed process leaves writes behind
that still take effect. An answer may be lost, and then the sender does not know the outcome. A
write takes effect completely or not at all, as the port guarantees for every store. This module
makes no random decisions.

At each call a process asks `Storages` which storage is behind the path. A request goes to the
storage whose identity its sender has checked, even if another storage is there when it arrives.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol, TypeVar

from tests.simulator.scheduler import SimProcess
from tests.simulator.threads import SimEntropy
from tidegate.drivers.storage.probe import check_create_if_absent
from tidegate.errors import StorageError, StorageGoneError
from tidegate.ports.blobs import BlobStore, CreateResult

T = TypeVar("T")


class MemoryBlobs:
    """The objects of one storage.

    `watch` is called for each `create` that took effect, with its process, and `deleted` for each
    delete. `written` is called for each write, even if the write fails later.
    """

    def __init__(
        self, identity: str = "simulated", objects: Mapping[str, bytes] | None = None
    ) -> None:
        self.objects: dict[str, bytes] = dict(objects or {})
        self.identity = identity
        """Identity of the storage. Another value means another storage behind the same path. An
        empty text means that no storage is mounted.
        """
        self.watch: Callable[[SimProcess, str, bytes], None] | None = None
        self.deleted: Callable[[SimProcess, str], None] | None = None
        self.written: Callable[[SimProcess, str], None] | None = None

    def seen_by(self, process: SimProcess) -> MemoryBlobs:
        """Return this storage for every process, as `Storages` with only one storage does."""
        del process
        return self


class Storages(Protocol):
    """The storage behind the checkpoint path, for each process."""

    def seen_by(self, process: SimProcess) -> MemoryBlobs: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class StorageVerdict:
    """The fate of one request. Durations are in seconds."""

    request_s: float = 0.0
    """Time until the request arrives."""
    answer_s: float = 0.0
    """Time from the arrival of the request until the sender has the answer."""
    fails: bool = False
    """Whether the storage refuses the request: nothing is written, and the sender knows it."""
    timeout_s: float | None = None
    """Time after which the sender stops waiting and does not know the outcome. The request still
    takes effect when it arrives.
    """
    request_lost: bool = False
    """Whether the request never arrives. `timeout_s` says when the sender stops waiting."""
    hangs: bool = False
    """Whether the call never returns. Its request never arrives either."""


FOREVER_S: Final = 1e9
"""A time in seconds that is longer than any simulation."""

AT_ONCE: Final = StorageVerdict()


class StorageFaults(Protocol):
    """The hook that decides the fate of each request. `kind` is the method of the port."""

    def of_storage(self, process: SimProcess, kind: str, path: str) -> StorageVerdict: ...


class SimBlobStore:
    """The `ports.blobs.BlobStore` of one process."""

    def __init__(self, storages: Storages, process: SimProcess, faults: StorageFaults) -> None:
        self._storages, self._process, self._faults = storages, process, faults
        self._identity = ""

    def create(self, path: str, data: bytes) -> CreateResult:
        """Create an object if its path is free, as `BlobStore.create`."""
        here = self._confirmed()
        self._note_write(here, "create", path)

        def act() -> CreateResult:
            if path in here.objects:
                return CreateResult.EXISTS
            here.objects[path] = data
            if here.watch is not None:
                here.watch(self._process, path, data)
            return CreateResult.CREATED

        answer = self._ask("create", path, act)
        try:
            self.confirm()
        except StorageGoneError:
            return CreateResult.UNKNOWN
        return CreateResult.UNKNOWN if answer is None else answer

    def put(self, path: str, data: bytes) -> None:
        self._put("put", path, data)

    def put_file(self, path: str, source: Path) -> None:
        try:
            data = source.read_bytes()
        except OSError as error:
            raise StorageError(f"Cannot write {path}: {source}: {error.strerror}") from error
        self._put("put_file", path, data)

    def get(self, path: str) -> bytes | None:
        return self._certainly("get", path, lambda objects: objects.get(path))

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
        folder = f"{prefix}/"
        return self._certainly(
            "list",
            prefix,
            lambda objects: sorted(path for path in objects if path.startswith(folder)),
        )

    def delete(self, path: str) -> None:
        here = self._confirmed()

        def act(objects: dict[str, bytes]) -> None:
            if objects.pop(path, None) is not None and here.deleted is not None:
                here.deleted(self._process, path)

        self._certainly("delete", path, act)

    def probe(self, *, allow_network_filesystem: bool = False) -> None:
        del allow_network_filesystem
        nonce = SimEntropy(self._process).token_hex(8)
        check_create_if_absent(self, "of the simulation", nonce)

    def identify(self) -> str:
        if not self._identity:
            self._identity = self._storages.seen_by(self._process).identity
            if not self._identity:
                raise StorageError("Nothing is mounted at the path of the storage.")
        return self._identity

    def bind(self, identity: str) -> None:
        self._identity = identity

    def confirm(self) -> None:
        self._confirmed()

    def _confirmed(self) -> MemoryBlobs:
        """Return the storage behind the path. Raise StorageGoneError if its identity changed."""
        here = self._storages.seen_by(self._process)
        if self._identity not in {"", here.identity}:
            raise StorageGoneError("The storage is gone, or another one is there.")
        return here

    def _note_write(self, here: MemoryBlobs, kind: str, path: str) -> None:
        if here.written is not None:
            here.written(self._process, path)
        if not here.identity:
            raise StorageError(
                f"Nothing is mounted, and no process may write there: {kind} {path}."
            )

    def _put(self, kind: str, path: str, data: bytes) -> None:
        self._note_write(self._confirmed(), kind, path)

        def act(objects: dict[str, bytes]) -> None:
            objects[path] = data

        self._certainly(kind, path, act)

    def _certainly(self, kind: str, path: str, act: Callable[[dict[str, bytes]], T]) -> T:
        """Send a request and wait for the answer. Raise StorageError if the outcome is unknown."""
        here = self._confirmed()
        answer = self._ask(kind, path, lambda: (act(here.objects),))
        self.confirm()
        if answer is None:
            raise StorageError(f"The storage does not answer: {kind} {path}.")
        return answer[0]

    def _ask(self, kind: str, path: str, act: Callable[[], T]) -> T | None:
        """Send a request and wait for the answer. Return None if the outcome is unknown.

        Raise StorageError if the storage refuses the request.
        """
        scheduler = self._process.scheduler
        scheduler.maybe_switch()
        verdict = self._faults.of_storage(self._process, kind, path)
        if verdict.fails:
            _wait(self._process, verdict.request_s + verdict.answer_s)
            raise StorageError(f"The storage refuses: {kind} {path}.")
        if verdict.hangs:
            scheduler.wait(FOREVER_S)
        answer: list[T] = []
        if verdict.request_lost:
            pass
        elif verdict.request_s > 0:
            scheduler.call_later(verdict.request_s, lambda: answer.append(act()))
        else:
            answer.append(act())
        if verdict.timeout_s is not None:
            _wait(self._process, verdict.timeout_s)
            return None
        _wait(self._process, verdict.request_s + verdict.answer_s)
        return answer[0]


def _wait(process: SimProcess, seconds: float) -> None:
    if seconds > 0:
        process.scheduler.wait(seconds)


if TYPE_CHECKING:

    def _(blobs: MemoryBlobs, process: SimProcess, faults: StorageFaults) -> BlobStore:
        return SimBlobStore(blobs, process, faults)
