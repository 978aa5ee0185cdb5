"""Calls Spark from a thread of its own while the calling thread waits and stays free for signals.

A call into the JVM must not run in the main thread, for two reasons. SparkContext replaces the
SIGINT handler if it is made there. And an exception of a signal handler (KeyboardInterrupt) in the
middle of a call leaves the answer in the thread's connection to the JVM, where the next call would
take it for its own.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, Final, Generic, TypeVar

INTERRUPT_TIMEOUT_S: Final = 30.0  # 2 s until Spark kills a Python worker that does not stop

T = TypeVar("T")


class WaitTimeoutError(Exception):
    """The call took longer than its timeout; it may still run."""


def run_apart(
    function: Callable[[], T],
    *,
    name: str,
    timeout_s: float | None = None,
    on_interrupt: Callable[[], object] | None = None,
) -> T:
    """The result of `function`, which runs in a new thread with a connection of its own.

    If the wait ends early, by an exception of a signal handler or the timeout, `on_interrupt` is
    called, in a new thread too. It must make `function` end. Its own errors are dropped, because
    the first exception matters more.

    Raises:
        WaitTimeoutError: `function` took longer than `timeout_s` seconds.
    """
    call = _Call(function, name)
    try:
        ended = call.done.wait(timeout_s)
    except BaseException:
        _interrupt(call, on_interrupt)
        raise
    if not ended:
        _interrupt(call, on_interrupt)
        raise WaitTimeoutError
    return call.result()


class _Call(Generic[T]):
    """One call in a daemon thread, so that a JVM that hangs does not keep the process."""

    def __init__(self, function: Callable[[], T], name: str) -> None:
        self.done = threading.Event()
        self.name = name
        self._function = function
        self._results: list[T] = []
        self._error: BaseException | None = None
        threading.Thread(target=self._run, name=name, daemon=True).start()

    def result(self) -> T:
        if self._error is not None:
            raise self._error
        return self._results[0]

    def _run(self) -> None:
        try:
            self._results.append(self._function())
        except BaseException as error:  # noqa: BLE001  (raised in the thread that waits)
            self._error = error
        finally:
            self.done.set()


def _interrupt(call: _Call[Any], on_interrupt: Callable[[], object] | None) -> None:
    if on_interrupt is not None:
        _Call(on_interrupt, f"{call.name}-interrupt").done.wait(INTERRUPT_TIMEOUT_S)
        call.done.wait(INTERRUPT_TIMEOUT_S)
