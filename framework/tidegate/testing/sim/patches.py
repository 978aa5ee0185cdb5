"""What a simulated run changes in this interpreter while it lasts, and puts back afterwards.

Logs become part of the story; the state folder lies in memory; the digest of the pipelines' code is
not read from disk anew by every process; idle slots look less often for work that nobody can have
given them. None of it decides anything. A run under load has smaller limits and slower user code
besides (`load.py`), and a sink may promise less than its declaration says.
"""

from __future__ import annotations

import contextlib
import logging
import sys
import tempfile
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Final
from unittest.mock import patch

from tidegate.dataplane.state.backend import KeyedStateBackend
from tidegate.drivers.logs import extra_of
from tidegate.testing.sim.load import Load
from tidegate.testing.sim.pipelines import Shape
from tidegate.testing.sim.scheduler import Scheduler, SimProcess

IDLE_WAIT_S: Final = 0.08
CODE_DIGEST: Final = "simulated"
CRASHES: Final = 0.5
"""Of the records that come while user code crashes, those at which it does."""
KEYED_STATE: Final = "tidegate.dataplane.state.step.KeyedStateBackend"
_MEMORY: Final = Path("/dev/shm")  # noqa: S108 - a folder of our own is made in it


class _Line:
    """A log line, put into words when it is read."""

    __slots__ = ("_event", "_values")

    def __init__(self, event: str, values: Mapping[str, Any]) -> None:
        self._event, self._values = event, values

    def __str__(self) -> str:
        shown = " ".join(f"{key}={value}" for key, value in self._values.items() if value != "")
        return f"{self._event} {shown}".rstrip()


class _Handler(logging.Handler):
    """What is logged, into the story."""

    def __init__(self, scheduler: Scheduler) -> None:
        super().__init__(logging.INFO)
        self._scheduler = scheduler

    def emit(self, record: logging.LogRecord) -> None:
        said = extra_of(record)
        said.pop("traceback", None)
        self._scheduler.tell("| %s", _Line(record.getMessage(), said))


@contextlib.contextmanager
def declared(shape: Shape) -> Iterator[None]:
    """Its pipeline, with the guarantees of the run."""
    with contextlib.ExitStack() as stack:
        for sink in shape.plain_sinks():
            stack.enter_context(patch.object(sink, "guarantee", "at_least_once"))
        yield


class Salts:
    """What no other process has, and no other run of a task: its records go elsewhere each time."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._chance = scheduler.random_for("salts")
        self._salts: dict[int, str] = {}
        """By pid."""

    def renew(self, process: SimProcess) -> None:
        """Another run of a task begins in a process."""
        self._salts.pop(process.pid, None)

    def present(self) -> str:
        """That of the process that runs."""
        pid = self._scheduler.running().process.pid
        if pid not in self._salts:
            self._salts[pid] = self._chance.randbytes(2).hex()
        return self._salts[pid]


@contextlib.contextmanager
def scattering(salts: Salts) -> Iterator[None]:
    """Pipelines that ask for a salt get one."""
    with patch("tidegate.testing.sim.pipelines.salt", salts.present):
        yield


@contextlib.contextmanager
def opening(scheduler: Scheduler, failing: tuple[float, float] | None) -> Iterator[None]:
    """User code cannot connect from one time to another."""

    def connect() -> None:
        if failing is not None and failing[0] <= scheduler.now < failing[1]:
            raise ConnectionError("the service is down")

    with patch("tidegate.testing.sim.pipelines.connect", connect):
        yield


@contextlib.contextmanager
def loaded(
    scheduler: Scheduler, load: Load, crashing: tuple[float, float] | None
) -> Iterator[None]:
    """The limits of a load, what a record costs, and from when to when user code raises at some."""
    chance, crashes = scheduler.random_for("work"), scheduler.random_for("crashes")

    def work() -> None:
        crashes_now = crashing is not None and crashing[0] <= scheduler.now < crashing[1]
        if crashes_now and crashes.random() < CRASHES:
            raise ValueError("the service has given nonsense")
        if load.work_s:
            scheduler.wait(2 * load.work_s * chance.random())

    with contextlib.ExitStack() as stack:
        for name, size in load.limits.items():
            stack.enter_context(patch(name, size))
        if load.cache_entries is not None:
            stack.enter_context(patch(KEYED_STATE, partial(_with_cache, load.cache_entries)))
        stack.enter_context(patch("tidegate.testing.sim.pipelines.work", work))
        yield


def _with_cache(entries: int, *given: Any, **more: Any) -> KeyedStateBackend:
    """A keyed state with a cache that is smaller than users may set."""
    return KeyedStateBackend(*given, **{**more, "cache_entries": entries})


@contextlib.contextmanager
def surroundings(scheduler: Scheduler) -> Iterator[Path]:
    """The working folder of the run."""
    path = list(sys.path)
    root = logging.getLogger("tidegate")
    level, handlers, propagate = root.level, root.handlers[:], root.propagate
    with (
        tempfile.TemporaryDirectory(
            prefix="tidegate-sim-", dir=_MEMORY if _MEMORY.is_dir() else None
        ) as folder,
        patch("tidegate.api.rebuild.code_digest", lambda _: CODE_DIGEST),
        patch("tidegate.slot.idle_wait.UNNOTICEABLE_S", IDLE_WAIT_S),
    ):
        root.handlers[:] = [_Handler(scheduler)]
        root.setLevel(logging.INFO)
        root.propagate = False
        try:
            yield Path(folder)
        finally:
            root.handlers[:], root.propagate = handlers, propagate
            root.setLevel(level)
            sys.path[:] = path
