"""Runs the tasks of a wave as the tasks of one Spark job.

Spark runs a crashed task again, even if other tasks have already read the output of its first run.
The reports show this case, and the driver then runs the wave again (`checkpoint/run_check.py`).

The last part of a transactional id is Spark's id of the task's run. This id is unique within one
SparkContext, and each new SparkContext claims a new attempt.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from tidegate.backfill.executor import WaveTasks
from tidegate.backfill.spark.levels import TaskAttempt, run_levels
from tidegate.backfill.spark.rows import FrameRow, Report
from tidegate.backfill.spark.session import BackfillSession
from tidegate.backfill.spark.worker_checks import check_storage, check_versions
from tidegate.config import Config
from tidegate.dataplane.waves.level_task import LevelTask, TaskHost
from tidegate.errors import InternalError
from tidegate.protocol import codec
from tidegate.protocol.messages import Deploy
from tidegate.protocol.waves import REPORT, Row, TaskReport, read_report

_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(list[bytes])


class SparkExecutor:
    """Runs waves in one Spark session.

    `entry` names the function that a worker imports and runs. That function calls `run_task` with
    the worker's drivers.
    """

    def __init__(self, session: BackfillSession, entry: str) -> None:
        self._session, self._entry = session, entry
        self._is_checked = False

    def check(self, config: Config) -> None:
        """Check that the workers have the driver's versions and can reach the checkpoint storage.

        Raises:
            ConfigError: the workers may not be able to reach the storage.
            UserError: the versions differ.
            SparkError: the Spark job that reads the versions has failed.
        """
        if not self._is_checked:
            check_storage(self._session.master, config.checkpoint.dir)
            check_versions(self._session)
        self._is_checked = True

    def run(self, wave: WaveTasks) -> list[TaskReport]:
        """Run all tasks as one Spark job and return their reports. SparkError if the job fails."""
        payload = _encoder.encode([codec.encode(deploy) for deploy in wave.deploys])
        reports = run_levels(self._session, len(wave.deploys), wave.levels, self._entry, payload)
        return [read_report(report.body) for report in reports]

    def progress(self) -> tuple[int, int] | None:
        """Return the number of finished tasks and of all tasks, in the stages that now run or wait.
        Return None if Spark does not report them. Any thread may call this method.
        """
        tracker = self._session.spark.sparkContext.statusTracker()
        done = tasks = 0
        try:
            for job in map(tracker.getJobInfo, tracker.getActiveJobsIds()):
                for stage in map(tracker.getStageInfo, () if job is None else job.stageIds):
                    if stage is not None:
                        done, tasks = done + stage.numCompletedTasks, tasks + stage.numTasks
        except Exception:  # noqa: BLE001  (of py4j: the JVM has ended; the wave reports it)
            return None
        return (done, tasks) if tasks else None


def run_task(
    attempt: TaskAttempt, payload: bytes, rows: Iterator[FrameRow], host: TaskHost
) -> Iterator[FrameRow | Report]:
    """Run a task in a worker of Spark. Yield its rows and its report."""
    deploy = codec.decode(_decoder.decode(payload)[attempt.subtask])
    if not isinstance(deploy, Deploy):
        raise InternalError(f"A task received a {type(deploy).__name__} instead of a Deploy.")
    task = LevelTask(deploy, attempt.level, host, attempt.task_attempt_id)
    for sent in task.run(map(Row._make, rows)):
        for row in sent:
            yield attempt.report(row.frame) if row.edge == REPORT else FrameRow._make(row)
