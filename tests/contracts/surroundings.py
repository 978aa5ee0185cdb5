"""Time and threads for the tests of contracts: real ones here, virtual ones in the simulator.

A contract's test uses only these to run work in parallel and to wait. The same test therefore
checks a driver with threads and sockets, and one without either.
"""

from __future__ import annotations

from collections.abc import Callable

from tidegate.drivers.clock import SystemClock
from tidegate.drivers.threads import SystemThreads
from tidegate.ports.clock import Clock
from tidegate.ports.threads import Event, Threads

TIMEOUT_S = 30.0
"""A bound for a machine that is busy with other things, not a figure."""
_STEP_S = 0.005


class ContractEnvironment:
    """The time and the threads of a test; real unless others are given."""

    def __init__(self, clock: Clock | None = None, threads: Threads | None = None) -> None:
        self.clock = clock or SystemClock()
        self._threads = threads or SystemThreads()

    def event(self) -> Event:
        return self._threads.event()

    def run_in_parallel(self, work: Callable[[], object]) -> Callable[[], None]:
        """Run `work` in parallel with the test. The returned function waits for it and raises its
        error.
        """
        raised: list[BaseException] = []
        ended = self._threads.event()

        def run() -> None:
            try:
                work()
            except BaseException as error:  # noqa: BLE001  # raised again by who waits
                raised.append(error)
            ended.set()

        self._threads.start(run, name="beside")

        def join() -> None:
            assert ended.wait(TIMEOUT_S), f"not ended within {TIMEOUT_S} s"
            if raised:
                raise raised[0]

        return join

    def until(self, holds: Callable[[], object], timeout_s: float = TIMEOUT_S) -> None:
        """Wait for an event that happens in parallel with the test."""
        deadline = self.clock.monotonic() + timeout_s
        while not holds():
            assert self.clock.monotonic() < deadline, f"not within {timeout_s} s"
            self.clock.sleep(_STEP_S)
