"""`tidegate backfill` on Spark, with its own session and with the session of spark-submit."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pyspark
import pytest

from integration.support.backfill_command import DONE, ORDERS, REFUSED, Job
from integration.support.brokers import create_topic, unique
from tidegate.cli.spark_submit import __main__ as entry
from tidegate.drivers.kafka.embedded import EmbeddedKafka

pytestmark = pytest.mark.timeout(300)

SUBMIT_S = 240.0


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedKafka]:
    cluster = EmbeddedKafka.start("4.3.0", directory=tmp_path_factory.mktemp("kafka"), owned=True)
    yield cluster
    cluster.stop()


@pytest.fixture
def job(broker: EmbeddedKafka, tmp_path: Path) -> Job:
    names = unique("orders"), unique("totals")
    for name in names:
        create_topic(broker.bootstrap, name, partitions=4)
    made = Job(broker.bootstrap, tmp_path, *names)
    made.write()
    return made


def test_backfill_command_with_its_own_spark_session_is_exact_and_logs_nothing(job: Job) -> None:
    job.master = "local[2]"
    code, events = job.run("-p", "2")
    assert code == DONE, job.log()
    kinds = [each["event"] for each in events]
    assert (kinds[0], kinds[-1]) == ("plan", "end")
    assert set(kinds[1:-1]) <= {"wave", "progress"}
    assert events[-1]["records_in"] == ORDERS
    assert job.log() == "", "Spark says nothing without -v"
    job.assert_exact()


def test_spark_connect_master_is_refused_before_spark_starts(job: Job) -> None:
    job.master = "sc://127.0.0.1:15002"
    code, events = job.run("-p", "2")
    assert code == REFUSED
    assert [each["event"] for each in events] == ["plan"]
    assert "A backfill cannot run through Spark Connect (sc://127.0.0.1:15002)" in job.log()


def test_backfill_command_under_spark_submit_uses_the_existing_session(
    job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYSPARK_PYTHON", sys.executable)
    monkeypatch.setenv("SPARK_HOME", str(Path(pyspark.__file__).parent))
    submit = str(Path(sys.executable).with_name("spark-submit"))
    job.backfill = [submit, "--master", "local[2,4]", "--conf", "spark.ui.enabled=false"]
    job.backfill += [str(entry.__file__)]
    with job.start("--json", "-p", "2") as process:
        out, _ = process.communicate(timeout=SUBMIT_S)
    assert process.returncode == DONE, job.log()
    assert '"event": "end"' in out.decode()
    job.assert_exact()
    assert subprocess.run(["pgrep", "-f", job.module], check=False).returncode == 1
