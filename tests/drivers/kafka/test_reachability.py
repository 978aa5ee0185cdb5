"""The reason why no broker answers: an unknown name, a closed port, no port, another protocol."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest

from tidegate.drivers.kafka import reachability
from tidegate.drivers.kafka.reachability import names_unknown, why_unreachable


@pytest.fixture
def listening() -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


@pytest.fixture
def closed() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port: int = server.getsockname()[1]
    return port


def test_unknown_name_is_named() -> None:
    said = why_unreachable("no-such-host.invalid:9092", "PLAINTEXT")
    assert said == "The name 'no-such-host.invalid' is unknown on this machine. Correct it."
    assert names_unknown("no-such-host.invalid:9092")
    assert not names_unknown("no-such-host.invalid:9092,127.0.0.1:1")


def test_closed_port_is_told_from_a_listener_of_another_protocol(
    closed: int, listening: int
) -> None:
    assert f"127.0.0.1:{closed} refuses connections" in why_unreachable(
        f"127.0.0.1:{closed}", "SSL"
    )
    said = why_unreachable(f"SSL://127.0.0.1:{listening}", "SSL")
    assert f"127.0.0.1:{listening} accepts connections" in said
    assert "security.protocol = SSL" in said


def test_missing_port_is_named_with_the_default_that_was_tried(
    closed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reachability, "DEFAULT_PORT", closed)
    said = why_unreachable("127.0.0.1", "PLAINTEXT")
    assert said.startswith(f"127.0.0.1 has no port, so {closed} was tried. ")


def test_port_that_is_no_number_is_named() -> None:
    said = why_unreachable("127.0.0.1:kafka", "PLAINTEXT")
    assert said == "The port of 127.0.0.1:kafka is not a number. Write HOST:PORT."
