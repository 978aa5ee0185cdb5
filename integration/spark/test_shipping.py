"""`--ship` on a standalone cluster whose workers have a Python with nothing but pip.

The workers' Python is an environment of its own. Spark's own folder provides what pyspark needs
there. The command ships tidegate and its packages; tidegate is an editable install.
"""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path

import pytest

from integration.spark.standalone import HERE, Cluster, standalone_cluster
from integration.support.backfill_command import DONE, ORDERS, REFUSED, Job
from integration.support.brokers import create_topic, unique
from tidegate.backfill.spark.session import start_session
from tidegate.backfill.spark.worker_checks import check_platform
from tidegate.drivers.kafka.embedded import EmbeddedKafka
from tidegate.errors import UserError

pytestmark = pytest.mark.timeout(600)

RUN_S = 400.0


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make an environment with the driver's Python, without packages, and return its
    interpreter.
    """
    folder = tmp_path_factory.mktemp("bare") / "python"
    subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
    python = folder / "bin" / "python"
    found = subprocess.run([python, "-c", "import tidegate"], check=False, capture_output=True)
    assert found.returncode != 0, "the workers' Python has no tidegate"
    return python


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with standalone_cluster(tmp_path_factory.mktemp("spark"), hosts=(HERE, HERE)) as running:
        yield running


@pytest.fixture
def job(
    broker: EmbeddedKafka,
    cluster: Cluster,
    bare: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Job:
    monkeypatch.setenv("PYSPARK_PYTHON", str(bare))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    names = unique("orders"), unique("totals")
    for name in names:
        create_topic(broker.bootstrap, name, partitions=4)
    made = Job(broker.bootstrap, tmp_path, *names)
    made.master = cluster.master
    made.write()
    return made


def run(job: Job, *more: str) -> tuple[int, str]:
    with job.start("--json", "-p", "2", *more) as process:
        out, _ = process.communicate(timeout=RUN_S)
    return process.returncode, out.decode()


def test_workers_without_tidegate_are_refused_and_the_message_names_ship(job: Job) -> None:
    code, _ = run(job)
    assert code == REFUSED, job.log()
    said = " ".join(job.log().split())
    assert "Spark's Python workers do not fit the driver, which has Python" in said
    assert "Add --ship to send the driver's packages to the workers" in said
    assert "Traceback" not in said
    assert not list(job.folder.glob("checkpoints/**/*.json")), "nothing is claimed"


def test_backfill_with_ship_is_exact_on_workers_that_have_only_python(job: Job) -> None:
    code, out = run(job, "--ship")
    assert code == DONE, job.log()
    assert f'"records_in": {ORDERS}' in out.splitlines()[-1]
    job.assert_exact()
    (archive,) = job.folder.glob("cache/tidegate/packages/*")
    assert archive.suffix == ".zip"


def test_packages_for_another_platform_are_not_sent(
    cluster: Cluster, bare: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYSPARK_PYTHON", str(bare))
    own = sysconfig.get_config_var("SOABI")
    with start_session(cluster.master) as session:
        check_platform(session)
        monkeypatch.setitem(sysconfig.get_config_vars(), "SOABI", "cpython-311-s390x-linux-gnu")
        with pytest.raises(UserError) as caught:
            check_platform(session)
    assert f"built for cpython-311-s390x-linux-gnu, and Spark's Python workers have {own}" in str(
        caught.value
    )
    assert "leave out --ship" in str(caught.value)
    assert os.environ["PYSPARK_PYTHON"] == str(bare)
