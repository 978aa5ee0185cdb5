"""Starts of the embedded broker that fail, without Java: each says why and leaves nothing behind.

Method: small Python programs in the places of Kafka's storage tool and of its broker.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from tidegate.drivers.kafka import embedded
from tidegate.drivers.kafka.embedded import STARTS_MAX, EmbeddedKafka
from tidegate.errors import KafkaError

NOTHING = ""
SLEEPS = "import time; time.sleep(60)"
WORKS = "while True: pass"
TAKEN = "print('java.net.BindException: Address already in use')"


class FakeJava:
    """Starts these programs."""

    def __init__(self, folder: Path) -> None:
        self.kafka_archive = folder / "kafka.jsa"
        self.tool, self.broker = NOTHING, SLEEPS
        self.starts = 0

    def command(self, main: str, *_: object, record: Path | None = None) -> list[str]:
        self.starts += main == "kafka.Kafka"
        return [sys.executable, "-c", self.broker if main == "kafka.Kafka" else self.tool]


@pytest.fixture
def java(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeJava:
    made = FakeJava(tmp_path)
    monkeypatch.setattr(embedded, "find_java", lambda *_: made)
    return made


def refused(folder: Path, **options: Any) -> str:
    with pytest.raises(KafkaError) as caught:
        EmbeddedKafka.start("4.3.0", directory=folder / "data", owned=True, **options)
    assert EmbeddedKafka.attach(folder / "data") is None, "nothing stays behind"
    return str(caught.value)


def test_failed_format_of_the_data_is_reported_with_the_output_of_the_tool(
    java: FakeJava, tmp_path: Path
) -> None:
    java.tool = "print('no room'); raise SystemExit(3)"
    told = refused(tmp_path)
    assert "4.3.0 did not start: its data could not be formatted (3)" in told
    assert told.endswith("\nno room")
    assert java.starts == 0


def test_broker_that_exits_at_start_is_reported_with_its_last_output(
    java: FakeJava, tmp_path: Path
) -> None:
    java.broker = "print('a setting is wrong')"
    told = refused(tmp_path, timeout_s=10.0)
    assert "did not start: its process has ended" in told
    assert told.endswith("\na setting is wrong")


def test_start_fails_after_the_timeout_if_the_broker_does_not_answer(
    java: FakeJava, tmp_path: Path
) -> None:
    assert "did not start: it did not answer in 0 s" in refused(tmp_path, timeout_s=0.2)


def test_a_start_that_does_nothing_fails_and_one_that_works_is_waited_for(
    java: FakeJava, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert embedded.START_TIMEOUT_S == 600, "the help says ten minutes"
    monkeypatch.setattr(embedded, "STALL_TIMEOUT_S", 0.5)
    monkeypatch.setattr(embedded, "WAIT_REPORTED_S", 0.2)
    java.broker = WORKS
    reports: list[str] = []
    told = refused(tmp_path, timeout_s=2.0, report=reports.append)
    assert "did not start: it did not answer in 2 s" in told
    log = tmp_path / "data" / "1" / "log"
    assert reports[0].startswith("Kafka 4.3.0 is starting (pid ")
    assert reports[0].endswith(f"s. Its log is {log}.")
    java.broker = SLEEPS
    assert "its process has used no processor time for 0 s" in refused(tmp_path, timeout_s=60.0)


def test_start_fails_after_the_maximum_number_of_tries_with_other_ports(
    java: FakeJava, tmp_path: Path
) -> None:
    java.broker = TAKEN
    assert f"{STARTS_MAX} times another process took one of its ports" in refused(tmp_path)
    assert java.starts == STARTS_MAX


def test_restart_keeps_its_ports_and_fails_if_a_port_is_in_use(
    java: FakeJava, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as ready:
        ready.setattr(embedded, "wait_ready", lambda *_, **__: None)
        kafka = EmbeddedKafka.start("4.3.0", directory=tmp_path / "data", owned=True)
    with kafka:
        java.broker = TAKEN
        with pytest.raises(KafkaError, match="did not start: a port is taken"):
            kafka.restart()
