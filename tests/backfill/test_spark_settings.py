"""The settings of `[backfill.spark]`: how they are written, which are refused, what Spark gets."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tidegate.backfill.spark.session import _settings
from tidegate.backfill.spark.spark_settings import (
    RESERVED,
    check_names,
    check_settings,
    merged,
    nearest,
    properties_of,
)
from tidegate.config import Config
from tidegate.config_load import load
from tidegate.errors import ConfigError
from tidegate.masking import MASK, masked, masked_text

# --- how they are written ------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    [
        '[backfill.spark]\nexecutor.memory = "4g"\n',
        '[backfill.spark]\n"executor.memory" = "4g"\n',
        '[backfill.spark]\nspark.executor.memory = "4g"\n',
        '[backfill.spark]\n"spark.executor.memory" = "4g"\n',
        '[backfill]\nspark = {executor.memory = "4g"}\n',
        '[backfill.spark.executor]\nmemory = "4g"\n',
    ],
)
def test_spark_settings_have_one_form_however_they_are_written(tmp_path: Path, text: str) -> None:
    (tmp_path / "tidegate.toml").write_text(text)
    config = load(folder=tmp_path)
    assert config.backfill.spark == {"executor.memory": "4g"}
    assert Config.from_dict(config.to_dict()) == config
    assert properties_of(config.backfill.spark) == {"spark.executor.memory": "4g"}


def test_command_line_wins_over_the_file_although_it_writes_the_other_form(tmp_path: Path) -> None:
    (tmp_path / "tidegate.toml").write_text(
        '[backfill.spark]\nexecutor.memory = "4g"\nexecutor.instances = 8\nui.enabled = true\n'
    )
    config = load(
        folder=tmp_path,
        environment={"TIDEGATE_BACKFILL__SPARK__EXECUTOR__CORES": "2"},
        command_line={"backfill.spark.spark.executor.memory": "1g"},
    )
    assert config.backfill.spark == {
        "executor.memory": "1g",
        "executor.instances": "8",
        "ui.enabled": "true",
        "executor.cores": "2",
    }


def test_setting_that_is_given_in_both_forms_in_one_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "tidegate.toml").write_text(
        '[backfill.spark]\nexecutor.memory = "4g"\nspark.executor.memory = "1g"\n'
    )
    with pytest.raises(ConfigError, match=r"backfill\.spark\.executor\.memory in .* given twice"):
        load(folder=tmp_path)


def test_other_wrong_keys_of_a_backfill_are_named() -> None:
    with pytest.raises(ConfigError, match=r"has settings of its own: write \[backfill\.spark\]"):
        load(command_line={"backfill.spark": "x"})
    with pytest.raises(ConfigError, match=r"Unknown setting backfill\.sparc\.memory"):
        load(command_line={"backfill.sparc.memory": "x"})


@pytest.mark.parametrize(
    "name",
    [
        "authenticate.secret",
        "hadoop.fs.s3a.secret.key",
        "hadoop.fs.s3a.access.key",
        "hadoop.fs.azure.account.key.lake.dfs.core.windows.net",
        "kubernetes.authenticate.oauthToken",
        "ssl.keyPassword",
        "executorEnv.AWS_SECRET_ACCESS_KEY",
    ],
)
def test_secrets_of_spark_settings_are_masked(name: str) -> None:
    value = f"hush-{name}"
    config = load(command_line={f"backfill.spark.{name}": value, "backfill.spark.app.name": "mine"})
    shown = masked(config.to_dict())["backfill"]["spark"]
    assert shown == {name: MASK, "app.name": "mine"}
    assert value not in masked_text(f"Spark says {value}.")


# --- which are refused ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name", [*RESERVED, "sql.adaptive.enabled", "sql.execution.arrow.maxRecordsPerBatch"]
)
def test_settings_that_break_a_backfill_are_refused_with_the_reason(name: str) -> None:
    with pytest.raises(ConfigError) as caught:
        check_settings({"executor.memory": "1g", name: "x"}, "spark://h:1")
    said = str(caught.value)
    assert said.startswith(f"Setting backfill.spark.{name} cannot be given: ")
    assert said.endswith(" Remove it.")


def test_number_of_task_failures_is_refused_for_a_local_master_only() -> None:
    check_settings({"task.maxFailures": "8"}, "spark://h:1")
    with pytest.raises(ConfigError, match=r"in its address: local\[N,FAILURES\]"):
        check_settings({"task.maxFailures": "8"}, "local[2]")


class Entries:
    """The settings that Spark knows, as its class `ConfigEntry` answers."""

    def __init__(self, names: Iterator[str]) -> None:
        self.names = sorted(names)

    def findEntry(self, name: str) -> object:  # noqa: N802
        return name if name in self.names else None

    def listAllEntries(self) -> Any:  # noqa: N802
        return SimpleNamespace(iterator=lambda: Entries(iter(self.names)))

    def hasNext(self) -> bool:  # noqa: N802
        return bool(self.names)

    def next(self) -> Any:
        name = self.names.pop()
        return SimpleNamespace(key=lambda: name)


def a_jvm(*names: str) -> Any:
    config = SimpleNamespace(ConfigEntry=Entries(iter(names)))
    internal = SimpleNamespace(config=config)
    return SimpleNamespace(
        org=SimpleNamespace(apache=SimpleNamespace(spark=SimpleNamespace(internal=internal)))
    )


KNOWN = ("spark.executor.memory", "spark.executor.cores", "spark.dynamicAllocation.enabled")


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("spark.executor.memry", "executor.memory"),
        ("spark.executer.memory", "executor.memory"),
        ("spark.dynamicallocation.enabled", "dynamicAllocation.enabled"),
    ],
)
def test_mistyped_name_is_refused_with_the_setting_that_is_meant(name: str, meant: str) -> None:
    with pytest.raises(ConfigError) as caught:
        check_names(a_jvm(*KNOWN), ["spark.executor.cores", name], "local[2]")
    short = name.removeprefix("spark.")
    assert str(caught.value) == (
        f"Spark has no setting {name}. Write backfill.spark.{meant} instead of"
        f" backfill.spark.{short}."
    )


def test_names_of_plugins_and_of_free_prefixes_are_left_to_spark() -> None:
    free = ["spark.rapids.sql.enabled", "spark.executorEnv.LANG", "spark.hadoop.fs.s3a.endpoint"]
    check_names(a_jvm(*KNOWN), free, "local[2]")
    assert nearest("spark.executorEnv.LANG", KNOWN) is None


# --- what Spark gets -----------------------------------------------------------------------------


@pytest.fixture
def defaults(tmp_path: Path) -> Mapping[str, str]:
    return _settings("local[2,4]", tmp_path, (), speculation=False, verbose=False)


def test_given_settings_win_and_the_options_of_java_are_joined(
    defaults: Mapping[str, str],
) -> None:
    given = {"spark.driver.extraJavaOptions": "-Dmine=1", "spark.speculation": "true"}
    found = merged(defaults, given)
    assert found["spark.speculation"] == "true"
    options = found["spark.driver.extraJavaOptions"]
    assert options == f"{defaults['spark.driver.extraJavaOptions']} -Dmine=1"
    assert merged(defaults, {}) == defaults
