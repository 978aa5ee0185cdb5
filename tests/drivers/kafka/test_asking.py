"""A client of Kafka's admin protocol lives until its questions are answered, and no longer."""

from __future__ import annotations

import gc
import threading
import time
import weakref
from concurrent.futures import Future
from typing import Any, cast

import pytest

from tidegate.drivers.kafka import asking
from tidegate.drivers.kafka.admin import KafkaClusterAdmin
from tidegate.drivers.kafka.asking import AdminClients, Question


class Client:
    """A client that answers when the test says so."""


def ask_and_forget(futures: list[Future[Any]]) -> weakref.ref[Client]:
    """Ask a question that times out, and keep only a weak reference to the client."""
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


def wait_until_gone(client: weakref.ref[Client]) -> bool:
    end_s = time.monotonic() + 10
    while client() is not None and time.monotonic() < end_s:
        gc.collect()
        time.sleep(0.01)
    return client() is None


def test_admin_client_is_released_after_its_last_answer_without_a_new_question() -> None:
    futures: list[Future[Any]] = []
    client = ask_and_forget(futures)
    futures[0].set_result(1)
    time.sleep(4 * asking.PAUSE_S)
    assert client() is not None, "one question is open"
    futures[1].set_exception(TimeoutError())
    assert wait_until_gone(client)


def test_a_closed_admin_leaves_no_client_for_the_garbage_collector() -> None:
    """A client has threads and files. The collector may run hours later in a JobMaster."""
    admin = KafkaClusterAdmin({"bootstrap.servers": "localhost:1"})
    client = weakref.ref(admin._clients.current)
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        admin.close()
        del admin
        assert client() is None
    finally:
        if was_enabled:
            gc.enable()


def test_close_releases_an_admin_client_without_open_questions() -> None:
    clients = AdminClients(lambda: cast("Any", Client()))
    client: weakref.ref[Any] = weakref.ref(clients.current)

    def ask(_client: Any, about: list[str], _left_s: float) -> dict[str, Future[Any]]:
        answered: dict[str, Future[Any]] = {each: Future() for each in about}
        for future in answered.values():
            future.set_result(1)
        return answered

    assert Question(clients, ask, lambda _: True).answer(["a"], 1.0)
    clients.close()
    assert client() is None, "the next question may come hours later"


def test_replaced_admin_client_is_released_after_its_answers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(asking, "RENEW_CLIENT_S", 0.02)
    clients = AdminClients(lambda: cast("Any", Client()))
    first: weakref.ref[Any] = weakref.ref(clients.current)
    answers: list[Future[Any]] = []

    def ask(_client: Any, about: list[str], _left_s: float) -> dict[str, Future[Any]]:
        answers.extend(Future() for _ in about)
        if len(answers) == 2:
            threading.Timer(0.05, answer_all).start()
        return dict.fromkeys(about, answers[-1])

    def answer_all() -> None:
        for each in answers:
            each.set_result(1)

    assert Question(clients, ask, lambda _: True).answer(["a"], 10)
    assert len(answers) > 1
    assert wait_until_gone(first)
    assert clients.current is not None
