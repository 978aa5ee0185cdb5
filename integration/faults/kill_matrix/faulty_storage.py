"""Wraps a checkpoint storage so that it is slow, fails, is full, or hides the outcome of a write.

It wraps the real storage in the processes of a cluster. A file says which calls are affected, and
the test rewrites this file while the job runs. Every affected call is logged, because a fault that
affects no call proves nothing. A rule with `times` affects this number of calls in all processes
together.

A rule acts before or after the real call:

    slow       The call waits, and is then made.
    fail       StorageError is raised, as by the local store with a failing disk. The call is
               not made.
    full       The named disk is filled to the last byte, and the call is made. The kernel refuses
               the write.
    silent     A create is not made, and the answer is that the outcome is unknown.
    unheard    A create is made, and the answer is that the outcome is unknown.
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
"""Environment variable: folder of the rules and of the log of affected calls. Without it, no rule
is applied.
"""
FILLER: Final = "filler"

Does = Literal["slow", "fail", "full", "silent", "unheard"]


class Rule(msgspec.Struct, frozen=True, kw_only=True):
    """A fault, and the calls that it affects."""

    does: Does
    call: str = ""
    """Name of a method of BlobStore. Empty for every method."""
    path: str = ""
    """A pattern that is searched in the object's path. The path of local state is `local state`."""
    role: str = ""
    """The role `slot`, `jobmaster` or `jobmanager`. Empty for every role."""
    seconds: float = 0.0
    times: int = 0
    """Number of calls that the rule affects, in all processes together. 0 means every call."""
    disk: str = ""


class Rules:
    """The test's access to the rules, and to the log of the calls that they have affected."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder, self._number = folder, 0
        self.set()

    @property
    def environment(self) -> dict[str, str]:
        """Environment variables for the processes of the cluster."""
        return {FOLDER: str(self._folder)}

    def set(self, *rules: Rule) -> None:
        """Replace all rules by these."""
        self._number += 1
        new = self._folder / "rules.new"
        new.write_bytes(msgspec.json.encode({"number": self._number, "rules": list(rules)}))
        new.replace(self._folder / "rules.json")

    def met(self) -> list[dict[str, Any]]:
        """Return the calls that were affected since the last `set`, each with role, pid, call, path
        and fault.
        """
        try:
            lines = (self._folder / "met").read_text().splitlines()
        except FileNotFoundError:
            return []
        entries: list[dict[str, Any]] = [json.loads(line) for line in lines]
        return [entry for entry in entries if entry["number"] == self._number]


def fill(disk: Path) -> None:
    """Fill a (small) disk completely. `make_room` frees the space again."""
    for size in (1 << 20, 1 << 12, 1):
        try:
            with (disk / FILLER).open("ab", buffering=0) as filler:
                while filler.write(b"0" * size) == size:
                    pass
        except OSError:
            continue


def make_room(disk: Path) -> None:
    """Free the space that `fill` has taken."""
    (disk / FILLER).unlink(missing_ok=True)


class FailingStore:
    """The real store of a role, with the rules in front of it."""

    def __init__(self, real: Any, role: str) -> None:
        self._real, self._role = real, role
        self._folder = Path(os.environ[FOLDER])

    def create(self, path: str, data: bytes) -> CreateResult:
        """Create an object as the port requires. A StorageError means that nothing was written."""
        rule = self.apply_rule("create", path)
        if rule is not None and rule.does == "silent":
            return CreateResult.UNKNOWN
        created = self._real.create(path, data)
        return CreateResult.UNKNOWN if rule is not None and rule.does == "unheard" else created

    def __getattr__(self, name: str) -> Any:
        real = getattr(self._real, name)
        if name not in {"put", "put_file", "get", "get_file", "list", "delete"}:
            return real

        def call(path: str, *others: Any) -> Any:
            self.apply_rule(name, path)
            return real(path, *others)

        return call

    def apply_rule(self, call: str, path: str) -> Rule | None:
        """Apply the first rule for this call, and return it. `create` itself applies `silent` and
        `unheard`.
        """
        given = msgspec.json.decode((self._folder / "rules.json").read_bytes())
        for index, each in enumerate(given["rules"]):
            rule = msgspec.convert(each, Rule)
            about = rule.call in {"", call} and rule.role in {"", self._role}
            if not (about and re.search(rule.path, path)):
                continue
            if rule.times and not self._counts(given["number"], index, rule.times):
                continue
            self._note(given["number"], rule, call, path)
            self._apply_fault(rule, call, path)
            return rule
        return None

    def _apply_fault(self, rule: Rule, call: str, path: str) -> None:
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
        """Return whether this call is one of the first `times` calls in all processes."""
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
    """A slot's store of local state. Rules reach it by the path `local state`."""

    def __init__(self, real: KeyValueStore, store: FailingStore) -> None:
        self._real, self._store = real, store

    def __getattr__(self, name: str) -> Any:
        real = getattr(self._real, name)
        if name not in {"get_many", "write", "checkpoint"}:
            return real

        def call(*arguments: Any) -> Any:
            self._store.apply_rule(name, "local state")
            return real(*arguments)

        return call


_CLAIM: Final = os.O_CREAT | os.O_EXCL | os.O_WRONLY


def failing(real: BlobStore, role: str) -> BlobStore:
    """Return the real store, or one with rules if the environment names their folder."""
    return FailingStore(real, role) if FOLDER in os.environ else real


def slowed(real: KeyValueStore, role: str) -> KeyValueStore:
    """Return the real store of local state, or one with rules if the environment names their
    folder.
    """
    return SlowState(real, FailingStore(None, role)) if FOLDER in os.environ else real
