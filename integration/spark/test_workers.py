"""Workers that do not fit their driver are refused before the first wave, and the error names both
versions.
"""

from __future__ import annotations

import platform
from importlib import metadata
from pathlib import Path

import pytest

from integration.spark.jobs import ROOT
from integration.support.backfills import BackfillJob
from tidegate.backfill.spark.executor import SparkExecutor
from tidegate.backfill.spark.session import start_session
from tidegate.backfill.spark.worker_checks import check_versions, own_versions
from tidegate.bootstrap import WAVE_TASK
from tidegate.errors import UserError

pytestmark = pytest.mark.timeout(300)

HERE = platform.python_version()
TIDEGATE = metadata.version("tidegate")


def test_workers_of_the_same_installation_fit(tmp_path: Path) -> None:
    with start_session("local[2]", python_path=[ROOT], folder=tmp_path) as session:
        check_versions(session)
    assert str(own_versions()) == f"Python {HERE} and tidegate {TIDEGATE}"


def test_workers_with_other_versions_are_refused_before_anything_is_claimed(
    job: BackfillJob, tmp_path: Path
) -> None:
    """The workers see another patch version of Python, and metadata of another tidegate."""
    other = tmp_path / "other"
    installed = other / "tidegate-9.9.dist-info"
    installed.mkdir(parents=True)
    (installed / "METADATA").write_text("Metadata-Version: 2.1\nName: tidegate\nVersion: 9.9\n")
    (other / "sitecustomize.py").write_text(
        "import platform\nplatform.python_version = lambda: '3.11.99'\n"
    )
    with start_session("local[2]", python_path=[other, ROOT], folder=tmp_path) as session:
        with pytest.raises(UserError) as caught:
            job.backfill(parallelism=2, executor=SparkExecutor(session, WAVE_TASK))
        assert str(caught.value) == (
            "Spark's Python workers have Python 3.11.99 and tidegate 9.9, and the driver has"
            f" Python {HERE} and tidegate {TIDEGATE}. Install the driver's versions on every host,"
            " or set PYSPARK_PYTHON."
        )
    assert not list((job.folder / "checkpoints").glob("**/journal/*.json")), "nothing is claimed"


def test_workers_without_tidegate_are_refused(tmp_path: Path) -> None:
    """The worker behaves as on a host without an installed tidegate."""
    (tmp_path / "tidegate.py").write_text("raise ImportError(\"No module named 'tidegate'\")\n")
    with (
        start_session("local[2]", python_path=[tmp_path], folder=tmp_path) as session,
        pytest.raises(UserError) as caught,
    ):
        check_versions(session)
    assert "do not fit the driver, which has Python" in str(caught.value)
    assert "No module named 'tidegate'" in str(caught.value)
