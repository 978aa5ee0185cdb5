"""Spark sessions for the tests of this folder: few of them, because each starts a JVM."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tidegate.backfill.spark.session import BackfillSession, start_session

ROOT = Path(__file__).parent.parent.parent


@pytest.fixture(scope="session", autouse=True)
def _spark_is_installed() -> None:
    pytest.importorskip("pyspark", reason="make test-spark runs these where pyspark is installed")


@pytest.fixture(scope="module")
def session(_spark_is_installed: None) -> Iterator[BackfillSession]:
    """Two cores; a task that fails is tried four times in all."""
    with start_session("local[2,4]", python_path=[ROOT]) as running:
        yield running
