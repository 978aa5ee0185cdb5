"""Patches that a simulated run applies to this interpreter, and undoes at its end.

Log lines go to the trace of the run. The working folder is in memory. Processes do not read the
digest of the pipelines' code from disk. Idle slots poll less often for work, because most of these
polls find nothing. These patches do not change any decision of tidegate. A run under load also has
smaller limits and slower user code (`load.py`), and a sink may have a weaker guarantee than its
declaration.
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

from tests.simulator.load import Load
from tests.simulator.pipelines import Shape
from tests.simulator.scheduler import Scheduler, SimProcess
from tidegate.dataplane.state.backend import KeyedStateBackend
from tidegate.drivers.logs import extra_of

IDLE_WAIT_S: Final = 0.08
CODE_DIGEST: Final = "simulated"
CRASHES: Final = 0.5
"""Share of the records at which user code raises while it crashes."""
KEYED_STATE: Final = "tidegate.dataplane.state.step.KeyedStateBackend"
_MEMORY: Final = Path("/dev/shm")


class _Line:
    """A log line that is formatted only when it is read."""

    __slots__ = ("_event", "_values")

    def __init__(self, event: str, values: Mapping[str, Any]) -> None:
        self._event, self._values = event, values

    def __str__(self) -> str:
        shown = " ".join(f"{key}={value}" for key, value in self._values.items() if value != "")
        return f"{self._event} {shown}".rstrip()


class _Handler(logging.Handler):
    """A log handler that writes log records to the trace of the run."""

    def __init__(self, scheduler: Scheduler) -> None:
        super().__init__(logging.INFO)
        self._scheduler = scheduler

    def emit(self, record: logging.LogRecord) -> None:
        fields = extra_of(record)
        fields.pop("traceback", None)
        self._scheduler.record_event("| %s", _Line(record.getMessage(), fields))


@contextlib.contextmanager
def patch_guarantees(shape: Shape) -> Iterator[None]:
    """Give the pipeline's sinks the guarantees of the run: at least once for the plain sinks."""
    with contextlib.ExitStack() as stack:
        for sink in shape.at_least_once_sinks():
            stack.enter_context(patch.object(sink, "guarantee", "at_least_once"))
        yield


class Salts:
    """A random text for each process and for each run of a task in it.

    A pipeline adds it to keys, so that each run of a task sends its records to other subtasks.
    """

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._rng = scheduler.random_for("salts")
        self._salts: dict[int, str] = {}
        """The salt of each process, by pid."""

    def renew(self, process: SimProcess) -> None:
        """Drop the salt of a process, because another run of a task begins in it."""
        self._salts.pop(process.pid, None)

    def present(self) -> str:
        """Return the salt of the running process."""
        pid = self._scheduler.running().process.pid
        if pid not in self._salts:
            self._salts[pid] = self._rng.randbytes(2).hex()
        return self._salts[pid]


@contextlib.contextmanager
def patch_salt(salts: Salts) -> Iterator[None]:
    """Give a salt to the pipelines that ask for one."""
    with patch("tests.simulator.pipelines.salt", salts.present):
        yield


@contextlib.contextmanager
def patch_connect(scheduler: Scheduler, failing: tuple[float, float] | None) -> Iterator[None]:
    """Let user code fail to connect between two virtual times."""

    def connect() -> None:
        if failing is not None and failing[0] <= scheduler.now < failing[1]:
            raise ConnectionError("the service is down")

    with patch("tests.simulator.pipelines.connect", connect):
        yield


@contextlib.contextmanager
def patch_load(
    scheduler: Scheduler, load: Load, crashing: tuple[float, float] | None
) -> Iterator[None]:
    """Apply the limits of a load and its virtual time for each record.

    Between the two times of `crashing`, user code raises at a share of the records.
    """
    rng, crashes = scheduler.random_for("work"), scheduler.random_for("crashes")

    def work() -> None:
        crashes_now = crashing is not None and crashing[0] <= scheduler.now < crashing[1]
        if crashes_now and crashes.random() < CRASHES:
            raise ValueError("the service has given nonsense")
        if load.work_s:
            scheduler.wait(2 * load.work_s * rng.random())

    with contextlib.ExitStack() as stack:
        for name, size in load.limits.items():
            stack.enter_context(patch(name, size))
        if load.cache_entries is not None:
            stack.enter_context(patch(KEYED_STATE, partial(_with_cache, load.cache_entries)))
        stack.enter_context(patch("tests.simulator.pipelines.work", work))
        yield


def _with_cache(entries: int, *given: Any, **more: Any) -> KeyedStateBackend:
    """Return a keyed state with a smaller cache than users may set."""
    return KeyedStateBackend(*given, **{**more, "cache_entries": entries})


@contextlib.contextmanager
def apply_patches(scheduler: Scheduler) -> Iterator[Path]:
    """Apply the patches of every run, and yield its working folder."""
    path = list(sys.path)
    root = logging.getLogger("tidegate")
    level, handlers, propagate = root.level, root.handlers[:], root.propagate
    with (
        tempfile.TemporaryDirectory(
            prefix="tidegate-sim-", dir=_MEMORY if _MEMORY.is_dir() else None
        ) as folder,
        patch("tidegate.api.code.rebuild.code_digest", lambda _: CODE_DIGEST),
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
