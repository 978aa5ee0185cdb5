"""Looking at a job's journal and at the configuration, without Kafka."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import pytest
from typer.testing import CliRunner

from tidegate.checkpoint.manifest import manifest_path
from tidegate.cli.main import app
from tidegate.commit.journal.entries import Claim, Closed, encode_entry, entry_path
from tidegate.controlplane.jobmaster import effect_runner
from tidegate.drivers.storage import open_store
from tidegate.errors import RefusedError
from tidegate.ids import Attempt, CheckpointId, JobName, JournalNumber

JOB = JobName("orders")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_job_without_a_journal_is_refused_by_name(folder: Path) -> None:
    result = CliRunner().invoke(app, ["checkpoints", "orders"])
    assert isinstance(result.exception, RefusedError)
    assert "no job 'orders'" in str(result.exception)


def test_checkpoints_command_shows_whether_the_journal_is_closed(folder: Path) -> None:
    store = open_store(str(folder / ".tidegate/checkpoints"))
    claim = Claim(
        number=JournalNumber(1),
        nonce="a",
        previous="",
        journal_id="j",
        created_ms=0,
        submission_id="s",
        restore="latest",
    )
    closed = Closed(
        number=JournalNumber(2),
        nonce="b",
        previous="a",
        journal_id="j",
        created_ms=0,
        attempt=Attempt(1),
        outcome="finished",
    )
    for entry in (claim, closed):
        store.create(entry_path(JOB, entry.number), encode_entry(entry))
    result = CliRunner().invoke(app, ["checkpoints", "orders", "--json"])
    assert json.loads(result.stdout) == {
        "job": "orders",
        "entries": 2,
        "closed": "finished",
        "checkpoints": [],
    }
    text = CliRunner().invoke(app, ["checkpoints", "orders"]).stdout
    assert "no checkpoint was published yet" in text
    assert "journal: finished" in text


def test_checkpoints_command_lists_only_checkpoints_whose_manifest_exists(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def named(counter: int) -> SimpleNamespace:
        checkpoint = CheckpointId(Attempt(1), counter)
        return SimpleNamespace(checkpoint=checkpoint, manifest=manifest_path(JOB, checkpoint))

    state = SimpleNamespace(
        number=3, recent_checkpoints=[named(1), named(2)], closed=None, publication=None, lost=None
    )
    monkeypatch.setattr(effect_runner, "run_read_only", lambda *_: state)
    store = open_store(str(folder / ".tidegate/checkpoints"))
    store.put(manifest_path(JOB, CheckpointId(Attempt(1), 2)), b"{}")
    result = CliRunner().invoke(app, ["checkpoints", "orders", "--json"])
    assert [row["id"] for row in json.loads(result.stdout)["checkpoints"]] == ["1-2"]


def test_config_command_masks_secrets(folder: Path) -> None:
    (folder / "tidegate.toml").write_text(
        '[kafka]\nbootstrap_servers = "h:1"\n[kafka.properties]\n"sasl.password" = "hunter2"\n'
    )
    result = CliRunner().invoke(app, ["config"])
    assert 'kafka.bootstrap_servers = "h:1"' in result.stdout
    assert "hunter2" not in result.stdout
    assert json.loads(CliRunner().invoke(app, ["config", "--json"]).stdout)["kafka"]


def test_config_command_prints_the_text_that_stands_for_no_value(folder: Path) -> None:
    lines = CliRunner().invoke(app, ["config"]).stdout.splitlines()
    expected = ('restart.attempts = "unlimited"', 'taskmanager.host = "auto"', 'job.name = "none"')
    assert set(expected) <= set(lines)


def test_settings_of_the_command_line_are_in_effect(folder: Path) -> None:
    result = CliRunner().invoke(app, ["config", "-c", "checkpoint.interval=3 s", "--json"])
    assert json.loads(result.stdout)["checkpoint"]["interval"] == 3000
    result = CliRunner().invoke(app, ["checkpoints", "orders", "-c", f"checkpoint.dir={folder}"])
    assert f"in the checkpoint storage '{folder}'" in str(result.exception)
