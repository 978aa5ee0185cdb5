"""What `tidegate backfill` checks before it runs anything, also in a dry run."""

from __future__ import annotations

import socket
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from typer.testing import CliRunner

from tidegate.backfill.spark import installation, java, session
from tidegate.cli.backfill import run as backfilling
from tidegate.cli.backfill.output import BackfillText
from tidegate.cli.main import app
from tidegate.errors import ConfigError, SparkError, TidegateError

REFERENCE = "pipelines.order_totals:OrderTotals"


@pytest.fixture
def environments(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """The options of each check of the environment. No Kafka and no Spark is needed."""
    found: list[dict[str, Any]] = []
    planner = SimpleNamespace(ends=lambda *_: (), plan=lambda _: SimpleNamespace(partitions=()))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(backfilling, "check_environment", lambda *_, **given: found.append(given))
    monkeypatch.setattr(backfilling, "Planner", lambda *_: planner)
    monkeypatch.setattr(backfilling, "refuse_passed_ends", lambda *_: None)
    monkeypatch.setattr(BackfillText, "plan", lambda *_: None)
    monkeypatch.setattr(installation, "check_installed", lambda: None)
    monkeypatch.setattr(java, "find_java", lambda: None)
    for name in ("HADOOP_CONF_DIR", "YARN_CONF_DIR", "PYSPARK_GATEWAY_PORT"):
        monkeypatch.delenv(name, raising=False)
    return found


def dry_run(master: str) -> BaseException | None:
    """Return the exception of a dry run; None if it has found nothing."""
    result = CliRunner().invoke(app, ["backfill", REFERENCE, "--dry-run", "--master", master])
    return None if isinstance(result.exception, SystemExit) else result.exception


@pytest.mark.parametrize(
    ("master", "error", "says"),
    [
        ("sprak://host:7077", ConfigError, "is not the address of a Spark master"),
        ("yarn", ConfigError, "export HADOOP_CONF_DIR"),
        ("k8s://https://host", ConfigError, r"backfill\.spark\.kubernetes\.container\.image"),
    ],
)
def test_dry_run_refuses_a_master_that_a_backfill_cannot_use(
    environments: list[dict[str, Any]], master: str, error: type[TidegateError], says: str
) -> None:
    found = dry_run(master)
    with pytest.raises(error, match=says):
        raise found or AssertionError("nothing was refused")


def test_dry_run_tries_a_connection_to_the_master(environments: list[dict[str, Any]]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        master = f"spark://127.0.0.1:{server.getsockname()[1]}"
        assert dry_run(master) is None
    found = dry_run(master)
    assert isinstance(found, SparkError)
    assert str(found).startswith("No Spark master answers at 127.0.0.1:")


@pytest.mark.parametrize(
    ("master", "submitted", "here"),
    [
        ("in-process", False, True),
        ("local[2]", False, True),
        ("spark://localhost:1", False, True),
        ("spark://10.0.0.7:7077", False, False),
        ("yarn", False, False),
        ("local[2]", True, False),  # spark-submit has chosen another master
    ],
)
def test_backfill_is_not_checked_as_a_live_job_and_local_folders_only_where_tasks_run(
    environments: list[dict[str, Any]],
    monkeypatch: pytest.MonkeyPatch,
    master: str,
    submitted: bool,
    here: bool,
) -> None:
    monkeypatch.setattr(session, "is_submitted", lambda: submitted)
    dry_run(master)
    assert environments == [{"live": False, "tasks_run_here": here}]
