"""Levels of tasks on a real Spark: the exchange keeps every frame and its order, and tasks that
crash are repeated.

Four subtasks share two cores, so the tasks of a level run in two rounds.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import Any

import msgspec
import pytest

from integration.spark import entries
from tidegate.backfill.spark.levels import LevelTask, TaskAttempt, build_plan, run_levels
from tidegate.backfill.spark.rows import (
    MARKER_ORD,
    SCHEMA,
    SORT_COLUMNS,
    FrameRow,
    Report,
    read_rows,
    report_row,
    write_batches,
)
from tidegate.backfill.spark.session import BackfillSession
from tidegate.errors import InternalError, SparkError

P = 4
LEVELS = 3
RUN = b"r" * 16

pytestmark = pytest.mark.timeout(600)


def entry(name: str) -> str:
    return f"integration.spark.entries:{name}"


def seen(report: Report) -> list[entries.Received]:
    return msgspec.msgpack.decode(report.body, type=entries.Seen).rows


def expected(runs: dict[tuple[int, int], bytes], level: int, receiver: int) -> list[Any]:
    """Return the rows that a receiver of a level must get, in their order."""
    rows = []
    for sender, seq in product(range(P), range(entries.FRAMES_PER_CHANNEL)):
        frame = entries.frame_of(level - 1, sender, receiver, seq)
        if seq == 0 and receiver == 0:
            frame += bytes(64)
        run = runs[level - 1, sender]
        rows.append(entries.Received(seq // 3, sender, seq, 7, run, frame[:64]))
    rows += [
        entries.Received(MARKER_ORD, sender, 0, 7, runs[level - 1, sender], b"marker")
        for sender in range(P)
    ]
    return sorted(rows, key=lambda row: (row.ord, row.sender, row.seq))


def check_exchange(reports: list[Report]) -> None:
    assert [(each.level, each.subtask, each.number) for each in reports] == [
        (level, subtask, 0) for level, subtask in product(range(LEVELS), range(P))
    ]
    runs = {(each.level, each.subtask): each.run for each in reports}
    for each in reports:
        want = expected(runs, each.level, each.subtask) if each.level else []
        assert seen(each) == want


def test_every_level_gets_every_frame_once_and_in_order(session: BackfillSession) -> None:
    reports = run_levels(session, P, LEVELS, entry("exchange"), b"")
    check_exchange(reports)
    assert {each.attempt_number for each in reports} == {0}
    assert len({each.task_attempt_id for each in reports}) == P * LEVELS
    assert len({each.run for each in reports}) == P * LEVELS


def test_task_of_a_killed_worker_is_retried_by_another_task_attempt(
    session: BackfillSession,
) -> None:
    reports = run_levels(session, P, LEVELS, entry("killed_once"), b"")
    check_exchange(reports)
    again = [each for each in reports if each.attempt_number > 0]
    # Spark may lose a neighbour with it, so `again` holds at least this one.
    assert (1, 0) in [(each.level, each.subtask) for each in again]
    assert len({each.task_attempt_id for each in reports}) == P * LEVELS
    [killed] = [each for each in again if (each.level, each.subtask) == (1, 0)]
    first_ids = [each.task_attempt_id for each in reports if each.level == 1 and each != killed]
    assert killed.task_attempt_id > min(first_ids)


def test_reports_go_past_levels_that_read_nothing(session: BackfillSession) -> None:
    reports = run_levels(session, P, LEVELS, entry("reports_unread"), b"")
    assert [(each.level, each.subtask, each.body) for each in reports] == [
        (level, subtask, str(number).encode())
        for level, subtask, number in product(range(LEVELS), range(P), range(3))
    ]


def test_spark_job_runs_with_one_subtask_and_one_level(session: BackfillSession) -> None:
    [report] = run_levels(session, 1, 1, entry("empty"), b"body")
    assert report.body == b"body"


def test_a_task_that_fails_each_time_fails_the_job_in_one_line(session: BackfillSession) -> None:
    with pytest.raises(SparkError) as caught:
        run_levels(session, 2, 1, entry("raises"), b"no such luck")
    assert str(caught.value) == "The Spark job failed: ValueError: no such luck."


def test_task_refuses_rows_of_partitions_that_spark_has_merged(session: BackfillSession) -> None:
    tasks = [LevelTask(level, 2, P, entry("exchange"), b"") for level in range(2)]
    sent = build_plan(session.spark, P, tasks[:1])
    merged = sent.repartitionById(P, "receiver").coalesce(2).sortWithinPartitions(*SORT_COLUMNS)
    merged = merged.mapInArrow(tasks[1], SCHEMA)
    with pytest.raises(Exception, match="in level 1 got a row for the subtask"):
        merged.collect()


def test_session_with_adaptive_query_execution_is_refused(session: BackfillSession) -> None:
    adaptive = session.spark.newSession()
    adaptive.conf.set("spark.sql.adaptive.enabled", "true")
    with pytest.raises(InternalError, match="adaptive query execution is on"):
        run_levels(BackfillSession(adaptive, owned=False), P, 1, entry("empty"), b"")


# --- one task, without Spark ---------------------------------------------------------------------


def attempt(level: int = 1, subtask: int = 1) -> TaskAttempt:
    return TaskAttempt(
        level=level,
        levels=3,
        parallelism=P,
        subtask=subtask,
        task_attempt_id=5,
        attempt_number=0,
        stage_id=2,
        run=RUN,
    )


def frame(
    receiver: int = 1,
    sender: int = 1,
    ord: int = 0,  # noqa: A002
    run: bytes = RUN,
) -> FrameRow:
    return FrameRow(receiver, 0, sender, ord, 0, run, b"frame")


SENT: list[Any] = []
"""The rows that the entry `sends` yields."""


def sends(attempt: TaskAttempt, payload: bytes, rows: Iterator[FrameRow]) -> Iterator[FrameRow]:
    yield from SENT


def run_task(task_attempt: TaskAttempt, received: list[Any], sent: list[Any]) -> list[Any]:
    SENT[:] = sent
    task = LevelTask(task_attempt.level, 3, P, f"{__name__}:sends", b"")
    return list(task.run(task_attempt, write_batches(received)))


def test_rows_survive_encode_and_decode_with_arrow() -> None:
    report = report_row(attempt().report(b"body"))
    rows: list[Any] = [frame(), frame(receiver=3, ord=-(1 << 62)), report]
    assert list(read_rows(write_batches(rows))) == rows


def test_batches_are_bounded_in_rows_and_bytes() -> None:
    assert [batch.num_rows for batch in write_batches([frame()] * 40)] == [16, 16, 8]
    large = frame()._replace(frame=bytes(1 << 20))
    assert [batch.num_rows for batch in write_batches([large] * 3)] == [1, 1, 1]


def test_task_passes_a_report_on_after_the_frames_it_sends() -> None:
    report = report_row(attempt(level=0).report(b"body"))
    assert run_task(attempt(), [frame(), report], [frame(receiver=3)]) == [frame(3), report]


@pytest.mark.parametrize(
    ("received", "sent", "complaint"),
    [
        ([frame(receiver=2)], [], "got a row for the subtask 2"),
        ([report_row(attempt(0).report(b"")), frame()], [], "got a frame behind a report"),
        ([], [frame(receiver=P)], "sends a frame to the subtask 4"),
        ([], [frame(receiver=-1)], "sends a frame to the subtask -1"),
        ([], [frame(ord=MARKER_ORD + 1)], "sorts as a report"),
    ],
)
def test_task_refuses_invalid_received_or_sent_rows(
    received: list[Any], sent: list[Any], complaint: str
) -> None:
    with pytest.raises(InternalError, match=complaint):
        run_task(attempt(), received, sent)


def test_the_last_level_sends_no_frames() -> None:
    with pytest.raises(InternalError, match="sends frames from the last level"):
        run_task(attempt(level=2), [], [frame()])


def test_source_task_refuses_source_rows_other_than_its_own() -> None:
    import pyarrow as pa

    task = LevelTask(0, 3, P, entry("empty"), b"")
    for numbers in ([2], [], [1, 2]):
        batch = pa.RecordBatch.from_arrays([pa.array(numbers, type=pa.int64())], names=["id"])
        with pytest.raises(InternalError, match="has the source rows"):
            list(task.run(attempt(level=0), iter([batch])))


@pytest.mark.parametrize("name", ["json", "json:", "json:no_such", ":dumps"])
def test_level_task_with_a_missing_or_malformed_entry_raises_internal_error(name: str) -> None:
    task = LevelTask(1, 3, P, name, b"")
    with pytest.raises(InternalError):
        list(task.run(attempt(), iter(())))
