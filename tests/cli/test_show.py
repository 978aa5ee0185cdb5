"""Looking at a job's journal and at the configuration, without Kafka."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from typer.testing import CliRunner

from tidegate.checkpoint.manifest import Manifest, encode_manifest, file_digest, manifest_path
from tidegate.checkpoint.state_metadata import StateMetadata
from tidegate.cli.main import app
from tidegate.commit.journal.entries import Claim, Closed, encode_entry, entry_path
from tidegate.commit.journal.state import JournalState, PublicationRef
from tidegate.controlplane.journal import effect_runner
from tidegate.drivers.storage import open_store
from tidegate.errors import RefusedError
from tidegate.ids import (
    Attempt,
    CheckpointId,
    JobName,
    JournalNumber,
    SubtaskIndex,
    Uid,
    VertexId,
)
from tidegate.protocol.subtask_snapshot import (
    KeyedSnapshot,
    SourceSplit,
    StateFile,
    SubtaskSnapshot,
)

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


def snapshot(index: int, files: tuple[StateFile, ...] = ()) -> SubtaskSnapshot:
    keyed = KeyedSnapshot(
        uid=Uid("total"),
        backend="memory",
        first_key_group=0,
        last_key_group=127,
        files=files,
        schemas={},
    )
    return SubtaskSnapshot(
        vertex=VertexId("orders"),
        index=SubtaskIndex(index),
        keyed=(keyed,),
        splits=(SourceSplit(source=Uid("orders"), topic="o", partition=index, offset=10 + index),),
    )


def published(
    folder: Path, counter: int, files: tuple[StateFile, ...] = (), *, duration_ms: int = 0
) -> PublicationRef:
    """Write a manifest, and return the journal's entry for it."""
    checkpoint = CheckpointId(Attempt(1), counter)
    manifest = Manifest(
        job=JOB,
        checkpoint=checkpoint,
        submission_id="s",
        created_ms=1_000 * counter,
        final=counter == 3,
        kafka_cluster="k",
        fingerprint="",
        plan=StateMetadata(parallelism=2, max_parallelism=128),
        subtasks=(snapshot(0, files), snapshot(1)),
        duration_ms=duration_ms,
    )
    data, path = encode_manifest(manifest), manifest_path(JOB, checkpoint)
    open_store(str(folder / ".tidegate/checkpoints")).put(path, data)
    return PublicationRef(
        number=JournalNumber(counter + 1),
        checkpoint=checkpoint,
        submission_id="s",
        manifest=path,
        sha256=file_digest(data),
        final=False,
    )


@pytest.fixture
def listed(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """Run `tidegate checkpoints` for these publications."""

    def run(*refs: PublicationRef, as_json: bool = True) -> Any:
        state = JournalState(number=JournalNumber(9), recent_checkpoints=refs)
        monkeypatch.setattr(effect_runner, "run_read_only", lambda *_: state)
        return CliRunner().invoke(app, ["checkpoints", "orders", *(["--json"] if as_json else [])])

    return run


def test_checkpoints_command_lists_only_checkpoints_whose_manifest_exists(
    folder: Path, listed: Callable[..., Any]
) -> None:
    expired, kept = published(folder, 1), published(folder, 2)
    (folder / ".tidegate/checkpoints" / expired.manifest).unlink()
    result = listed(expired, kept)
    assert [row["id"] for row in json.loads(result.stdout)["checkpoints"]] == ["1-2"]
    assert not result.stderr


def test_checkpoint_that_cannot_be_restored_is_not_listed_and_named_on_stderr(
    folder: Path, listed: Callable[..., Any]
) -> None:
    file = StateFile(name="memory.kv", path="files/1/0/memory-1.kv", size=5, sha256="")
    lacks_file = published(folder, 1, (file,))
    torn = msgspec.structs.replace(published(folder, 2), sha256="00")
    result = listed(lacks_file, torn)
    assert json.loads(result.stdout)["checkpoints"] == []
    assert "checkpoint 1-1 is not listed: orders/files/1/0/memory-1.kv is missing" in result.stderr
    assert "checkpoint 1-2 is not listed" in result.stderr
    open_store(str(folder / ".tidegate/checkpoints")).put(f"orders/{file.path}", b"12345")
    assert [row["id"] for row in json.loads(listed(lacks_file).stdout)["checkpoints"]] == ["1-1"]


def test_row_of_a_checkpoint_has_size_duration_parallelism_and_offsets(
    folder: Path, listed: Callable[..., Any]
) -> None:
    file = StateFile(name="memory.kv", path="files/1/0/memory-1.kv", size=2048, sha256="")
    open_store(str(folder / ".tidegate/checkpoints")).put(f"orders/{file.path}", b"")
    ref = published(folder, 3, (file,), duration_ms=58)
    (row,) = json.loads(listed(ref).stdout)["checkpoints"]
    assert (row["size"], row["duration_ms"], row["parallelism"]) == (2048, 58, 2)
    assert row["offsets"][1] == {"source": "orders", "topic": "o", "partition": 1, "offset": 11}
    text = listed(ref, as_json=False).stdout
    assert "1-3       1970-01-01 00:00:03  2.0 KiB   58 ms     2           final" in text
    assert "orders (o)  0:10 1:11" in text


def test_config_command_masks_secrets(folder: Path) -> None:
    (folder / "tidegate.toml").write_text(
        '[kafka]\nbootstrap_servers = "h:1"\n[kafka.properties]\n"sasl.password" = "hunter2"\n'
    )
    for arguments in (["config"], ["config", "--json"]):
        shown = CliRunner().invoke(app, arguments).stdout
        assert "kafka.bootstrap_servers" in shown
        assert "hunter2" not in shown


def test_config_command_prints_values_as_tidegate_toml_accepts_them(folder: Path) -> None:
    shown = CliRunner().invoke(app, ["config", "-c", "checkpoint.interval=90 s"]).stdout
    lines = {line.partition("  # ")[0].rstrip() for line in shown.splitlines()}
    expected = {
        'restart.attempts = "unlimited"',
        'taskmanager.host = "auto"',
        'job.name = "none"',
        'checkpoint.interval = "90 s"',
        'job.max_code_size = "16 MiB"',
        'checkpoint.min_pause = "0 ms"',
    }
    assert expected <= lines
    (folder / "tidegate.toml").write_text(shown)
    again = CliRunner().invoke(app, ["config"]).stdout.splitlines()
    assert {line.partition("  # ")[0].rstrip() for line in again} == lines


def test_config_command_names_the_source_of_each_value(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "tidegate.toml").write_text("[job]\nparallelism = 3\n")
    monkeypatch.setenv("TIDEGATE_CHECKPOINT__TIMEOUT", "1 h")
    arguments = ["config", "--json", "-c", "checkpoint.interval=3 s"]
    rows = json.loads(CliRunner().invoke(app, arguments).stdout)
    assert rows["checkpoint.interval"] == {"value": "3 s", "source": "command line"}
    variable = "environment variable TIDEGATE_CHECKPOINT__TIMEOUT"
    assert rows["checkpoint.timeout"] == {"value": "1 h", "source": variable}
    assert rows["job.parallelism"] == {"value": 3, "source": str(folder / "tidegate.toml")}
    assert rows["job.max_parallelism"] == {"value": 128, "source": "default"}


def test_settings_of_the_command_line_are_in_effect(folder: Path) -> None:
    result = CliRunner().invoke(app, ["config", "-c", "checkpoint.interval=3 s", "--json"])
    assert json.loads(result.stdout)["checkpoint.interval"]["value"] == "3 s"
    result = CliRunner().invoke(app, ["checkpoints", "orders", "-c", f"checkpoint.dir={folder}"])
    assert f"in the checkpoint storage '{folder}'" in str(result.exception)
