"""What commands refuse before they send a request, and the exit codes of these refusals."""

from __future__ import annotations

import errno
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from typer.testing import CliRunner

from tidegate.cli.cluster import session
from tidegate.cli.main import app, main
from tidegate.cli.run import local_run
from tidegate.cli.run.local_run import with_enough_slots
from tidegate.config_load import load
from tidegate.controlplane.client.client import Client
from tidegate.drivers.kafka.embedded import EmbeddedKafka
from tidegate.errors import ConfigError, KafkaUnavailableError, RefusedError, RpcError, UserError
from tidegate.masking import MASK
from tidegate.terminal.options import parameters, parse_pairs

REFERENCE = "pipelines.order_totals:OrderTotals"


def run(*words: str) -> int:
    """The exit code; an error of tidegate is raised as `main` would get it."""
    result = CliRunner().invoke(app, list(words))
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.exit_code


def test_slots_given_by_the_user_are_not_raised_to_the_parallelism() -> None:
    given = {"job.parallelism": "4", "taskmanager.slots": "1", "cluster.task_managers": "2"}
    settings = load(command_line=given)
    with pytest.raises(
        ConfigError, match=r"needs 4 slots, .* would have 2: 2 TaskManagers with 1 slot each"
    ):
        with_enough_slots(settings, {"taskmanager.slots": 1})
    enough = with_enough_slots(settings, {})
    assert enough.taskmanager.slots == 2


def test_other_taskmanager_settings_are_kept_when_slots_are_added() -> None:
    settings = load(command_line={"job.parallelism": "4", "taskmanager.host": "here"})
    assert with_enough_slots(settings, {}).taskmanager.host == "here"


def test_more_slots_than_a_taskmanager_can_have_are_refused() -> None:
    settings = load(command_line={"job.parallelism": "600"})
    with pytest.raises(ConfigError, match=r"has 256 at most\. Start more .*: --task-managers 3\."):
        with_enough_slots(settings, {})


@pytest.mark.parametrize("text", ["limit", "=5", ""])
def test_option_that_is_not_name_value_is_refused_with_an_example(text: str) -> None:
    assert parse_pairs(["a=1", "b = x=y"], "--set", "") == {"a": "1", "b": " x=y"}
    shown = re.escape(text.replace("5", MASK))  # a value without a name may be a secret
    with pytest.raises(ConfigError, match=f"--set '{shown}' is not NAME=VALUE. Example: run"):
        parse_pairs([text], "--set", "Example: run")


def test_setting_that_is_given_as_a_parameter_is_refused_with_the_right_option() -> None:
    assert parameters(["minimum=2"], "") == {"minimum": "2"}
    for name in ("backfill.spark.executor.memory", "checkpoint.interval"):
        with pytest.raises(ConfigError) as caught:
            parameters([f"{name}=secret"], "")
        assert str(caught.value) == (
            f"--set {name} names a setting of tidegate, and --set is for parameters of the "
            f"pipeline. Write -c {name}=VALUE."
        )


@pytest.mark.parametrize("code", [0, 1, 2])
def test_run_command_returns_the_exit_code_of_the_local_run(
    monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    monkeypatch.setattr(local_run, "execute", lambda *_, **__: code)
    assert run("run", REFERENCE) == code


def test_submit_command_is_refused_if_no_kafka_broker_answers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def silent(*_: object) -> None:
        message = "No Kafka broker answered."
        raise KafkaUnavailableError(message)

    monkeypatch.setattr(session, "check_kafka", silent)
    with pytest.raises(RefusedError, match="No Kafka broker answered"):
        run("submit", REFERENCE)


def test_running_kafka_broker_is_not_started_with_more_nodes(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    two: Any = SimpleNamespace(pids=[1, 2], alive=[True, True], bootstrap="h:1,h:2")
    monkeypatch.setattr(EmbeddedKafka, "attach", lambda _: two)
    with pytest.raises(UserError, match=r"runs already, with 2 nodes\. .* kafka down --wipe"):
        run("kafka", "up", "--nodes", "3")
    assert run("kafka", "up", "--nodes", "2") == 0


def test_kafka_status_command_has_exit_code_1_without_a_broker(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run("kafka", "status") == 1


def test_kafka_down_command_of_a_missing_version_lists_the_existing_versions(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / ".tidegate/kafka/4.3.0").mkdir(parents=True)
    (tmp_path / ".tidegate/kafka/4.3.0/cluster.json").touch()
    result = CliRunner().invoke(app, ["kafka", "down", "--version", "9"])
    assert "No broker in this folder of version 9; there is 4.3.0: nothing" in result.stderr


@pytest.mark.parametrize("name", ["a b", "../x", "Größe", ""])
@pytest.mark.parametrize("command", ["checkpoints", "status", "stop", "cancel"])
def test_name_that_is_not_valid_for_a_pipeline_is_refused(command: str, name: str) -> None:
    with pytest.raises(ConfigError, match="is no name of a pipeline, which has lower-case"):
        run(command, name)


@pytest.mark.parametrize("id_", ["abc", "7", "1-2-3", "newest"])
def test_invalid_checkpoint_id_to_restore_is_refused_before_kafka_is_asked(id_: str) -> None:
    with pytest.raises(ConfigError, match=f"--restore '{id_}' is neither latest nor none nor"):
        run("run", REFERENCE, "--restore", id_)


def test_error_of_a_jobmanager_that_does_not_answer_has_a_remedy() -> None:
    with pytest.raises(RpcError) as caught:
        run("list", "--jobmanager", "localhost:1")
    words = "No JobManager has answered at localhost:1. Start one there with tidegate jobmanager."
    assert str(caught.value).startswith(words)
    with pytest.raises(RpcError, match=r"host\.invalid:1, and this machine does not know"):
        run("list", "--jobmanager", "no-such-host.invalid:1")


@pytest.mark.parametrize("words", [("list",), ("status", "totals")])
def test_error_of_a_folder_without_runs_names_the_folder(
    words: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TIDEGATE_JOBMANAGER__PORT", "1")
    with pytest.raises(RpcError, match=f"under way in {tmp_path}. No JobManager has answered at"):
        run(*words)


@pytest.mark.parametrize("words", [("list",), ("status", "x"), ("stop", "x"), ("cancel", "x")])
def test_folder_without_runs_is_named_at_once_if_no_jobmanager_is_named(
    words: tuple[str, ...],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    asked: list[str] = []

    def unanswered(_client: Client, message: object, *_rest: object) -> None:
        asked.append(type(message).__name__)
        raise RpcError("no process answers there")

    monkeypatch.setattr(Client, "_call", unanswered)
    with pytest.raises(RpcError) as caught:
        run(*words)
    said = str(caught.value)
    assert f"is under way in {tmp_path}. No JobManager answers at localhost:6123" in said
    assert "Repeat the command in the folder where the run was started." in said
    assert len(asked) == 1, "a request is not repeated, so the user does not wait"
    assert "waiting" not in capsys.readouterr().err


def test_setting_without_a_value_is_refused_with_an_example_of_a_setting() -> None:
    with pytest.raises(ConfigError, match=r"not NAME=VALUE\. Example: -c 'checkpoint\.interval="):
        run("run", REFERENCE, "-c", "checkpoint.interval")


def test_disk_error_of_any_command_is_one_sentence_that_names_the_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(**_given: object) -> None:
        raise OSError(errno.EROFS, "Read-only file system", "/data/.tidegate")

    monkeypatch.setattr(session, "load_with_origins", fails)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as ended:
        main(["list"])
    told = capsys.readouterr().err
    assert (ended.value.code, told.count("\n")) == (1, 1)
    assert told.startswith("tidegate: /data/.tidegate cannot be used: Read-only file system. ")
