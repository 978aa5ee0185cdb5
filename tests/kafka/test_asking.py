"""A client of Kafka's admin protocol is not garbage while librdkafka's thread works for it."""

from __future__ import annotations

import gc
import weakref
from concurrent.futures import Future
from typing import Any, cast

from tidegate.drivers.kafka.asking import AdminClients, Question


class Client:
    """One whose answers come when the test says so."""


def ask_and_forget(futures: list[Future[Any]]) -> weakref.ref[Client]:
    """A question that is given up, by somebody who keeps nothing of it."""
    clients = AdminClients(lambda: cast("Any", Client()))
    client: Any = clients.current

    def ask(_client: Any, about: list[str], _left_s: float) -> dict[str, Future[Any]]:
        made: dict[str, Future[Any]] = {each: Future() for each in about}
        futures.extend(made.values())
        return made

    assert not Question(clients, ask, lambda _: True).answer(["a", "b"], 0.01)
    return weakref.ref(client)


def test_a_client_is_held_until_all_of_its_questions_are_answered() -> None:
    futures: list[Future[Any]] = []
    client = ask_and_forget(futures)
    gc.collect()
    assert client() is not None, "librdkafka's own thread could collect it"
    futures[0].set_result(1)
    ask_and_forget([])
    assert client() is not None, "one question is open"
    futures[1].set_exception(TimeoutError())
    ask_and_forget([])
    gc.collect()
    assert client() is None
