"""Backfills on a real Spark and a real broker: the plain loop on `local[2,4]`."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from integration.backfills import BackfillJob
from integration.brokers import create_topic, unique
from integration.checker import check
from integration.orders import write
from tidegate.backfill.spark.executor import SparkExecutor
from tidegate.backfill.spark.session import BackfillSession
from tidegate.bootstrap import WAVE_TASK
from tidegate.drivers.kafka.embedded import EmbeddedKafka

pytestmark = pytest.mark.timeout(300)

ORDERS = 20_000


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedKafka]:
    cluster = EmbeddedKafka.start("4.3.0", directory=tmp_path_factory.mktemp("kafka"), owned=True)
    yield cluster
    cluster.stop()


@pytest.fixture
def job(broker: EmbeddedKafka, tmp_path: Path) -> BackfillJob:
    source, sink = unique("orders"), unique("totals")
    for topic in (source, sink):
        create_topic(broker.bootstrap, topic, partitions=4)
    write(broker.bootstrap, source, seed=1, rate=1_000_000, count=ORDERS)
    module = unique("backfilled").replace("-", "_")
    tmp_path.joinpath(f"{module}.py").write_text(
        "from pipelines.order_totals import OrderTotals\n\n\n"
        f'class Job(OrderTotals, name="{unique("backfilled")}"):\n'
        '    """A job with a name of its own."""\n'
    )
    return BackfillJob(
        f"{module}:Job",
        tmp_path,
        {
            "kafka.bootstrap": broker.bootstrap,
            "sources.orders.topic": source,
            "sinks.totals.topic": sink,
        },
    )


def exact(job: BackfillJob) -> bool:
    verdict = check(
        job.settings["kafka.bootstrap"],
        job.settings["sources.orders.topic"],
        job.settings["sinks.totals.topic"],
    )
    assert verdict.records_out == verdict.records_expected, verdict
    return verdict.exact


def test_a_backfill_on_spark_is_exact(job: BackfillJob, session: BackfillSession) -> None:
    waves = job.backfill(
        parallelism=3, wave_offsets=8_000, executor=SparkExecutor(session, WAVE_TASK)
    )
    assert sum(wave.records_in for wave in waves) == ORDERS
    assert exact(job)


def daemons_of(session: BackfillSession) -> list[psutil.Process]:
    """Spark's Python daemons and their workers, but for those that are ending."""
    found = []
    for process in psutil.Process(session.jvm_pid).children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):  # a zombie, too
            if "pyspark.daemon" in process.cmdline():
                found.append(process)
    return found


def test_workers_that_are_killed_lose_and_double_nothing(
    job: BackfillJob, session: BackfillSession
) -> None:
    """SIGKILL of a Python worker, six times, at any moment of its tasks."""
    killed: list[int] = []
    over = threading.Event()

    def kill_workers() -> None:
        while not over.wait(0.7) and len(killed) < 6:
            daemons = daemons_of(session)
            parents = {process.pid for process in daemons}
            workers = [process for process in daemons if process.ppid() in parents]
            if workers:
                os.kill(workers[-1].pid, signal.SIGKILL)
                killed.append(workers[-1].pid)
            time.sleep(0.3)

    killer = threading.Thread(target=kill_workers)
    killer.start()
    try:
        job.backfill(parallelism=3, wave_offsets=6_000, executor=SparkExecutor(session, WAVE_TASK))
    finally:
        over.set()
        killer.join()
    assert killed
    assert exact(job)
