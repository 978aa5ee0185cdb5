"""Runs one Spark job of several levels. Tasks of a level send frames to tasks of the next level.

`run_levels` builds one linear plan. Each level is a `mapInArrow` with exactly P tasks. Between two
levels, `repartitionById` sends each row to the partition with the number of its receiver, and a
sort puts each partition's rows in order. One `collect` runs the job and returns the reports of all
levels.

A task runs an entry: a function that the Python worker imports by the name of its module. The entry
gets a `TaskAttempt`, the payload and its rows, and yields `FrameRow`s and `Report`s. An exception
of the entry counts as a crash, which Spark retries. So an entry must report an error that a retry
cannot solve.

Invariant: task i of a level reads exactly the rows whose receiver is i. Every task checks the
receivers of its rows, because Spark may rewrite the plan (AQE merges small partitions). That would
break the invariant without an error.
"""

from __future__ import annotations

import importlib
import os
import uuid
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Final

from tidegate.backfill.spark.apart import run_in_thread
from tidegate.backfill.spark.installation import ignore_pandas_version
from tidegate.backfill.spark.rows import (
    REPORT_ORD,
    SCHEMA,
    SORT_COLUMNS,
    FrameRow,
    Report,
    ReportRow,
    read_report,
    read_rows,
    report_row,
    write_batches,
)
from tidegate.backfill.spark.session import BackfillSession
from tidegate.backfill.spark.spark_errors import spark_error
from tidegate.errors import check
from tidegate.message_text import counted

RUN_ID_BYTES: Final = 16

Entry = Callable[["TaskAttempt", bytes, Iterator[FrameRow]], Iterator["FrameRow | Report"]]
"""The function that a task runs. It need not read all of its rows. Level 0 receives no rows."""


@dataclass(slots=True)
class TaskAttempt:
    """The identity of one run of a task. Two runs differ in `task_attempt_id` and in `run`."""

    level: int
    levels: int
    parallelism: int
    subtask: int
    """Number of the task in its level, 0 to P - 1. It is equal to Spark's partition id."""
    task_attempt_id: int
    """Spark's id of this run. It is unique in one SparkContext, also for retried stages and for
    speculative copies."""
    attempt_number: int
    """Number of earlier starts of this task. A retried stage counts from 0 again."""
    stage_id: int
    run: bytes
    """Random bytes that this run of the task has drawn."""
    reports: int = 0
    """Number of reports that this run has made."""

    def report(self, body: bytes) -> Report:
        """Return a report of this run, for the entry to yield."""
        number = self.reports
        self.reports += 1
        return Report(
            level=self.level,
            subtask=self.subtask,
            number=number,
            task_attempt_id=self.task_attempt_id,
            attempt_number=self.attempt_number,
            stage_id=self.stage_id,
            run=self.run,
            body=body,
        )


@dataclass(frozen=True, slots=True)
class LevelTask:
    """The function that Spark calls in its Python workers, once per task of a level.

    Spark pickles the name of this class and the fields of an instance, but no code.
    """

    level: int
    levels: int
    parallelism: int
    entry: str
    payload: bytes

    def __call__(self, batches: Iterator[Any]) -> Iterator[Any]:
        """Run the entry over the batches of one partition."""
        from pyspark import TaskContext

        context = TaskContext.get()
        attempt = TaskAttempt(
            level=self.level,
            levels=self.levels,
            parallelism=self.parallelism,
            subtask=context.partitionId(),
            task_attempt_id=context.taskAttemptId(),
            attempt_number=context.attemptNumber(),
            stage_id=context.stageId(),
            run=os.urandom(RUN_ID_BYTES),
        )
        yield from write_batches(self.run(attempt, batches))

    def run(self, attempt: TaskAttempt, batches: Iterator[Any]) -> Iterator[FrameRow | ReportRow]:
        """Run the entry. Yield its rows, then the reports of earlier levels."""
        if self.level == 0:
            _check_source(attempt, batches)
            rows = _PartitionRows(attempt, iter(()))
        else:
            rows = _PartitionRows(attempt, read_rows(batches))
        for row in load_entry(self.entry)(attempt, self.payload, rows.frames()):
            if isinstance(row, Report):
                yield report_row(row)
            else:
                _check_sent(attempt, row)
                yield row
        yield from rows.reports()


class _PartitionRows:
    """A partition's rows: first the frames for the entry, then the reports of earlier levels."""

    def __init__(self, attempt: TaskAttempt, rows: Iterator[FrameRow | ReportRow]) -> None:
        self._attempt, self._rows = attempt, rows
        self._first_report: ReportRow | None = None

    def frames(self) -> Iterator[FrameRow]:
        for row in self._received():
            if isinstance(row, ReportRow):
                self._first_report = row
                return
            yield row

    def reports(self) -> Iterator[ReportRow]:
        """Forward all reports, also those behind frames that the entry did not read."""
        if self._first_report is not None:
            yield self._first_report
        seen = self._first_report is not None
        for row in self._received():
            if isinstance(row, ReportRow):
                seen = True
                yield row
            else:
                check(not seen, f"{_name(self._attempt)} got a frame behind a report")

    def _received(self) -> Iterator[FrameRow | ReportRow]:
        for row in self._rows:
            check(
                row.receiver == self._attempt.subtask,
                f"{_name(self._attempt)} got a row for the subtask {row.receiver}",
            )
            yield row


def _check_source(attempt: TaskAttempt, batches: Iterator[Any]) -> None:
    """Check that the source has one row per partition, which holds the partition's number."""
    numbers = [number for batch in batches for number in batch.column(0).to_pylist()]
    check(numbers == [attempt.subtask], f"{_name(attempt)} has the source rows {numbers}")


def _check_sent(attempt: TaskAttempt, row: FrameRow) -> None:
    check(attempt.level + 1 < attempt.levels, f"{_name(attempt)} sends frames from the last level")
    check(
        0 <= row.receiver < attempt.parallelism,
        f"{_name(attempt)} sends a frame to the subtask {row.receiver}",
    )
    check(row.ord < REPORT_ORD, f"{_name(attempt)} sends a frame that sorts as a report")


def _name(attempt: TaskAttempt) -> str:
    return f"subtask {attempt.subtask} of {attempt.parallelism} in level {attempt.level}"


def load_entry(name: str) -> Entry:
    """Import the entry that `module:function` names.

    Raises:
        InternalError: the name does not have this form, or the module has no such function.
    """
    module, _, function = name.partition(":")
    check(module and function, f"{name!r} does not name an entry as module:function")
    entry: Entry | None = getattr(importlib.import_module(module), function, None)
    check(callable(entry), f"the module {module} has no function {function}")
    assert entry is not None  # noqa: S101  (for mypy; `check` has already checked it)
    return entry


def run_levels(
    session: BackfillSession, parallelism: int, levels: int, entry: str, payload: bytes
) -> list[Report]:
    """Run one Spark job and return the reports of all levels, by level, subtask and number.

    The calling thread waits and stays free for signals. If the wait ends with an exception
    (Ctrl-C), the Spark job is cancelled before this function raises it.

    Args:
        session: a session of `start_session` or `adopt_session`.
        parallelism: P, the number of tasks of each level.
        levels: the number of levels, at least 1. The last one sends no frames.
        entry: `module:function` of an `Entry`. The Python workers must be able to import it.
        payload: the bytes that every task gets.

    Raises:
        SparkError: a task failed more often than Spark retries it.
        SparkLostError: the JVM of the session has ended.
    """
    check(
        parallelism >= 1 and levels >= 1,
        f"a job of {counted(levels, 'level')}, each with {counted(parallelism, 'task')}",
    )
    spark = session.spark
    job_id = f"tidegate-{uuid.uuid4().hex}"
    tasks = [LevelTask(level, levels, parallelism, entry, payload) for level in range(levels)]

    def run() -> list[Any]:
        try:
            spark.sparkContext.setJobGroup(
                job_id, f"tidegate: {counted(levels, 'level')} of {counted(parallelism, 'task')}"
            )
            plan = build_plan(spark, parallelism, tasks)
            rows: list[Any] = plan.select("report").collect()
        except Exception as error:
            raise spark_error("The Spark job failed", error, spark) from error
        return rows

    def cancel() -> None:
        spark.sparkContext.cancelJobGroup(job_id)

    collected = run_in_thread(run, name="spark-job", on_interrupt=cancel)
    reports = [read_report(bytes(row.report)) for row in collected]
    return sorted(reports, key=lambda each: (each.level, each.subtask, each.number))


def build_plan(spark: Any, parallelism: int, tasks: Iterable[LevelTask]) -> Any:
    """Return the DataFrame of a job. It is a source with one row per partition, and all levels."""
    check(
        spark.conf.get("spark.sql.adaptive.enabled") == "false",
        "adaptive query execution is on, which may merge the partitions of a level",
    )
    ignore_pandas_version()
    frames = spark.range(0, parallelism, 1, parallelism)
    for task in tasks:
        if task.level > 0:
            frames = frames.repartitionById(parallelism, "receiver")
            frames = frames.sortWithinPartitions(*SORT_COLUMNS)
        frames = frames.mapInArrow(task, SCHEMA)
    return frames
