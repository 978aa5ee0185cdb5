"""A backfill's driver on Spark as a process of its own, which traps or a test may kill.

usage: python -m integration.spark.wave_driver JOB

JOB is the JSON of `drivers.DriverOptions`. The process prints a line for each event. If the
backfill fails, it prints the error and exits with code 1. After an interrupt it prints what the
waves have left, and runs the backfill again in the same session. Traps snap in the workers, in the
driver, and in the calls between the driver and Spark's query
(`integration/faults/kill_points/kill_points.py`).
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from integration.faults.kill_matrix.mains import JobMasterDrivers
from integration.faults.kill_points.kill_points import Plan, Traps
from integration.spark.drivers import DriverOptions
from integration.spark.jobs import ROOT
from integration.support.backfills import BackfillJob
from tidegate.backfill.driver import WaveLoop
from tidegate.backfill.executor import Executor, WaveTasks
from tidegate.backfill.spark import wave_source
from tidegate.backfill.spark.executor import SparkExecutor
from tidegate.backfill.spark.session import BackfillSession, start_session
from tidegate.backfill.spark.stream import make_wave_loop
from tidegate.config import Config
from tidegate.drivers.system import SystemDrivers
from tidegate.errors import TidegateError
from tidegate.protocol.waves import TaskReport

WAVE_TASK = "integration.spark.entries:trapped_wave_task"


def main() -> int:
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell may have switched it off
    options = msgspec.json.decode(sys.argv[1], type=DriverOptions)
    folder, traps = Path(options.folder), Traps(Plan.from_environment())
    _trap_the_query(traps)
    with start_session(
        options.master,
        python_path=[ROOT],
        folder=folder,
        properties=options.properties | _for_executors(),
        speculation=options.speculation,
    ) as session:
        _say(f"jvm {session.jvm_pid}")
        try:
            _backfill(session, options, traps)
        except KeyboardInterrupt:
            _say("interrupted")
            _say(f"left: {_left(session, folder)}")
            _backfill(session, options, traps)
        except TidegateError as error:
            _say(f"failed: {type(error).__name__}: {error}")
            return 1
    _say("closed")
    return 0


def _for_executors() -> dict[str, str]:
    """Return the environment for the executors of a cluster, which do not inherit that of this
    process.
    """
    return {
        f"spark.executorEnv.{name}": value
        for name, value in os.environ.items()
        if name.startswith("TIDEGATE_TEST_")
    }


def _backfill(session: BackfillSession, options: DriverOptions, traps: Traps) -> None:
    job = BackfillJob(options.reference, Path(options.folder), options.settings)
    waves = job.backfill(
        parallelism=options.parallelism,
        wave_offsets=options.wave_offsets,
        ends=options.ends,
        executor=TrappedExecutor(SparkExecutor(session, WAVE_TASK), traps),
        drivers=JobMasterDrivers(SystemDrivers()),
        loop=_trapped(make_wave_loop(session), traps),
    )
    _say(f"waves {len(waves)}")


class TrappedExecutor:
    """An executor with a trap at which all reports have arrived, and none is examined yet."""

    def __init__(self, real: Executor, traps: Traps) -> None:
        self._real, self._traps = real, traps

    def check(self, config: Config) -> None:
        """Check with the real executor."""
        self._real.check(config)

    def run(self, wave: WaveTasks) -> list[TaskReport]:
        """Run the wave with the real executor, and reach the trap."""
        reports = self._real.run(wave)
        self._traps.reached("driver.collected")
        return reports


def _trapped(loop: WaveLoop, traps: Traps) -> WaveLoop:
    def run(run_wave: Callable[[], bool]) -> None:
        def wave() -> bool:
            traps.reached("driver.wave")
            return run_wave()

        loop(wave)

    return run


def _trap_the_query(traps: Traps) -> None:
    """Put traps where Spark's query calls this program: `foreachBatch`, and the stream source."""
    from pyspark.sql.streaming import DataStreamWriter

    from integration.spark.source_with_kill_points import TrappedWaveSource

    real = DataStreamWriter.foreachBatch

    def each_batch(writer: Any, function: Callable[[Any, int], None]) -> Any:
        def trapped(batch: Any, number: int) -> None:
            function(batch, number)
            traps.reached("driver.returned")

        return real(writer, trapped)

    DataStreamWriter.foreachBatch = each_batch
    wave_source.WaveSource = TrappedWaveSource  # type: ignore[misc]


def _left(session: BackfillSession, folder: Path) -> list[str]:
    """Return what an ended loop has left: queries, jobs of Spark, its folder, its threads."""
    queries = [str(each.id) for each in session.spark.streams.active]
    jobs = [str(each) for each in session.spark.sparkContext.statusTracker().getActiveJobsIds()]
    folders = [each.name for each in folder.glob("tidegate-spark-*/tmp/tidegate-spark-*")]
    threads = [each.name for each in threading.enumerate() if each.name.startswith("spark-")]
    return [*queries, *jobs, *folders, *threads]


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
