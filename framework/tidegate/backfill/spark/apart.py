"""Calls Spark in a separate thread, while the calling thread waits and can handle signals.

A call into the JVM must not run in the main thread, for two reasons. First, SparkContext replaces
the SIGINT handler if it is created in the main thread. Second, a signal handler can raise an
exception (KeyboardInterrupt) in the middle of a call. The answer then stays in the thread's
connection to the JVM, and the next call would read it as its own answer.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, Final, Generic, TypeVar

INTERRUPT_PAUSE_S: Final = 1.0
INTERRUPTS_MAX: Final = 15  # Spark takes 2 s to kill a Python worker that does not stop

T = TypeVar("T")


class WaitTimeoutError(Exception):
    """The call took longer than its timeout. It may still run."""


def run_in_thread(
    function: Callable[[], T],
    *,
    name: str,
    timeout_s: float | None = None,
    meanwhile: Callable[[], object] | None = None,
    on_interrupt: Callable[[], object] | None = None,
) -> T:
    """Run `function` in a new thread with its own connection to the JVM. Return its result.

    The calling thread runs `meanwhile` before it waits. An exception of `meanwhile` ends the wait.

    An exception of a signal handler and the timeout also end the wait. Then `on_interrupt` is
    called in a new thread, and repeated until `function` has ended or half a minute is over. Errors
    of `on_interrupt` are dropped, because the first exception matters more.

    Raises:
        WaitTimeoutError: `function` took longer than `timeout_s` seconds.
    """
    call = _Call(function, name)
    try:
        call.start()
        if meanwhile is not None:
            meanwhile()
        ended = call.done.wait(timeout_s)
    except BaseException:
        _interrupt(call, on_interrupt)
        raise
    if not ended:
        _interrupt(call, on_interrupt)
        raise WaitTimeoutError
    return call.result()


class _Call(Generic[T]):
    """One call in a daemon thread. A JVM that hangs therefore does not keep the process alive.

    A signal may arrive while `start` starts the thread. So each side first sets its own flag and
    then reads the other one: the thread sets `begun`, and the caller sets `revoked`.
    """

    def __init__(self, function: Callable[[], T], name: str) -> None:
        self.done = threading.Event()
        self.name = name
        self.begun = self.revoked = False
        self._function = function
        self._results: list[T] = []
        self._error: BaseException | None = None

    def start(self) -> None:
        threading.Thread(target=self._run, name=self.name, daemon=True).start()

    def result(self) -> T:
        if self._error is not None:
            raise self._error
        return self._results[0]

    def _run(self) -> None:
        self.begun = True
        if self.revoked:
            return
        try:
            self._results.append(self._function())
        except BaseException as error:  # noqa: BLE001  (raised in the thread that waits)
            self._error = error
        finally:
            self.done.set()


def _interrupt(call: _Call[Any], on_interrupt: Callable[[], object] | None) -> None:
    """Call `on_interrupt` repeatedly, because the work may not have begun in the JVM yet."""
    call.revoked = True
    if on_interrupt is None or not call.begun:
        return
    for _ in range(INTERRUPTS_MAX):
        stopping = _Call(on_interrupt, f"{call.name}-interrupt")
        stopping.start()
        stopping.done.wait(INTERRUPT_PAUSE_S)
        if call.done.wait(INTERRUPT_PAUSE_S):
            return
