"""A pool of threads while the operating system refuses another one."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

from tidegate.drivers.threads import SystemThreads


def refuse(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    def start(_: threading.Thread) -> None:
        raise RuntimeError(text)

    monkeypatch.setattr(threading.Thread, "start", start)


def test_pool_queues_work_for_its_existing_thread_if_no_new_thread_can_start(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pool, may_end, done = SystemThreads().pool(2, name="x"), threading.Event(), threading.Event()
    pool.submit(lambda: may_end.wait(30))
    refuse(monkeypatch, "can't start new thread")
    pool.submit(done.set)
    assert not done.is_set()
    may_end.set()
    assert done.wait(30)
    pool.shutdown(wait=True, cancel_futures=False)


@pytest.mark.parametrize(
    ("text", "prepare"),
    [
        ("can't start new thread", lambda pool: None),
        ("threads can only be started once", lambda pool: pool.submit(threading.Event().wait, 1)),
    ],
)
def test_pool_raises_a_thread_error_if_it_has_no_thread_or_the_error_is_a_bug(
    monkeypatch: pytest.MonkeyPatch, text: str, prepare: Callable[[Any], object]
) -> None:
    pool = SystemThreads().pool(2, name="x")
    prepare(pool)
    refuse(monkeypatch, text)
    with pytest.raises(RuntimeError, match=text):
        pool.submit(threading.Event().set)
