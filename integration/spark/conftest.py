"""Spark sessions and a broker for the tests of this folder. They are few, because each starts a
JVM.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from integration.spark.jobs import ROOT, new_job
from integration.support.backfills import BackfillJob
from tidegate.backfill.spark.session import BackfillSession, start_session
from tidegate.drivers.kafka.embedded import EmbeddedKafka

ONE_WAVE = "test_backfill_on_spark_is_exact_when_python_workers_are_killed"
"""The test of this folder that `make test` runs."""


@pytest.hookimpl(tryfirst=True)  # before `-m` chooses by the marks
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Leave all tests of this folder but one to `make test-all`."""
    folder = Path(__file__).parent
    for item in items:
        if item.path.parent == folder and not item.name.startswith(ONE_WAVE):
            item.add_marker(pytest.mark.slow)


@pytest.fixture(scope="session", autouse=True)
def _spark_is_installed() -> None:
    pytest.importorskip("pyspark", reason="make test-spark runs these where pyspark is installed")


@pytest.fixture(scope="module")
def session(_spark_is_installed: None) -> Iterator[BackfillSession]:
    """Start a session with two cores, in which a failing task has four attempts in all."""
    with start_session("local[2,4]", python_path=[ROOT]) as running:
        yield running


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedKafka]:
    cluster = EmbeddedKafka.start("4.3.0", directory=tmp_path_factory.mktemp("kafka"), owned=True)
    yield cluster
    cluster.stop()


@pytest.fixture
def job(broker: EmbeddedKafka, tmp_path: Path) -> BackfillJob:
    return new_job(broker, tmp_path)
