"""Entries that tests run in Spark's Python workers, which import them by name.

Each entry plays the role of a data plane: it reads the rows of its subtask, sends frames to the
next level, and reports.
"""

from __future__ import annotations

import functools
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import msgspec

from integration.faults.kill_matrix.mains import SlotDrivers
from integration.faults.kill_points.kill_points import Plan, Traps
from tidegate.backfill.spark.executor import run_task
from tidegate.backfill.spark.levels import TaskAttempt
from tidegate.backfill.spark.rows import MARKER_ORD, FrameRow, Report
from tidegate.dataplane.engine import IO_THREADS
from tidegate.dataplane.waves.level_task import TaskHost
from tidegate.drivers.system import SystemDrivers

FRAMES_PER_CHANNEL = 40
LARGE_FRAME_BYTES = 3 << 20  # more than a batch holds


class Received(msgspec.Struct, frozen=True, order=True):
    """A row as its receiver saw it."""

    ord: int
    sender: int
    seq: int
    edge: int
    run: bytes
    frame: bytes


class Seen(msgspec.Struct, frozen=True):
    """A report's body: the rows in the order of their arrival."""

    rows: list[Received]


def exchange(
    attempt: TaskAttempt, payload: bytes, rows: Iterator[FrameRow]
) -> Iterator[FrameRow | Report]:
    """Report all rows, and send frames and a marker to every subtask in a wrong order."""
    seen = [
        Received(row.ord, row.sender, row.seq, row.edge, row.run, row.frame[:64]) for row in rows
    ]
    yield attempt.report(msgspec.msgpack.encode(Seen(seen)))
    if attempt.level + 1 < attempt.levels:
        yield from _frames_for_all(attempt)


def _frames_for_all(attempt: TaskAttempt) -> Iterator[FrameRow]:
    for receiver in reversed(range(attempt.parallelism)):
        yield FrameRow(receiver, 7, attempt.subtask, MARKER_ORD, 0, attempt.run, b"marker")
        for seq in reversed(range(FRAMES_PER_CHANNEL)):
            frame = frame_of(attempt.level, attempt.subtask, receiver, seq)
            if seq == 0 and receiver == 0:
                frame += bytes(LARGE_FRAME_BYTES)
            yield FrameRow(receiver, 7, attempt.subtask, seq // 3, seq, attempt.run, frame)


def frame_of(level: int, sender: int, receiver: int, seq: int) -> bytes:
    return f"level {level} from {sender} to {receiver} number {seq};".encode()


def killed_once(
    attempt: TaskAttempt, payload: bytes, rows: Iterator[FrameRow]
) -> Iterator[FrameRow | Report]:
    """Run `exchange`, and kill subtask 0 of level 1 in its first attempt, half-way."""
    for each in exchange(attempt, payload, rows):
        yield each
        if (attempt.level, attempt.subtask, attempt.attempt_number) == (1, 0, 0):
            os.kill(os.getpid(), signal.SIGKILL)


def raises(
    attempt: TaskAttempt, payload: bytes, rows: Iterator[FrameRow]
) -> Iterator[FrameRow | Report]:
    """Fail in each attempt."""
    yield from ()
    raise ValueError(payload.decode())


def reports_unread(
    attempt: TaskAttempt, payload: bytes, rows: Iterator[FrameRow]
) -> Iterator[FrameRow | Report]:
    """Send and report, and read no input, as a level does after an error."""
    for number in range(3):
        yield attempt.report(str(number).encode())
    if attempt.level + 1 < attempt.levels:
        yield from _frames_for_all(attempt)


def empty(
    attempt: TaskAttempt, payload: bytes, rows: Iterator[FrameRow]
) -> Iterator[FrameRow | Report]:
    """Report, and send nothing."""
    yield attempt.report(payload)


def sleeps(
    attempt: TaskAttempt, payload: bytes, rows: Iterator[FrameRow]
) -> Iterator[FrameRow | Report]:
    """Create a file in the folder `payload`, which shows that the task runs, then sleep for ten
    minutes.
    """
    (Path(payload.decode()) / f"{os.getpid()}.running").touch()
    time.sleep(600)
    yield attempt.report(b"")


RUNS = "TIDEGATE_TEST_RUNS"
"""Environment variable: a folder in which each run of a wave's task leaves a file when it begins.
Without it, no file is written.
"""


def trapped_wave_task(
    attempt: TaskAttempt, payload: bytes, rows: Iterator[FrameRow]
) -> Iterator[FrameRow | Report]:
    """Run a task of a backfill, with the traps of the environment in its drivers."""
    if RUNS in os.environ:
        TaskRun.of(attempt).write(Path(os.environ[RUNS]))
    host, traps = _trapped_host()
    for sent in run_task(attempt, payload, rows, host):
        yield sent
        if isinstance(sent, Report):
            traps.reached("slot.reported")


@functools.cache
def _trapped_host() -> tuple[TaskHost, Traps]:
    real, traps = SystemDrivers(), Traps(Plan.from_environment())
    io = real.threads.pool(IO_THREADS, name="io")
    return TaskHost(drivers=SlotDrivers(real), io=io), traps


class TaskRun(NamedTuple):
    """One run of a task, as the name of a file gives it.

    Spark keeps the id of a stage when it repeats the stage, and when it runs a copy of a slow task.
    """

    stage: int
    level: int
    subtask: int
    run: int
    """The `taskAttemptId` of Spark."""

    @classmethod
    def of(cls, attempt: TaskAttempt) -> TaskRun:
        """Return the run of a task that runs now."""
        return cls(attempt.stage_id, attempt.level, attempt.subtask, attempt.task_attempt_id)

    def write(self, folder: Path) -> None:
        """Create the file of this run."""
        (folder / "-".join(map(str, self))).touch()


def task_runs(folder: Path) -> dict[tuple[int, int, int], list[int]]:
    """Return all runs that have begun, by stage, level and subtask."""
    found: dict[tuple[int, int, int], list[int]] = {}
    for path in folder.iterdir():
        run = TaskRun(*map(int, path.name.split("-")))
        found.setdefault((run.stage, run.level, run.subtask), []).append(run.run)
    return found
