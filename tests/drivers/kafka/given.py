"""What a client of librdkafka's is made with, looked at instead of made."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest

from tidegate.drivers.kafka.settings import CLIENT_LOG

BROKERS = {"bootstrap.servers": "127.0.0.1:1"}


class Client:
    """A consumer or producer that does nothing; `given` are the settings of the newest."""

    given: Mapping[str, Any]

    def __init__(self, given: Mapping[str, Any]) -> None:
        Client.given = given

    def poll(self) -> None:
        raise AssertionError

    consume = produce = poll

    def list_topics(self, _topic: str, _timeout_s: float) -> None:
        pass

    def init_transactions(self, _timeout_s: float) -> None:
        pass


def client_settings(
    monkeypatch: pytest.MonkeyPatch,
    client: str,
    make: Callable[[dict[str, str]], object],
    callbacks: tuple[str, ...],
    overrides: Mapping[str, str],
) -> dict[str, Any]:
    """The settings, without callbacks and log, that `make` gives the class of the qualified name
    `client`. The user gives `overrides` (underscores for dots).
    """
    monkeypatch.setattr(client, Client)
    make({**BROKERS, **{name.replace("_", "."): value for name, value in overrides.items()}})
    given = dict(Client.given)
    assert given.pop("logger") is CLIENT_LOG
    for name in callbacks:
        assert callable(given.pop(name))
    return given
