"""A backfill on a standalone cluster with two workers. It is exact, also if one of them is killed.

The cluster runs on loopback, so its executors reach the checkpoint storage, which is a folder.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

import psutil
import pytest

from integration.spark.jobs import ORDERS, ROOT, exact
from integration.spark.processes import is_alive
from integration.spark.standalone import HERE, Cluster, standalone_cluster
from integration.support.backfills import BackfillJob
from tidegate.backfill.driver import WaveCompleted
from tidegate.backfill.executor import Executor, WaveTasks
from tidegate.backfill.spark.executor import SparkExecutor
from tidegate.backfill.spark.session import BackfillSession, start_session
from tidegate.backfill.spark.stream import make_wave_loop
from tidegate.bootstrap import WAVE_TASK
from tidegate.config import Config
from tidegate.protocol.waves import TaskReport

pytestmark = pytest.mark.timeout(600)

TASKS_RUN_S = 0.4
"""Seconds after which a wave's tasks run. A warm wave of 5,000 records takes about twice as
long.
"""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with standalone_cluster(tmp_path_factory.mktemp("spark"), hosts=(HERE, HERE)) as running:
        yield running


@pytest.fixture(scope="module")
def remote(cluster: Cluster) -> Iterator[BackfillSession]:
    properties = {"spark.executor.memory": "512m"}
    with start_session(cluster.master, python_path=[ROOT], properties=properties) as session:
        yield session


class KillsInSecondWave:
    """An executor that kills processes while the tasks of the second wave run."""

    def __init__(self, executor: Executor, victims: Callable[[], list[psutil.Process]]) -> None:
        self.executor, self.victims, self.waves = executor, victims, 0
        self.killed: list[psutil.Process] = []

    def check(self, config: Config) -> None:
        self.executor.check(config)

    def run(self, wave: WaveTasks) -> list[TaskReport]:
        self.waves += 1
        if self.waves != 2:
            return self.executor.run(wave)
        killer = threading.Timer(TASKS_RUN_S, self._kill)
        killer.start()
        try:
            return self.executor.run(wave)
        finally:
            killer.join()

    def _kill(self) -> None:
        self.killed = self.victims()
        for each in self.killed:
            each.kill()


def backfill(job: BackfillJob, session: BackfillSession, executor: Executor) -> list[WaveCompleted]:
    return job.backfill(
        parallelism=2, wave_offsets=5_000, executor=executor, loop=make_wave_loop(session)
    )


def test_a_backfill_on_two_workers_is_exact(job: BackfillJob, remote: BackfillSession) -> None:
    waves = backfill(job, remote, SparkExecutor(remote, WAVE_TASK))
    assert sum(wave.records_in for wave in waves) == ORDERS
    assert exact(job)


def test_backfill_is_exact_when_a_standalone_worker_is_killed(
    job: BackfillJob, cluster: Cluster, remote: BackfillSession
) -> None:
    """The worker dies with its executor and its Python workers, as on a host that is switched
    off.
    """

    def one_host() -> list[psutil.Process]:
        worker = psutil.Process(cluster.workers[0].pid)
        return [worker, *worker.children(recursive=True)]

    executor = KillsInSecondWave(SparkExecutor(remote, WAVE_TASK), one_host)
    waves = backfill(job, remote, executor)
    assert [each.name() for each in executor.killed if is_alive(each)] == []
    assert len(executor.killed) >= 3, "a worker, its executor, and pyspark's daemon"
    assert sum(wave.records_in for wave in waves) == ORDERS
    assert exact(job)
