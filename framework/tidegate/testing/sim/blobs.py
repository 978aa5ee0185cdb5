"""The checkpoint storage of a simulated cluster: objects in memory, and a hook for faults.

`MemoryBlobs` holds what is stored; `SimBlobStore` is one process's way to it. A request arrives at
its time whatever has become of its sender by then, so a killed process leaves writes behind that
still take effect; an answer may be lost, and the sender then knows nothing. What takes effect is
always whole: the port promises that of every store. Nothing here decides by chance.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol, TypeVar

from tidegate.drivers.storage.probing import prove_create_if_absent
from tidegate.errors import StorageError, StorageGoneError
from tidegate.ports.blobs import BlobStore, Created
from tidegate.testing.sim.scheduler import SimProcess
from tidegate.testing.sim.threads import SimEntropy

T = TypeVar("T")


class MemoryBlobs:
    """What is stored. `watch` is told of each `create` that took effect, and by which process."""

    def __init__(self) -> None:
        self.objects: dict[str, bytes] = {}
        self.identity = "simulated"
        """Another value is another storage behind the same path; a faults' hook."""
        self.watch: Callable[[SimProcess, str, bytes], None] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class StorageVerdict:
    """What becomes of one request; durations in seconds."""

    request_s: float = 0.0
    """Until it arrives."""
    answer_s: float = 0.0
    """From then on, until the sender has the answer."""
    fails: bool = False
    """The store refuses: nothing is written, and the sender knows so."""
    given_up_s: float | None = None
    """After so long the sender knows nothing; the request takes effect at its time all the same."""
    request_lost: bool = False
    """It never arrives; `given_up_s` says when the sender stops to wait."""
    hangs: bool = False
    """The call never returns, and its request never arrives."""


FOREVER_S: Final = 1e9
"""Longer than any simulation."""

AT_ONCE: Final = StorageVerdict()


class StorageFaults(Protocol):
    """Decides what becomes of each request; `kind` is the port's method."""

    def of_storage(self, process: SimProcess, kind: str, path: str) -> StorageVerdict: ...


class SimBlobStore:
    """`ports.blobs.BlobStore` of one process."""

    def __init__(self, blobs: MemoryBlobs, process: SimProcess, faults: StorageFaults) -> None:
        self._blobs, self._process, self._faults = blobs, process, faults
        self._identity = ""

    def create(self, path: str, data: bytes) -> Created:
        """See BlobStore."""

        def act() -> Created:
            if path in self._blobs.objects:
                return Created.EXISTS
            self._blobs.objects[path] = data
            if self._blobs.watch is not None:
                self._blobs.watch(self._process, path, data)
            return Created.CREATED

        self.confirm()
        answer = self._ask("create", path, act)
        try:
            self.confirm()
        except StorageGoneError:
            return Created.UNKNOWN
        return Created.UNKNOWN if answer is None else answer

    def put(self, path: str, data: bytes) -> None:
        self._certainly("put", path, lambda: self._put(path, data))

    def put_file(self, path: str, source: Path) -> None:
        try:
            data = source.read_bytes()
        except OSError as error:
            raise StorageError(f"cannot write {path}: {source}: {error.strerror}") from error
        self._certainly("put_file", path, lambda: self._put(path, data))

    def get(self, path: str) -> bytes | None:
        return self._certainly("get", path, lambda: self._blobs.objects.get(path))

    def get_file(self, path: str, target: Path) -> bool:
        data = self.get(path)
        if data is None:
            return False
        try:
            target.write_bytes(data)
        except OSError as error:
            raise StorageError(f"cannot read {path} into {target}: {error.strerror}") from error
        return True

    def list(self, prefix: str) -> list[str]:
        folder = f"{prefix}/"
        return self._certainly(
            "list",
            prefix,
            lambda: sorted(path for path in self._blobs.objects if path.startswith(folder)),
        )

    def delete(self, path: str) -> None:
        self._certainly("delete", path, lambda: self._delete(path))

    def probe(self, *, allow_network_filesystem: bool = False) -> None:
        del allow_network_filesystem
        nonce = SimEntropy(self._process).token_hex(8)
        prove_create_if_absent(self, "of the simulation", nonce)

    def identify(self) -> str:
        self._identity = self._blobs.identity
        return self._identity

    def bind(self, identity: str) -> None:
        self._identity = identity

    def confirm(self) -> None:
        if self._identity not in {"", self._blobs.identity}:
            raise StorageGoneError("the storage is gone, or another one is there")

    def _put(self, path: str, data: bytes) -> None:
        self._blobs.objects[path] = data

    def _delete(self, path: str) -> None:
        self._blobs.objects.pop(path, None)

    def _certainly(self, kind: str, path: str, act: Callable[[], T]) -> T:
        """As `_ask`, where an unknown outcome is an error."""
        self.confirm()
        answer = self._ask(kind, path, lambda: (act(),))
        self.confirm()
        if answer is None:
            raise StorageError(f"the storage does not answer: {kind} {path}")
        return answer[0]

    def _ask(self, kind: str, path: str, act: Callable[[], T]) -> T | None:
        """Send a request and wait for the answer; None where there is none. StorageError."""
        scheduler = self._process.scheduler
        scheduler.point()
        verdict = self._faults.of_storage(self._process, kind, path)
        if verdict.fails:
            _wait(self._process, verdict.request_s + verdict.answer_s)
            raise StorageError(f"the storage refuses: {kind} {path}")
        if verdict.hangs:
            scheduler.wait(FOREVER_S)
        answer: list[T] = []
        if verdict.request_lost:
            pass
        elif verdict.request_s > 0:
            scheduler.call_later(verdict.request_s, lambda: answer.append(act()))
        else:
            answer.append(act())
        if verdict.given_up_s is not None:
            _wait(self._process, verdict.given_up_s)
            return None
        _wait(self._process, verdict.request_s + verdict.answer_s)
        return answer[0]


def _wait(process: SimProcess, seconds: float) -> None:
    if seconds > 0:
        process.scheduler.wait(seconds)


if TYPE_CHECKING:

    def _(blobs: MemoryBlobs, process: SimProcess, faults: StorageFaults) -> BlobStore:
        return SimBlobStore(blobs, process, faults)
