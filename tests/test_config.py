"""Where settings come from, which value wins, and how each mistake in them is reported."""

import itertools
import os
import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

import tidegate.config_load as loading
from tidegate import bootstrap
from tidegate.config import (
    NO_VALUE,
    RENAMED,
    CheckpointSettings,
    ClusterSettings,
    Config,
    flattened,
    foreign_code,
)
from tidegate.config_load import checked, known_keys, load
from tidegate.errors import ConfigError
from tidegate.masking import MASK, masked

DOCUMENTED = Path(loading.__file__).with_name("default.toml")


def test_every_key_is_documented_with_its_default() -> None:
    documented = dict(flattened(tomllib.loads(DOCUMENTED.read_text(encoding="utf-8"))))
    assert set(documented) == {
        key for key in known_keys() if not key.endswith("*") and "*" not in key
    }
    assert load(command_line=documented) == Config()


def test_every_documented_key_has_a_comment() -> None:
    lines = DOCUMENTED.read_text(encoding="utf-8").splitlines()
    for before, line in itertools.pairwise(lines):
        if line.startswith("["):
            continue
        if "=" in line and not line.startswith("#"):
            assert before.startswith("#") or "=" in before, f"no word on {line}"


def test_default_toml_is_a_valid_file(tmp_path: Path) -> None:
    (tmp_path / "tidegate.toml").write_text(DOCUMENTED.read_text(encoding="utf-8"))
    assert load(folder=tmp_path) == Config()


class TestOrder:
    def test_each_layer_of_settings_wins_over_the_layer_below(self, tmp_path: Path) -> None:
        (tmp_path / "tidegate.toml").write_text('[checkpoint]\ninterval = "2 s"\ntimeout = "2 s"\n')
        config = load(
            folder=tmp_path,
            environment={"TIDEGATE_CHECKPOINT__TIMEOUT": "3 s", "TIDEGATE_JOB__PARALLELISM": "3"},
            class_statement={"checkpoint.interval": "1 s", "checkpoint.min_pause": "1 s"},
            command_line={"job.parallelism": "4"},
        )
        assert config.checkpoint.min_pause == 1_000
        assert config.checkpoint.interval == 2_000
        assert config.checkpoint.timeout == 3_000
        assert config.job.parallelism == 4

    def test_nearest_toml_file_in_a_parent_folder_is_read(self, tmp_path: Path) -> None:
        below = tmp_path / "a" / "b"
        below.mkdir(parents=True)
        (tmp_path / "tidegate.toml").write_text("[taskmanager]\nslots = 2\n")
        assert load(folder=below).taskmanager.slots == 2
        (tmp_path / "a" / "tidegate.toml").write_text("[taskmanager]\nslots = 3\n")
        assert load(folder=below).taskmanager.slots == 3

    def test_file_may_begin_with_a_bom(self, tmp_path: Path) -> None:
        text = "[taskmanager]\nslots = 2\n"
        (tmp_path / "tidegate.toml").write_text(text, encoding="utf-8-sig")
        assert load(folder=tmp_path).taskmanager.slots == 2

    def test_word_unlimited_in_the_environment_means_no_value(self) -> None:
        environment = {"TIDEGATE_RESTART__ATTEMPTS": "unlimited"}
        assert load(environment=environment, class_statement={"restart.attempts": 3}) == Config()


class TestProperties:
    @pytest.mark.parametrize(
        "text",
        [
            '[kafka.properties]\nsasl.username = "me"\n',
            '[kafka.properties]\n"sasl.username" = "me"\n',
            '[kafka]\nproperties.sasl = {username = "me"}\n',
        ],
    )
    def test_dots_of_a_property_name_may_be_toml_tables(self, tmp_path: Path, text: str) -> None:
        (tmp_path / "tidegate.toml").write_text(text)
        assert load(folder=tmp_path).kafka.properties == {"sasl.username": "me"}

    def test_toml_values_of_properties_become_texts_for_librdkafka(self, tmp_path: Path) -> None:
        (tmp_path / "tidegate.toml").write_text(
            "[sources.orders.properties]\nfetch.min.bytes = 5\ncheck.crcs = true\n"
        )
        orders = load(folder=tmp_path).sources["orders"]
        assert orders.properties == {"fetch.min.bytes": "5", "check.crcs": "true"}

    def test_environment_variables_set_properties_and_topics(self) -> None:
        config = load(
            environment={
                "TIDEGATE_KAFKA__PROPERTIES__SASL__PASSWORD": "s",
                "TIDEGATE_SINKS__TOTALS__TOPIC": "other",
            }
        )
        assert config.kafka.properties == {"sasl.password": "s"}
        assert config.sinks["totals"].topic == "other"


class TestMistakes:
    @pytest.mark.parametrize(
        ("environment", "words"),
        [
            (
                {"TIDEGATE_CHECKPOINT__INTERVALL": "1 s"},
                ("INTERVALL", "did you mean", "checkpoint.interval"),
            ),
            ({"TIDEGATE_CHECKPOINT_INTERVAL": "1 s"}, ("TIDEGATE_CHECKPOINT__INTERVAL",)),
            ({"TIDEGATE_SOURCES__ORDERS__TOPICS": "x"}, ("sources.orders.topics",)),
            (
                {"TIDEGATE_CHECKPOINT__INTERVAL": "10 lightyears"},
                ("lightyears", "duration", "ms, s, min"),
            ),
            ({"TIDEGATE_JOB__PARALLELISM": "0"}, ("job.parallelism", "'0'", "greater")),
            (
                {"TIDEGATE_JOB__PARALLELISM": "many"},
                ("job.parallelism", "TIDEGATE_JOB__PARALLELISM"),
            ),
            (
                {"TIDEGATE_CHECKPOINT__INTERVAL": "0 s"},
                ("checkpoint.interval = '0 s'", "greater than 0"),
            ),
            ({"TIDEGATE_CLUSTER__HEARTBEAT_INTERVAL": "0 s"}, ("greater than 0",)),
            (
                {"TIDEGATE_CLUSTER__HEARTBEAT_TIMEOUT": "1999 ms"},
                ("'1999 ms'", "1000 ms apart", "at least twice cluster.heartbeat_interval"),
            ),
        ],
    )
    def test_error_names_the_variable_the_key_and_the_remedy(
        self, environment: dict[str, str], words: tuple[str, ...]
    ) -> None:
        with pytest.raises(ConfigError) as error:
            load(environment=environment)
        for word in (*environment, *words):
            assert word in str(error.value)
        assert "\n" not in str(error.value)

    @pytest.mark.parametrize(
        "text",
        [
            "[checkpoint]\ninteval = 1\n",
            "interval = 1\n",
            "[nonsense]\nx = 1\n",
            "x\n",
            '[kafka]\nbootstrap_servers = ["a:1", "b:2"]\n',
        ],
    )
    def test_error_names_the_toml_file(self, tmp_path: Path, text: str) -> None:
        path = tmp_path / "tidegate.toml"
        path.write_text(text)
        with pytest.raises(ConfigError, match=r"tidegate[.]toml"):
            load(folder=tmp_path)

    @pytest.mark.parametrize(
        ("text", "table"),
        [
            ("kafka = 3\n", "kafka"),
            ("[kafka]\nproperties = 3\n", "kafka.properties"),
            ('[sources]\norders = "x"\n', "sources.orders"),
        ],
    )
    def test_value_instead_of_a_table_is_refused_with_the_remedy(
        self, tmp_path: Path, text: str, table: str
    ) -> None:
        (tmp_path / "tidegate.toml").write_text(text)
        with pytest.raises(ConfigError) as error:
            load(folder=tmp_path)
        assert f"has settings of its own: write [{table}]." in str(error.value)

    def test_unknown_setting_of_a_source_is_refused_with_the_one_that_is_near(
        self, tmp_path: Path
    ) -> None:
        (tmp_path / "tidegate.toml").write_text('[sources.orders]\ntopics = "x"\n')
        with pytest.raises(ConfigError, match=r"did you mean sources\.orders\.topic\?"):
            load(folder=tmp_path)

    def test_error_of_two_conflicting_settings_names_also_the_one_that_was_not_set(self) -> None:
        with pytest.raises(ConfigError) as error:
            load(environment={"TIDEGATE_CLUSTER__HEARTBEAT_INTERVAL": "10 s"})
        assert "cluster.heartbeat_timeout = 15000 in the configuration" in str(error.value)

    def test_environment_variables_of_tests_are_not_read_as_settings(self) -> None:
        assert load(environment={"TIDEGATE_TEST_KILL": "x", "PATH": "x"}) == Config()


@pytest.mark.parametrize(
    ("interval", "timeout", "quiet"),
    [(1_000, 15_000, 3_000), (300, 4_000, 800), (1_000, 60_000, 3_000), (5_000, 60_000, 5_000)],
)
def test_quiet_heartbeat_interval_is_derived_from_the_interval_and_the_timeout(
    interval: int, timeout: int, quiet: int
) -> None:
    settings = ClusterSettings(heartbeat_interval=interval, heartbeat_timeout=timeout)
    assert settings.quiet_interval == quiet


def test_secrets_are_not_shown() -> None:
    config = load(
        command_line={
            "kafka.properties.sasl.password": "hush",
            "kafka.properties.ssl.key.password": "hush",
            "kafka.properties.ssl.key.pem": "hush",
            "kafka.properties.sasl.oauthbearer.client.secret": "hush",
            "sources.orders.properties.sasl.password": "hush",
            "kafka.properties.sasl.username": "me",
        }
    )
    shown = masked(config.to_dict())
    assert "hush" not in str(shown)
    assert shown["kafka"]["properties"]["sasl.password"] == MASK
    assert shown["kafka"]["properties"]["sasl.username"] == "me"
    assert shown["checkpoint"] == config.to_dict()["checkpoint"]


def test_a_secret_of_the_wrong_type_is_not_quoted(tmp_path: Path) -> None:
    (tmp_path / "tidegate.toml").write_text('[kafka]\nproperties = "sasl.password=hush"\n')
    with pytest.raises(ConfigError) as error:
        load(folder=tmp_path)
    assert "hush" not in str(error.value)


def test_config_is_read_back_equal_from_the_dict_of_a_submission() -> None:
    config = load(command_line={"checkpoint.interval": "1 s", "sources.orders.topic": "o"})
    assert Config.from_dict(config.to_dict()) == config


def test_word_none_is_a_choice_of_restart_strategy_and_means_no_job_name() -> None:
    given = {"restart.strategy": "none", "job.name": "none"}
    config = load(class_statement={"restart.attempts": 3, "job.name": "a"}, command_line=given)
    assert (config.restart.strategy, config.job.name) == ("none", None)


@pytest.mark.parametrize(("key", "text"), NO_VALUE.items())
def test_setting_with_its_own_word_for_no_value_refuses_none(key: str, text: str) -> None:
    section, _, name = key.partition(".")
    given = {key: "3"}
    assert getattr(getattr(load(class_statement=given), section), name) is not None
    config = load(class_statement=given, command_line={key: text})
    assert getattr(getattr(config, section), name) is None
    with pytest.raises(ConfigError, match=f"{key} = 'none' in the command line: write \"{text}\""):
        load(command_line={key: "none"})


@pytest.mark.parametrize("line", ["interval = 10", "timeout = 0", "min_pause = 1.5"])
def test_a_number_without_a_unit_is_refused_from_a_file(tmp_path: Path, line: str) -> None:
    (tmp_path / "tidegate.toml").write_text(f"[checkpoint]\n{line}\n")
    with pytest.raises(ConfigError, match="has no unit: write it as text with one of ms, s"):
        load(folder=tmp_path)
    # The class statement gives milliseconds, from a Duration that had its unit.
    assert load(class_statement={"checkpoint.interval": 10}).checkpoint.interval == 10


@pytest.mark.parametrize(
    "key",
    [
        "kafka.properties.plugin.library.paths",
        "kafka.properties. Plugin.Library.Paths ",
        "kafka.properties.plugin.library.paths\0x",
        "sources.orders.properties.plugin.library.paths",
        "sinks.totals.properties.PLUGIN.library.paths",
        "sources.properties.properties.plugin.library.paths",
        "sinks.totals.properties.ssl.engine.location",
        "sources.orders.properties.sasl.kerberos.kinit.cmd",
        "kafka.properties.ssl.providers",
        "kafka.properties.topic.topic.SSL.Providers",
        "sinks.totals.properties.ssl.engine.id",
    ],
)
def test_a_setting_that_starts_foreign_code_is_refused(tmp_path: Path, key: str) -> None:
    with pytest.raises(ConfigError, match=r"in the command line is not allowed: .* Remove it"):
        load(command_line={key: "/tmp/evil.so"})
    quoted = key.replace("\0", "\\u0000").split(".properties.")
    table, name = ".properties.".join(quoted[:-1]) + ".properties", quoted[-1]
    (tmp_path / "tidegate.toml").write_text(f'[{table}]\n"{name}" = "/tmp/evil.so"\n')
    with pytest.raises(ConfigError, match=r"tidegate\.toml is not allowed"):
        load(folder=tmp_path)


def test_a_setting_that_starts_foreign_code_is_refused_from_the_environment() -> None:
    with pytest.raises(ConfigError, match=r"\.plugin\.library\.paths in the environment"):
        load(environment={"TIDEGATE_KAFKA__PROPERTIES__PLUGIN__LIBRARY__PATHS": "evil"})


def test_every_librdkafka_setting_that_names_code_is_refused() -> None:
    keys = (Path(__file__).parent / "drivers/kafka/librdkafka_keys.txt").read_text().split()
    parts = ("library", "plugin", "engine", "provider", "module", "cmd", "command", "exec")
    named = {key for key in keys if any(part in key for part in parts)}
    named.discard("ssl_engine_callback_data")  # a pointer for the engine, which is refused itself
    assert named >= {"ssl.providers", "ssl.engine.id", "plugin.library.paths"}
    assert [key for key in sorted(named) if foreign_code(key) is None] == []


@pytest.mark.parametrize("key", ["sasl.kerberos.principal", "SASL.kerberos.keytab"])
def test_a_value_that_librdkafka_passes_to_a_shell_is_refused_unless_it_is_plain(key: str) -> None:
    for plain in ("etl/host-1.example.com@REALM.EXAMPLE", "/etc/security/etl.keytab"):
        assert foreign_code(key, plain) is None
    for harmful in ("x; id", "$(id)", "`id`", "a\nid", 'x" || id "', "x\\", "a b", "é"):
        with pytest.raises(ConfigError, match="passes the value to a shell"):
            load(command_line={f"kafka.properties.{key}": harmful})


def test_a_process_refuses_settings_that_start_foreign_code_from_its_parent() -> None:
    given = Config().to_dict()
    given["sources"] = {"orders": {"topic": None, "properties": {"ssl.providers": "/tmp/evil"}}}
    with pytest.raises(ConfigError, match=r"sources\.orders\.properties\.ssl\.providers in the "):
        Config.from_dict(given)


@pytest.fixture
def foreign(monkeypatch: pytest.MonkeyPatch) -> Callable[[Path], None]:
    """Gives a path to another user."""
    if os.geteuid() == 0:
        return lambda path: os.chown(path, 12345, -1, follow_symlinks=False)
    owner = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: owner + 1)
    return lambda _: None


class TestForeignFile:
    """A `tidegate.toml` that another user can write says where credentials are sent."""

    @pytest.fixture
    def below(self, tmp_path: Path) -> Path:
        (tmp_path / "tidegate.toml").write_text('[kafka]\nbootstrap_servers = "evil:9092"\n')
        folder = tmp_path / "of" / "mine"
        folder.mkdir(parents=True)
        return folder

    def test_a_file_of_another_user_in_a_parent_folder_is_refused(
        self, below: Path, foreign: Callable[[Path], None]
    ) -> None:
        file = below.parent.parent / "tidegate.toml"
        foreign(file)
        with pytest.raises(ConfigError, match=f"{file} is not read, because it or its folder bel"):
            load(folder=below)

    def test_a_parent_folder_of_another_user_is_refused(
        self, below: Path, foreign: Callable[[Path], None]
    ) -> None:
        foreign(below.parent.parent)
        with pytest.raises(ConfigError, match="belongs to another user"):
            load(folder=below)

    @pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a link away")
    def test_a_link_of_another_user_is_refused(
        self, below: Path, foreign: Callable[[Path], None]
    ) -> None:
        file = below.parent.parent / "tidegate.toml"
        target = file.rename(file.with_name("mine.toml"))
        file.symlink_to(target)
        assert load(folder=below).kafka.bootstrap_servers == "evil:9092"
        foreign(file)
        with pytest.raises(ConfigError, match="belongs to another user"):
            load(folder=below)

    @pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
    def test_toml_file_in_the_working_folder_must_have_the_owner_of_the_folder(
        self, below: Path, foreign: Callable[[Path], None]
    ) -> None:
        folder = below.parent.parent
        foreign(folder / "tidegate.toml")
        with pytest.raises(ConfigError, match="belongs to another user"):
            load(folder=folder)  # another user has put it into my folder, which could be /tmp
        foreign(folder)
        assert load(folder=folder).kafka.bootstrap_servers == "evil:9092"

    def test_toml_file_of_the_same_user_in_a_parent_folder_is_read(self, below: Path) -> None:
        assert load(folder=below).kafka.bootstrap_servers == "evil:9092"


def renamed() -> list[tuple[str, str]]:
    return list(RENAMED.items())


@pytest.mark.parametrize(("before", "now"), renamed())
def test_stored_setting_under_an_earlier_name_keeps_its_value(before: str, now: str) -> None:
    section, _, key = now.partition(".")
    settings = Config().to_dict()
    value = _other(settings[section].pop(key))
    settings[section][before.partition(".")[2]] = value
    assert getattr(getattr(Config.from_dict(settings), section), key) == value


def _other(value: Any) -> Any:
    """Return another valid value of the same type."""
    if isinstance(value, str):
        return f"{value}x"
    return value / 2 if isinstance(value, float) else value + 5


@pytest.mark.parametrize(("before", "now"), renamed())
def test_earlier_name_of_a_setting_is_refused_with_the_present_name(before: str, now: str) -> None:
    with pytest.raises(ConfigError, match=f"{before} in the command line is called {now} now"):
        load(environment={}, command_line={before: "3"})


@pytest.mark.parametrize(("before", "now"), renamed())
def test_renamed_setting_is_known_only_by_its_present_name(before: str, now: str) -> None:
    assert now in known_keys()
    assert before not in known_keys()


def test_optional_duration_without_a_unit_is_refused(tmp_path: Path) -> None:
    (tmp_path / "tidegate.toml").write_text("[backfill]\nwave_span = 10\n")
    with pytest.raises(ConfigError, match=r"backfill\.wave_span = 10 in .* has no unit"):
        load(folder=tmp_path)


def test_settings_of_a_later_version_are_refused_with_their_names() -> None:
    settings = Config().to_dict()
    settings["checkpoint"]["compression"] = "zstd"
    settings["metrics"] = {}
    with pytest.raises(ConfigError, match=r"have checkpoint\.compression, metrics, which this"):
        Config.from_dict(settings)


def test_a_section_alone_is_checked_as_in_the_whole_configuration() -> None:
    assert checked(CheckpointSettings, {"interval": "2 s"}).interval == 2_000
    for wrong in ({"intervall": "2 s"}, {"interval": "0 s"}):
        with pytest.raises(ValidationError):
            checked(CheckpointSettings, wrong)


def test_settings_of_another_type_are_refused() -> None:
    settings = Config().to_dict()
    settings["checkpoint"]["interval"] = "10 s"
    with pytest.raises(ConfigError, match=r"Expected `int`, got `str` - at `\$\.checkpoint"):
        Config.from_dict(settings)


def test_processes_of_a_cluster_do_not_import_pydantic() -> None:
    modules = {"tidegate.bootstrap"}
    for preloaded in bootstrap._PRELOADED.values():
        modules |= {main.partition(":")[0] for main in preloaded}
    script = f"import importlib, sys; [*map(importlib.import_module, {sorted(modules)})]"
    script += "; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True)
    found = set(done.stdout.decode().split())
    assert "tidegate.slot.main" in found
    assert not {"pydantic", "pydantic_core", "tidegate.config_load"} & found
