"""The checks of the storage: a loss, a return and a check that hangs are each reported once."""

from __future__ import annotations

import logging
import queue
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tidegate.controlplane.jobmaster.storage_watch import SLOW_S, StorageWatch
from tidegate.controlplane.journal.storage_calls import StorageCalls
from tidegate.drivers.threads import SystemThreads
from tidegate.errors import StorageError, StorageGoneError


class Clock:
    now_s = 0.0

    def monotonic(self) -> float:
        return self.now_s


class Store:
    def __init__(self) -> None:
        self.answers: queue.SimpleQueue[Exception | None] = queue.SimpleQueue()
        self.asked: queue.SimpleQueue[bool] = queue.SimpleQueue()

    def confirm(self) -> None:
        self.asked.put(True)
        answer = self.answers.get(timeout=30)
        if answer is not None:
            raise answer


class Watched:
    def __init__(self) -> None:
        self.store, self.clock = Store(), Clock()
        self.calls = StorageCalls(cast("Any", self.clock))
        self.posted: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self.watch = StorageWatch(
            cast(
                "Any",
                SimpleNamespace(
                    store=self.store,
                    location="/mnt/x",
                    calls=self.calls,
                    timeout_s=120.0,
                ),
            ),
            cast("Any", SimpleNamespace(clock=self.clock, threads=SystemThreads(), process=None)),
            self.posted.put,
        )

    def check_storage(self, answer: Exception | None) -> None:
        self.watch.check_storage()
        self.store.answers.put(answer)
        self.posted.get(timeout=30)()


def test_storage_loss_and_return_are_each_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    watched = Watched()
    for answer in (None, StorageGoneError("X is gone."), StorageGoneError("X is gone.")):
        watched.check_storage(answer)
    assert watched.watch.problem == "X is gone."
    watched.check_storage(StorageError("a hiccup says nothing"))
    assert watched.watch.gone == "X is gone."
    watched.check_storage(None)
    assert watched.watch.problem == ""
    assert [record.levelname for record in caplog.records] == ["ERROR", "WARNING"]


def test_storage_check_that_hangs_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    watched = Watched()
    watched.watch.check_storage()
    assert watched.store.asked.get(timeout=30)
    watched.clock.now_s = SLOW_S
    assert watched.watch.problem == ""
    watched.clock.now_s = SLOW_S + 0.1
    for _ in range(3):
        watched.watch.check_storage()
    assert "/mnt/x has not answered for 2 s" in watched.watch.problem
    assert len(caplog.records) == 1
    watched.store.answers.put(None)
    watched.posted.get(timeout=30)()
    assert watched.watch.problem == ""


def test_call_of_another_thread_that_hangs_is_shown() -> None:
    watched = Watched()
    with watched.calls.during("ReadObject job/journal/00001.json"):
        watched.clock.now_s = SLOW_S + 0.1
        assert "/mnt/x has not answered for 2 s" in watched.watch.problem
    assert watched.watch.problem == ""


def test_failure_is_judged_after_a_storage_check_that_began_later() -> None:
    watched, judged = Watched(), list[str]()
    watched.watch.check_storage()  # it may have seen the storage before the failure
    watched.watch.check_storage_then(lambda: judged.append(watched.watch.gone))
    watched.store.answers.put(None)
    watched.posted.get(timeout=30)()
    assert judged == []
    watched.store.answers.put(StorageGoneError("X is gone."))
    watched.posted.get(timeout=30)()
    assert judged == ["X is gone."]


@pytest.mark.parametrize("error", [OSError("too many open files"), MemoryError()])
def test_storage_check_that_raises_any_error_ends_and_later_checks_run(error: Exception) -> None:
    """A failed checkpoint waits for a look, so that one without an end would stop all others."""
    watched, judged = Watched(), list[str]()
    watched.watch.check_storage_then(lambda: judged.append(watched.watch.gone))
    watched.store.answers.put(error)
    watched.posted.get(timeout=10)()
    assert judged == [""]
    watched.check_storage(StorageGoneError("X is gone."))
    assert watched.watch.problem == "X is gone."


def test_failure_without_a_running_storage_check_starts_one() -> None:
    watched, judged = Watched(), list[str]()
    for _ in range(2):
        watched.watch.check_storage_then(lambda: judged.append(watched.watch.gone))
    for _ in range(2):
        watched.store.answers.put(None)
        watched.posted.get(timeout=30)()
    assert judged == ["", ""]


def test_storage_check_is_a_watched_storage_call() -> None:
    watched = Watched()
    watched.watch.check_storage()
    assert watched.store.asked.get(timeout=30)
    call = watched.calls.hanging(-1.0)
    assert call is not None
    assert call.what == "the look at the storage"
    watched.store.answers.put(None)
    watched.posted.get(timeout=30)()
    assert watched.calls.hanging(-1.0) is None
