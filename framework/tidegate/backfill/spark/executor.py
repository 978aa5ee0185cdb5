"""`SparkExecutor`: the tasks of a wave as the tasks of one Spark job.

Spark repeats a task that crashes, also after others have read what its first run wrote. The reports
show that, and the driver then runs the wave again (`checkpoint/run_check.py`). The last part of a
transactional id is Spark's id of the task's run, which is unique within one SparkContext; a new
SparkContext always claims a new attempt.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from tidegate.backfill.executor import WaveTasks
from tidegate.backfill.spark.levels import TaskAttempt, run_levels
from tidegate.backfill.spark.rows import FrameRow, Report
from tidegate.backfill.spark.session import BackfillSession
from tidegate.backfill.spark.workers import check_storage, check_versions
from tidegate.config import Config
from tidegate.dataplane.waves.level_task import LevelTask, TaskHost
from tidegate.errors import InternalError
from tidegate.protocol import codec
from tidegate.protocol.messages import Deploy
from tidegate.protocol.waves import REPORT, Row, TaskReport, read_report

_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(list[bytes])


class SparkExecutor:
    """Runs waves in one Spark session. `entry` names the function that a worker imports and runs;
    it calls `run_task` with the worker's drivers.
    """

    def __init__(self, session: BackfillSession, entry: str) -> None:
        self._session, self._entry = session, entry
        self._is_checked = False

    def check(self, config: Config) -> None:
        """Ask the workers for their versions, and refuse a storage that they do not reach.

        UserError where a wave could not run; SparkError where Spark fails.
        """
        if not self._is_checked:
            check_storage(self._session.master, config.checkpoint.storage)
            check_versions(self._session)
        self._is_checked = True

    def run(self, wave: WaveTasks) -> list[TaskReport]:
        """One Spark job; SparkError where it failed."""
        payload = _encoder.encode([codec.encode(deploy) for deploy in wave.deploys])
        reports = run_levels(self._session, len(wave.deploys), wave.levels, self._entry, payload)
        return [read_report(report.body) for report in reports]

    def progress(self) -> tuple[int, int] | None:
        """Finished and all tasks of the stages that run or wait just now; None where Spark does not
        say. Any thread may ask.
        """
        tracker = self._session.spark.sparkContext.statusTracker()
        done = tasks = 0
        try:
            for job in map(tracker.getJobInfo, tracker.getActiveJobsIds()):
                for stage in map(tracker.getStageInfo, () if job is None else job.stageIds):
                    if stage is not None:
                        done, tasks = done + stage.numCompletedTasks, tasks + stage.numTasks
        except Exception:  # noqa: BLE001  (py4j's: the JVM has ended, which the wave itself tells)
            return None
        return (done, tasks) if tasks else None


def run_task(
    attempt: TaskAttempt, payload: bytes, rows: Iterator[FrameRow], host: TaskHost
) -> Iterator[FrameRow | Report]:
    """Run a task in a worker of Spark: its rows, and its report."""
    deploy = codec.decode(_decoder.decode(payload)[attempt.subtask])
    if not isinstance(deploy, Deploy):
        raise InternalError(f"a task was given a {type(deploy).__name__} and no Deploy")
    task = LevelTask(deploy, attempt.level, host, attempt.task_attempt_id)
    for sent in task.run(map(Row._make, rows)):
        for row in sent:
            yield attempt.report(row.frame) if row.edge == REPORT else FrameRow._make(row)
