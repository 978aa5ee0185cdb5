"""A checkpoint storage that is slow, fails, is full, or does not say what became of a write.

Wraps the real one in the processes of a cluster. What befalls which calls stands in a file that the
test rewrites while the job runs, and every call that something befell is written down: a fault that
was never met proves nothing. A rule with `times` befalls so many calls in all processes together.

What a rule does, before or after the real call:

    slow       waits, then does it
    fail       raises StorageError as the local store does for a failing disk, and does nothing
    full       fills the disk that it names to the last byte, then does it: the kernel refuses
    silent     of a create: does nothing, and answers that the outcome is unknown
    unheard    of a create: does it, and answers that the outcome is unknown
"""

from __future__ import annotations

import errno
import json
import os
import re
import time
from pathlib import Path
from typing import Any, Final, Literal

import msgspec

from tidegate.drivers.storage.local import _translated
from tidegate.ports.blobs import BlobStore, CreateResult
from tidegate.ports.kv import KeyValueStore

FOLDER: Final = "TIDEGATE_TEST_STORAGE"
"""Environment variable: folder of the rules and of what they met. Without it, nothing befalls."""
FILLER: Final = "filler"

Does = Literal["slow", "fail", "full", "silent", "unheard"]


class Rule(msgspec.Struct, frozen=True, kw_only=True):
    """What befalls which calls."""

    does: Does
    call: str = ""
    """A method of BlobStore; any without."""
    path: str = ""
    """A pattern that is searched for in the object's path; that of local state is `local state`."""
    role: str = ""
    """`slot`, `jobmaster` or `jobmanager`; any without."""
    seconds: float = 0.0
    times: int = 0
    """As often as it is met, without."""
    disk: str = ""


class Rules:
    """The test's side: what befalls from now on, and what has."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder, self._number = folder, 0
        self.set()

    @property
    def environment(self) -> dict[str, str]:
        """For the processes of the cluster."""
        return {FOLDER: str(self._folder)}

    def set(self, *rules: Rule) -> None:
        """These from now on, and no others."""
        self._number += 1
        new = self._folder / "rules.new"
        new.write_bytes(msgspec.json.encode({"number": self._number, "rules": list(rules)}))
        new.replace(self._folder / "rules.json")

    def met(self) -> list[dict[str, Any]]:
        """What befell since the last `set`: role, pid, call, path, does."""
        try:
            lines = (self._folder / "met").read_text().splitlines()
        except FileNotFoundError:
            return []
        entries: list[dict[str, Any]] = [json.loads(line) for line in lines]
        return [entry for entry in entries if entry["number"] == self._number]


def fill(disk: Path) -> None:
    """Take all that is left of a (small) disk; `make_room` gives it back."""
    for size in (1 << 20, 1 << 12, 1):
        try:
            with (disk / FILLER).open("ab", buffering=0) as filler:
                while filler.write(b"0" * size) == size:
                    pass
        except OSError:
            continue


def make_room(disk: Path) -> None:
    """The inverse."""
    (disk / FILLER).unlink(missing_ok=True)


class FailingStore:
    """The real store of a role, with the rules in front of it."""

    def __init__(self, real: Any, role: str) -> None:
        self._real, self._role = real, role
        self._folder = Path(os.environ[FOLDER])

    def create(self, path: str, data: bytes) -> CreateResult:
        """As the port says, also that StorageError means that nothing was written."""
        rule = self.befalls("create", path)
        if rule is not None and rule.does == "silent":
            return CreateResult.UNKNOWN
        created = self._real.create(path, data)
        return CreateResult.UNKNOWN if rule is not None and rule.does == "unheard" else created

    def __getattr__(self, name: str) -> Any:
        real = getattr(self._real, name)
        if name not in {"put", "put_file", "get", "get_file", "list", "delete"}:
            return real

        def call(path: str, *others: Any) -> Any:
            self.befalls(name, path)
            return real(path, *others)

        return call

    def befalls(self, call: str, path: str) -> Rule | None:
        """Suffer the first rule that is about this call; the caller does what is its own."""
        given = msgspec.json.decode((self._folder / "rules.json").read_bytes())
        for index, each in enumerate(given["rules"]):
            rule = msgspec.convert(each, Rule)
            about = rule.call in {"", call} and rule.role in {"", self._role}
            if not (about and re.search(rule.path, path)):
                continue
            if rule.times and not self._counts(given["number"], index, rule.times):
                continue
            self._note(given["number"], rule, call, path)
            self._suffer(rule, call, path)
            return rule
        return None

    def _suffer(self, rule: Rule, call: str, path: str) -> None:
        match rule.does:
            case "slow":
                time.sleep(rule.seconds)
            case "fail":
                raise _translated(OSError(errno.EIO, os.strerror(errno.EIO)), call, Path(path))
            case "full":
                fill(Path(rule.disk))
            case "silent" | "unheard":
                time.sleep(rule.seconds)

    def _counts(self, number: int, index: int, times: int) -> bool:
        """Whether this is one of the first `times` calls, in all processes."""
        for count in range(times):
            try:
                os.close(os.open(self._folder / f"{number}-{index}-{count}", _CLAIM))
            except FileExistsError:
                continue
            return True
        return False

    def _note(self, number: int, rule: Rule, call: str, path: str) -> None:
        said = {"role": self._role, "pid": os.getpid(), "call": call, "path": path}
        line = json.dumps({"number": number, "does": rule.does, **said}) + "\n"
        met = os.open(self._folder / "met", os.O_CREAT | os.O_APPEND | os.O_WRONLY)
        os.write(met, line.encode())
        os.close(met)


class SlowState:
    """A slot's store of local state, which rules reach by the path `local state`."""

    def __init__(self, real: KeyValueStore, store: FailingStore) -> None:
        self._real, self._store = real, store

    def __getattr__(self, name: str) -> Any:
        real = getattr(self._real, name)
        if name not in {"get_many", "write", "checkpoint"}:
            return real

        def call(*arguments: Any) -> Any:
            self._store.befalls(name, "local state")
            return real(*arguments)

        return call


_CLAIM: Final = os.O_CREAT | os.O_EXCL | os.O_WRONLY


def failing(real: BlobStore, role: str) -> BlobStore:
    """The real store, or one with rules where the test has a folder for them."""
    return FailingStore(real, role) if FOLDER in os.environ else real


def slowed(real: KeyValueStore, role: str) -> KeyValueStore:
    """The same for local state."""
    return SlowState(real, FailingStore(None, role)) if FOLDER in os.environ else real
