"""Backfills on a real Spark and a real broker: the plain loop on `local[2,4]`."""

from __future__ import annotations

import os
import signal
import threading
from contextlib import suppress

import psutil
import pytest

from integration.spark.jobs import ORDERS, exact
from integration.spark.processes import is_alive
from integration.support.backfills import BackfillJob
from tidegate.backfill.spark.executor import SparkExecutor
from tidegate.backfill.spark.session import BackfillSession
from tidegate.bootstrap import WAVE_TASK

pytestmark = pytest.mark.timeout(300)


def test_a_backfill_on_spark_is_exact(job: BackfillJob, session: BackfillSession) -> None:
    waves = job.backfill(
        parallelism=3, wave_offsets=8_000, executor=SparkExecutor(session, WAVE_TASK)
    )
    assert sum(wave.records_in for wave in waves) == ORDERS
    assert exact(job)


def test_backfill_on_spark_is_exact_when_python_workers_are_killed(
    job: BackfillJob, session: BackfillSession
) -> None:
    """A thread kills a Python worker with SIGKILL, three times, at any point of its tasks. Each
    task has four attempts, so three kills of one task do not fail it.
    """
    killed: list[int] = []
    over = threading.Event()

    def kill_workers() -> None:
        while not over.wait(1.0) and len(killed) < 3:
            with suppress(psutil.NoSuchProcess, ProcessLookupError):  # it has just ended by itself
                kill_a_worker()

    def kill_a_worker() -> None:
        daemons = [
            process
            for process in psutil.Process(session.jvm_pid).children(recursive=True)
            if is_alive(process) and "pyspark.daemon" in process.cmdline()  # a zombie has none
        ]
        parents = {process.pid for process in daemons}
        workers = [process for process in daemons if process.ppid() in parents]
        if workers:
            os.kill(workers[-1].pid, signal.SIGKILL)
            killed.append(workers[-1].pid)

    killer = threading.Thread(target=kill_workers)
    killer.start()
    try:
        job.backfill(parallelism=3, wave_offsets=6_000, executor=SparkExecutor(session, WAVE_TASK))
    finally:
        over.set()
        killer.join()
    assert killed
    assert exact(job)
