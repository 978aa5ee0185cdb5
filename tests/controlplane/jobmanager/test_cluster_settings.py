"""The settings of a submission that a session cluster replaces with its own."""

from __future__ import annotations

import msgspec

from tidegate.config import Config
from tidegate.config_load import load
from tidegate.controlplane.jobmanager.cluster_settings import apply_cluster_settings, missing_secret
from tidegate.ids import JobName
from tidegate.protocol.submission import Submission
from tidegate.protocol.versions import PYTHON, TIDEGATE

OWN = {
    "checkpoint.dir": "s3://bucket/ours",
    "checkpoint.interval": "7 s",
    "state.local_dir": "/disk/state",
    "logs.dir": "/disk/logs",
    "cluster.heartbeat_timeout": "5 s",
    "kafka.bootstrap_servers": "ours:9092",
}
THEIRS = {
    "checkpoint.dir": "/laptop/checkpoints",
    "checkpoint.interval": "1 s",
    "state.local_dir": "/laptop/state",
    "state.backend": "memory",
    "logs.dir": "/laptop/logs",
    "cluster.heartbeat_timeout": "60 s",
    "kafka.bootstrap_servers": "theirs:9092",
}


def config(**given: str) -> Config:
    return load(command_line={key.replace("__", "."): value for key, value in given.items()})


def submission(settings: dict[str, object]) -> Submission:
    return Submission(
        job=JobName("a"),
        reference="m:C",
        working_folder="/app",
        params={},
        parallelism=1,
        max_parallelism=128,
        settings=settings,
        fingerprint="",
        code_digest="",
        python_version=PYTHON,
        tidegate_version=TIDEGATE,
    )


def test_session_cluster_imposes_its_directories_and_cluster_settings_and_no_others() -> None:
    given = submission(load(command_line=THEIRS).to_dict())
    imposed = apply_cluster_settings(given, load(command_line=OWN))
    result = Config.from_dict(imposed.settings)
    assert result.checkpoint.dir == "s3://bucket/ours"
    assert result.checkpoint.interval == 1_000
    assert result.state.local_dir == "/disk/state"
    assert result.state.backend == "memory"
    assert result.logs.dir == "/disk/logs"
    assert result.cluster.heartbeat_timeout == 5_000
    assert result.kafka.bootstrap_servers == "theirs:9092"
    assert msgspec.structs.replace(imposed, settings=given.settings) == given


def test_missing_secret_is_reported_by_its_key_without_its_value() -> None:
    key = "kafka.properties.sasl.password"
    given = submission(load(command_line={key: "s3cr3t"}).to_dict())
    assert missing_secret(given, load(command_line={key: "s3cr3t"})) is None
    for own in ({}, {key: "0ther"}):
        why_not = missing_secret(given, load(command_line=own))
        assert why_not is not None
        assert key in why_not
        assert "TIDEGATE_KAFKA__PROPERTIES__SASL__PASSWORD" in why_not
        assert "s3cr3t" not in why_not


def test_setting_that_is_not_secret_may_differ_from_the_cluster() -> None:
    given = submission(load(command_line={"kafka.properties.client.id": "x"}).to_dict())
    assert missing_secret(given, Config()) is None


def test_empty_secret_is_not_reported_as_missing() -> None:
    given = submission(load(command_line={"kafka.properties.sasl.password": ""}).to_dict())
    assert missing_secret(given, Config()) is None
