"""A backfill's driver on Spark as a process of its own, which traps or a test may kill.

usage: python -m integration.spark.wave_driver JOB

JOB is JSON: `reference`, `folder`, `settings`, `parallelism`, `wave_offsets`. It prints a line for
each thing that happens, and ends with exit code 1 and the error on standard error if the backfill
fails. After an interrupt it says what is left of the waves, and runs the backfill again in the same
session. Traps snap in the workers, in the driver, and at `driver.wave`: a wave is about to begin,
so `foreachBatch` has returned from the one before.
"""

from __future__ import annotations

import json
import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from integration.backfills import BackfillJob
from integration.killing.mains import JobMasterDrivers
from integration.killing.traps import Plan, Traps
from integration.spark.jobs import ROOT
from tidegate.backfill.driver import WaveLoop
from tidegate.backfill.spark.executor import SparkExecutor
from tidegate.backfill.spark.session import BackfillSession, start_session
from tidegate.backfill.spark.stream import streamed
from tidegate.drivers.bundle import RealDrivers
from tidegate.errors import TidegateError

WAVE_TASK = "integration.spark.entries:trapped_wave_task"


def main() -> int:
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell may have switched it off
    given = json.loads(sys.argv[1])
    folder = Path(given["folder"])
    with start_session("local[2,4]", python_path=[ROOT], folder=folder) as session:
        _say(f"jvm {session.jvm_pid}")
        try:
            _backfill(session, given)
        except KeyboardInterrupt:
            _say("interrupted")
            _say(f"left: {_left(session, folder)}")
            _backfill(session, given)
        except TidegateError as error:
            _say(f"failed: {type(error).__name__}: {error}")
            return 1
    _say("closed")
    return 0


def _backfill(session: BackfillSession, given: dict[str, Any]) -> None:
    traps = Traps(Plan.from_environment())
    job = BackfillJob(given["reference"], Path(given["folder"]), given["settings"])
    waves = job.backfill(
        parallelism=given["parallelism"],
        wave_offsets=given["wave_offsets"],
        executor=SparkExecutor(session, WAVE_TASK),
        drivers=JobMasterDrivers(traps, RealDrivers()),
        loop=_trapped(streamed(session), traps),
    )
    _say(f"waves {len(waves)}")


def _trapped(loop: WaveLoop, traps: Traps) -> WaveLoop:
    def run(run_wave: Callable[[], bool]) -> None:
        def wave() -> bool:
            traps.reached("driver.wave")
            return run_wave()

        loop(wave)

    return run


def _left(session: BackfillSession, folder: Path) -> list[str]:
    """What a loop leaves that has ended: queries, jobs of Spark, its folder, its threads."""
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
