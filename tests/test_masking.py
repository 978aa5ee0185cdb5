"""No secret reaches text that people read: `tidegate config`, logs, errors and reports.

Goal: each key of librdkafka's configuration, wherever it may be given, is either shown or masked,
and the masked ones are exactly the listed ones.
Method: `drivers/kafka/librdkafka_keys.txt` has the names of all documented settings of librdkafka
2.16. The tests draw values, and look for them in everything that is printed.
"""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from tidegate import Json, KafkaSink, KafkaSource, Param, Pipeline, masking
from tidegate.api.pipeline import build
from tidegate.cli import main as command_line
from tidegate.cli.main import app
from tidegate.config import Config, KafkaSettings, foreign_code
from tidegate.config_load import PARAMETERS, load
from tidegate.drivers.logs import LogFormat
from tidegate.errors import ConfigError, InternalError, KafkaError, PipelineError
from tidegate.masking import MASK, is_secret, masked, masked_text
from tidegate.protocol.errors import ErrorReport

KEYS = (Path(__file__).parent / "drivers/kafka/librdkafka_keys.txt").read_text().split()
SECRETS = {
    "sasl.oauthbearer.assertion.private.key.passphrase",
    "sasl.oauthbearer.assertion.private.key.pem",
    "sasl.oauthbearer.client.credentials.client.secret",
    "sasl.oauthbearer.client.secret",
    "sasl.oauthbearer.config",
    "sasl.password",
    "ssl.key.password",
    "ssl.key.pem",
    "ssl.keystore.password",
    "ssl_key",
}
PLACES = ("kafka.properties.", "sources.orders.properties.", "sinks.totals.properties.")

values = st.text("abcXYZ019!$%&/()=?`'\\\"-_.,;:#+*@ \n", min_size=6, max_size=30).map(
    lambda text: f"hush{text}hush"
)


@pytest.fixture(autouse=True)
def nothing_remembered() -> Iterator[None]:
    masking._seen.clear()
    yield
    masking._seen.clear()


def shown(value: str, text: str) -> bool:
    """Whether any quoted form of the value is in the text."""
    quoted = {value, repr(value)[1:-1], json.dumps(value)[1:-1]}
    return any(form in text for form in quoted)


@given(key=st.sampled_from(KEYS), place=st.sampled_from(PLACES), value=values)
def test_of_all_librdkafka_keys_exactly_the_listed_secrets_are_masked(
    key: str, place: str, value: str
) -> None:
    masking._seen.clear()
    if foreign_code(key, value) is not None:
        with pytest.raises(ConfigError) as refused:
            load(command_line={place + key: value})
        assert not shown(value, str(refused.value))
        return
    config = load(command_line={place + key: value})
    section, *_, name = (place + key).split(".", 1)[0], key
    told = json.dumps(masked(config.to_dict()))
    log = log_line("Kafka refuses", **{name: value})
    assert section in told
    if key in SECRETS:
        assert not shown(value, told)
        assert not shown(value, log)
        report = ErrorReport.of(KafkaError(f"{key}={value!r} is refused, and so is {value}"))
        assert not shown(value, report.message)
        report = ErrorReport.of(ValueError(value))
        assert not shown(value, report.message + report.traceback)
    else:
        assert not is_secret(key)
        assert json.dumps(value)[1:-1] in told or "://" in value


@pytest.mark.parametrize("word", ["passphrase", "password", "secret", "token", "key", "assertion"])
@pytest.mark.parametrize("separator", ["_", ".", "-"])
def test_name_that_ends_with_a_secret_word_after_any_separator_is_a_secret(
    word: str, separator: str
) -> None:
    assert is_secret(f"client{separator}{word}")
    assert is_secret(f"CLIENT{separator}{word}".upper())
    assert not is_secret(f"client{separator}{word}{separator}location")


@pytest.mark.parametrize("name", ["key", "record_key", "partition_key", "key_by", "public_key"])
def test_a_name_that_addresses_data_is_no_secret(name: str) -> None:
    assert not is_secret(name)


@pytest.mark.parametrize(
    ("text", "clean"),
    [
        ("s3://me:hush@bucket/x", f"s3://{MASK}@bucket/x"),
        ("at https://hush@host/x.", f"at https://{MASK}@host/x."),
        ("s3://me:hu/s@h@bucket/x", f"s3://{MASK}@bucket/x"),
        ("https://h/x?sig=hush&a=1", f"https://h/x?sig={MASK}&a=1"),
        ("https://h/x?access_token=hush", f"https://h/x?access_token={MASK}"),
        ("file:///data/me@corp/x", "file:///data/me@corp/x"),
        ("SSL://a:9092,SSL://b:9092", "SSL://a:9092,SSL://b:9092"),
        ("me@corp.com asks", "me@corp.com asks"),
    ],
)
def test_credentials_inside_urls_are_masked(text: str, clean: str) -> None:
    assert masked_text(text) == clean
    assert masked({"checkpoint": {"dir": text}}) == {"checkpoint": {"dir": clean}}
    assert f'message="{clean}"' in log_line(text) or f"message={clean}" in log_line(text)


def test_the_config_command_masks_urls_and_passphrases(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    given = ("checkpoint.dir=s3://me:hush-hush@bucket/x", "kafka.properties.ssl_key=hush-hush")
    words = [word for each in given for word in ("-c", each)]
    for form in ([], ["--json"]):
        result = CliRunner().invoke(app, ["config", *words, *form])
        assert result.exit_code == 0
        assert "hush-hush" not in result.output
        assert result.output.count(MASK) == len(given)


def test_settings_that_a_process_receives_are_masked_in_its_logs() -> None:
    kafka = KafkaSettings(properties={"sasl.password": "hush-hush"})
    settings = Config(kafka=kafka).to_dict()
    Config.from_dict(settings)
    assert "hush" not in log_line("the broker said hush-hush")


def test_a_traceback_in_the_log_is_masked() -> None:
    load(command_line={"kafka.properties.sasl.password": "hush-hush"})
    error = ValueError("login with hush-hush failed")
    record = logging.LogRecord("x", logging.ERROR, "", 0, "no", (), None)
    record.exc_info = (ValueError, error, None)
    assert f"login with {MASK} failed" in LogFormat().format(record)


def test_a_secret_parameter_is_in_no_error_and_no_log() -> None:
    class Database(Pipeline, name="database"):
        password = Param(str, secret=True, check=lambda text: text.startswith("hush"), help="")
        pin = Param(int, secret=True, default=1234)
        source = KafkaSource("a", value=Json(int))
        sink = KafkaSink("b", value=Json(int))

        def define(self) -> None:
            if self.password == "hush-raise":
                raise ValueError(f"cannot log in with {self.password}")
            self.source.to(self.sink)

    with pytest.raises(PipelineError) as refused:
        build(Database, {"password": "wrong-hush"})
    assert "wrong-hush" not in str(refused.value)
    with pytest.raises(PipelineError) as refused:
        build(Database, {"password": "hush-1", "pin": "hush-pin"})
    assert "hush-pin" not in str(refused.value)
    with pytest.raises(PipelineError) as refused:
        build(Database, {"password": "hush-raise"})
    assert "hush-raise" not in ErrorReport.of(refused.value).message
    build(Database, {"password": "hush-good"})
    assert "hush-good" not in log_line("logged in with hush-good")


def test_a_default_of_a_secret_parameter_is_not_quoted() -> None:
    with pytest.raises(PipelineError) as refused:
        Param(int, default="hush-hush", secret=True)
    assert "hush" not in str(refused.value)


def test_the_command_line_masks_errors_and_tracebacks(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    load(command_line={"kafka.properties.sasl.password": "hush-hush"})
    for error in (
        ConfigError("hush-hush is wrong."),
        InternalError("hush-hush"),
        OSError("hush-hush"),
    ):

        def fail(_: list[str] | None, *, error: Exception = error, **_options: object) -> None:
            raise error

        monkeypatch.setattr(command_line, "app", fail)
        with pytest.raises(SystemExit) as left:
            command_line.main()
        assert left.value.code == (2 if isinstance(error, ConfigError) else 1)
        told = capsys.readouterr().err
        assert MASK in told
        assert "hush-hush is" not in told


def test_value_without_a_name_on_the_command_line_is_not_quoted() -> None:
    result = CliRunner().invoke(app, ["config", "-c", "=hush-hush"])
    assert isinstance(result.exception, ConfigError)
    assert "hush" not in str(result.exception)


def test_parameters_come_from_the_environment_and_the_command_line_wins(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from tidegate.terminal.options import parameters

    monkeypatch.setenv(PARAMETERS + "DB_PASSWORD", "hush-hush")
    monkeypatch.setenv(PARAMETERS + "LIMIT", "5")
    assert parameters(["limit=6"], "") == {"db_password": "hush-hush", "limit": "6"}
    load(environment={PARAMETERS + "LIMIT": "5"})  # the parameter is not a setting


def test_short_secret_values_do_not_mask_parts_of_words() -> None:
    load(command_line={"kafka.properties.sasl.password": "a"})
    assert masked_text("a task") == "a task"


def log_line(message: str, **extra: object) -> str:
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(LogFormat(role="slot"))
    record = logging.LogRecord("x", logging.INFO, "", 0, message, (), None)
    vars(record).update(extra)
    handler.emit(record)
    return stream.getvalue()
