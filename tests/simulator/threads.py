"""The threads, clock, random numbers and pid of one simulated process, as the ports define them.

The objects behave like those of the standard library, which the real driver returns. One contract
suite runs on both. The seed decides which waiting thread is woken.
"""

from __future__ import annotations

import queue
from collections import deque
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, NoReturn

from tests.simulator.scheduler import Scheduler, SimProcess, SimThread, Unwound
from tidegate.ports.clock import Clock
from tidegate.ports.entropy import Entropy
from tidegate.ports.processes import CallWatch, CurrentProcess, LongCall
from tidegate.ports.threads import Condition, Event, Lock, Queue, Threads, WorkerPool

EPOCH_MS: Final = 1_700_000_000_000
"""Time of the wall clocks at the start of a run, in ms since 1970, without their error."""
SKEW_MS_MAX: Final = 3_600_000
ORIGIN_S_MAX: Final = 100_000.0


class Waiters:
    """The threads that wait for one event."""

    __slots__ = ("_scheduler", "_threads")

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._threads: list[SimThread] = []

    def wait(self, timeout_s: float | None = None) -> bool:
        """Block until the thread is woken or the time has passed. Return whether it was woken."""
        thread = self._scheduler.running()
        self._threads.append(thread)
        woken = self._scheduler.wait(timeout_s)
        if not woken and thread in self._threads:
            self._threads.remove(thread)
        return woken

    def wake_one(self) -> bool:
        """Wake one waiting thread. Return False if no thread waits."""
        threads = self._threads
        while threads:
            index = self._scheduler.random.randrange(len(threads)) if len(threads) > 1 else 0
            if self._scheduler.wake(threads.pop(index)):
                return True
        return False

    def wake_all(self) -> None:
        while self.wake_one():
            pass


class SimQueue:
    """A queue like `queue.SimpleQueue`."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler, self._items = scheduler, deque[Any]()
        self._waiters = Waiters(scheduler)

    def put(self, item: Any, /) -> None:
        self._items.append(item)
        self._waiters.wake_one()
        self._scheduler.maybe_switch()

    def get(self, block: bool = True, timeout: float | None = None) -> Any:
        self._scheduler.maybe_switch()
        deadline_s = None if timeout is None else self._scheduler.now + timeout
        while not self._items:
            left_s = None if deadline_s is None else deadline_s - self._scheduler.now
            if not block or (left_s is not None and left_s <= 0):
                raise queue.Empty
            self._waiters.wait(left_s)
        return self._items.popleft()

    def qsize(self) -> int:
        return len(self._items)


class SimEvent:
    """An event like `threading.Event`."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler, self._waiters, self._set = scheduler, Waiters(scheduler), False

    def is_set(self) -> bool:
        return self._set

    def set(self) -> None:
        self._set = True
        self._waiters.wake_all()
        self._scheduler.maybe_switch()

    def clear(self) -> None:
        self._set = False

    def wait(self, timeout: float | None = None) -> bool:
        self._scheduler.maybe_switch()
        if self._set:
            return True
        # A woken thread returns True, even if another thread clears the event before it runs again.
        return self._waiters.wait(timeout) or self._set


class SimLock:
    """A lock like `threading.Lock`, or like `threading.RLock` if `reentrant` is True."""

    def __init__(self, scheduler: Scheduler, *, reentrant: bool = False) -> None:
        self._scheduler, self._reentrant = scheduler, reentrant
        self._free = Waiters(scheduler)
        self._owner: SimThread | None = None
        self._depth = 0

    def __enter__(self) -> bool:
        self._scheduler.maybe_switch()
        thread = self._scheduler.running()
        if not (self._reentrant and self._owner is thread):
            self._take()
        self._depth += 1
        return True

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
        /,
    ) -> None:
        self._depth -= 1
        if not self._depth:
            self._give()

    def _take(self) -> None:
        while self._owner is not None:
            self._free.wait()
        self._owner = self._scheduler.running()

    def _give(self) -> None:
        self._owner = None
        self._free.wake_one()


class SimCondition(SimLock):
    """A condition like `threading.Condition` with its default lock."""

    def __init__(self, scheduler: Scheduler) -> None:
        super().__init__(scheduler, reentrant=True)
        self._changed = Waiters(scheduler)

    def wait_for(self, predicate: Callable[[], Any], timeout: float | None = None) -> Any:
        deadline_s = None if timeout is None else self._scheduler.now + timeout
        while not (result := predicate()):
            left_s = None if deadline_s is None else deadline_s - self._scheduler.now
            if left_s is not None and left_s <= 0:
                return result
            depth, self._depth = self._depth, 0
            self._give()
            self._changed.wait(left_s)
            self._take()
            self._depth = depth
        return result

    def notify_all(self) -> None:
        self._changed.wake_all()


class SimPool:
    """A pool like `ThreadPoolExecutor`, but an exception that leaves the work is kept as a bug."""

    def __init__(self, process: SimProcess, workers: int, name: str) -> None:
        self._process, self._workers, self._name = process, workers, name
        self._work: deque[Callable[[], object]] = deque()
        self._idle = Waiters(process.scheduler)
        self._threads = 0
        self._closed = False

    def submit(self, work: Callable[[], object], /) -> None:
        if self._closed:
            message = "cannot schedule new futures after shutdown"
            raise RuntimeError(message)
        self._work.append(work)
        if not self._idle.wake_one() and self._threads < self._workers:
            self._process.start(self._serve, name=f"{self._name}-{self._threads}")
            self._threads += 1
        self._process.scheduler.maybe_switch()

    def shutdown(self, *, wait: bool, cancel_futures: bool) -> None:
        if wait:
            message = "a simulated pool is not waited for"
            raise NotImplementedError(message)
        self._closed = True
        if cancel_futures:
            self._work.clear()
        self._idle.wake_all()

    def _serve(self) -> None:
        scheduler = self._process.scheduler
        while True:
            if self._work:
                try:
                    self._work.popleft()()
                except Unwound:
                    raise
                except BaseException as error:  # noqa: BLE001 - kept for who judges the run
                    scheduler.bugs.append((scheduler.running(), error))
                    scheduler.record_event("work in pool %s raised %r", self._name, error)
            elif self._closed:
                return
            else:
                self._idle.wait()


class SimThreads:
    """The `ports.threads.Threads` of one simulated process."""

    def __init__(self, process: SimProcess) -> None:
        self._process, self._scheduler = process, process.scheduler

    def start(self, target: Callable[[], object], *, name: str) -> None:
        self._process.start(target, name=name)
        self._scheduler.maybe_switch()

    def queue(self) -> Queue[Any]:
        return SimQueue(self._scheduler)

    def event(self) -> Event:
        return SimEvent(self._scheduler)

    def lock(self) -> Lock:
        return SimLock(self._scheduler)

    def condition(self) -> Condition:
        return SimCondition(self._scheduler)

    def pool(self, workers: int, *, name: str) -> WorkerPool:
        return SimPool(self._process, workers, name)


class SimClock:
    """The `ports.clock.Clock` of one process.

    Its monotonic time has an arbitrary origin, and its wall clock is wrong by up to an hour.
    """

    def __init__(self, process: SimProcess) -> None:
        self._scheduler = process.scheduler
        rng = self._scheduler.random_for(f"clock/{process.pid}")
        self._origin_s = rng.random() * ORIGIN_S_MAX
        self._error_ms = EPOCH_MS + rng.randint(-SKEW_MS_MAX, SKEW_MS_MAX)

    def monotonic(self) -> float:
        self._scheduler.maybe_switch()
        return self._scheduler.now + self._origin_s

    def now_ms(self) -> int:
        return int(self._scheduler.now * 1000) + self._error_ms

    def sleep(self, seconds: float) -> None:
        self._scheduler.wait(seconds)


class SimEntropy:
    """The `ports.entropy.Entropy` of one process."""

    def __init__(self, process: SimProcess) -> None:
        self._rng = process.scheduler.random_for(f"entropy/{process.pid}")

    def token_hex(self, nbytes: int) -> str:
        return self._rng.randbytes(nbytes).hex()

    def random(self) -> float:
        return self._rng.random()


class _NoCallWatch:
    """A `ports.processes.CallWatch` that never sees a long call."""

    turn_s = 0.0
    thread = 0

    def describe(self, code: bytes) -> None:
        """Do nothing: a simulated slot has no parent process that reads this."""

    def long_call(self) -> LongCall | None:
        return None


class SimCurrentProcess:
    """The `ports.processes.CurrentProcess` of one process."""

    def __init__(self, process: SimProcess) -> None:
        self._process = process

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def host(self) -> str:
        return "simulated-host"

    def exit(self, status: int) -> NoReturn:
        self._process.exit(status)
        raise Unwound

    def watch_calls(self, stalled_after_s: float) -> CallWatch:
        """Watch nothing: user code of the simulator returns."""
        return _NoCallWatch()

    def guard_signal_handlers(self, report: Callable[[BaseException, str], None]) -> None:
        """Do nothing: user code of the simulator sets no signal handler."""

    def freeze_gc(self) -> None:
        """Do nothing: all simulated processes share the garbage collector of the test's process."""


if TYPE_CHECKING:

    def _(process: SimProcess) -> tuple[Threads, Clock, Entropy, CurrentProcess]:
        return (
            SimThreads(process),
            SimClock(process),
            SimEntropy(process),
            SimCurrentProcess(process),
        )
