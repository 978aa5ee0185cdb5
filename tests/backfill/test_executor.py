"""The executor in this process: every report comes, also that of a task whose receivers stop."""

from __future__ import annotations

from collections.abc import Iterator
from typing import cast

import pytest

from tidegate.backfill.driver import raise_task_error
from tidegate.backfill.executor import InProcessExecutor, WaveTasks
from tidegate.dataplane.waves.level_task import TaskHost
from tidegate.errors import BadRecordError, IncompleteWaveError
from tidegate.ids import Attempt
from tidegate.protocol.errors import ErrorReport
from tidegate.protocol.messages import Deploy
from tidegate.protocol.waves import FIRST, Row, TaskId, TaskReport, report_row

WAVE = WaveTasks(levels=3, deploys=cast("tuple[Deploy, ...]", (None, None)))


class Stopping(InProcessExecutor):
    """Subtask 0 of level 0 fails; tasks behind it stop at their first row, as a LevelTask does."""

    def run_task(self, wave: WaveTasks, level: int, index: int, rows: list[Row]) -> Iterator[Row]:
        error: Exception | None = None
        if (level, index) == (0, 0):
            error = BadRecordError("record 7")
        elif rows:
            error = IncompleteWaveError("its sender failed")
        if error is not None and level + 1 < wave.levels:
            yield from (Row(to, 0, index, FIRST, 0, b"r", b"") for to in range(2))
        yield report_row(
            TaskReport(
                attempt=Attempt(1),
                task=TaskId(level, index),
                run="00",
                error=None if error is None else ErrorReport.of(error),
            )
        )


def test_failed_task_is_reported_even_if_its_receivers_read_nothing() -> None:
    reports = Stopping(cast("TaskHost", None)).run(WAVE)
    assert sorted(report.task for report in reports) == [
        (level, index) for level in range(3) for index in range(2)
    ]
    with pytest.raises(BadRecordError, match="record 7"):
        raise_task_error(reports)
