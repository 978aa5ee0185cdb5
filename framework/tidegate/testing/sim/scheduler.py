"""Virtual time and one seed: decides which thread of which process runs next.

Every thread of every simulated process is a greenlet; exactly one runs, until it blocks. Then the
scheduler draws the next among those that could run, or lets time pass to the next timer. So a run
is one sequence, and its seed alone decides it. True code runs here unchanged: it blocks in queues,
events, sleeps and calls that `threads.py` and the fakes beside it implement by `wait`.

A killed process's threads never run again, and none of their `finally` blocks does until the run
is over; then they are unwound, and every fake refuses them (`Unwound`). A frozen process's threads
stay where they are, its timers run on: thawed, it is a zombie that knows nothing of the time it
lost. Each turn of a thread costs a little virtual time, so that nothing can spin for ever.

It knows nothing of tidegate.
"""

from __future__ import annotations

import heapq
import itertools
import random
from collections.abc import Callable
from typing import Final

import greenlet

from tidegate.testing.sim.trace import Trace

TURN_S: Final = 0.00002
"""What a thread's turn costs in virtual time."""
PORT_CALLS_MAX: Final = 24
"""So many calls that need not wait, at most, may a thread make before others get their turn."""
ORPHAN_S_MAX: Final = 0.05
"""A process notices within this time that its parent is gone."""
KILLED: Final = -9
TERMINATED: Final = -15


class Unwound(greenlet.GreenletExit):  # type: ignore[misc]  # greenlet ships no types
    """The run is over, or this process is dead: what still unwinds may touch nothing."""


class SimThread:
    """One thread of a process; made by `SimProcess.start`."""

    __slots__ = (
        "asked_to_leave",
        "calls_left",
        "greenlet",
        "name",
        "process",
        "turn",
        "waits",
        "woken",
    )

    def __init__(self, process: SimProcess, name: str) -> None:
        self.process, self.name = process, name
        self.greenlet: greenlet.greenlet
        self.turn = 0
        """Counts its waits: a timer of an earlier one wakes nobody."""
        self.waits = self.woken = self.asked_to_leave = False
        self.calls_left = 1


class Scheduler:
    """Threads that can run, timers, and the seed's choices.

    `between` is called before each turn, in no thread: the place for faults and checks.
    """

    def __init__(self, seed: object, *, story: Trace | None = None) -> None:
        self.story = story or Trace()
        self.random = random.Random(f"{seed}/schedule")  # noqa: S311 - replays, protects nothing
        self.seed = seed
        self.now = 0.0
        self.turns = 0
        self.current: SimThread | None = None
        self.between: Callable[[], None] | None = None
        self.bugs: list[tuple[SimThread, BaseException]] = []
        """Exceptions that left a thread or a worker: nobody would have heard of them."""
        self.processes: list[SimProcess] = []
        self.closed = False
        self.ready: list[SimThread] = []
        self._timers: list[tuple[float, int, SimThread | Callable[[], None], int]] = []
        self._numbers = itertools.count()
        self._pids = itertools.count(100)
        self.hub = greenlet.getcurrent()

    # --- for the fakes --------------------------------------------------------------------------

    def random_for(self, purpose: str) -> random.Random:
        """A stream of chance of its own, so that one more draw here moves nothing there."""
        return random.Random(f"{self.seed}/{purpose}")  # noqa: S311 - as above

    def call_later(self, seconds: float, action: Callable[[], None]) -> None:
        """Run `action` at that time in no thread: it must not block, but may wake and start."""
        due = self.now + max(seconds, 0.0)
        heapq.heappush(self._timers, (due, next(self._numbers), action, 0))

    def wait(self, timeout_s: float | None = None) -> bool:
        """Block the running thread until it is woken (True) or the time has passed (False)."""
        thread = self.running()
        thread.turn += 1
        thread.waits, thread.woken = True, False
        if timeout_s is not None:
            due = self.now + max(timeout_s, 0.0)
            heapq.heappush(self._timers, (due, next(self._numbers), thread, thread.turn))
        self._switch(thread)
        return thread.woken

    def wake(self, thread: SimThread) -> bool:
        """End the `wait` of a thread; False if its time has passed just now, or its process is
        dead.
        """
        if not thread.waits or not thread.process.alive:
            return False
        thread.waits, thread.woken = False, True
        self.ready.append(thread)
        return True

    def point(self) -> None:
        """A call that need not wait: others may get their turn here, as between any two lines."""
        if self.closed:
            raise Unwound
        thread = self.current
        if thread is None:
            return
        thread.calls_left -= 1
        if thread.calls_left <= 0:
            thread.calls_left = self.random.randint(1, PORT_CALLS_MAX)
            self.ready.append(thread)
            self._switch(thread)

    def running(self) -> SimThread:
        """The thread that runs; blocking outside of any is a mistake of a fake."""
        if self.closed:
            raise Unwound
        if self.current is None:
            message = "something blocks outside of any simulated thread"
            raise AssertionError(message)
        return self.current

    def tell(self, what: str, *details: object) -> None:
        """Note an event of the running process."""
        where = self.current.process.name if self.current else "world"
        self.story.record(self.now, where, what, *details)

    # --- processes ------------------------------------------------------------------------------

    def process(self, name: str, parent: SimProcess | None = None) -> SimProcess:
        """A process without a thread yet; it ends, soon after, with its parent."""
        made = SimProcess(self, name, next(self._pids), parent)
        self.processes.append(made)
        return made

    # --- the run --------------------------------------------------------------------------------

    def run(self, until_s: float, done: Callable[[], bool] = lambda: False) -> None:
        """Run until `done`, or the virtual time is `until_s`, or nothing can happen any more."""
        while not done() and self.now < until_s and self.step():
            pass

    def step(self) -> bool:
        """One turn of one thread, or one action; False if nothing can happen any more."""
        timers = self._timers
        if timers and (not self.ready or timers[0][0] <= self.now):
            due, _, target, turn = heapq.heappop(timers)
            if not isinstance(target, SimThread):
                self.now = max(self.now, due)
                target()
            elif target.waits and target.turn == turn and target.process.alive:
                self.now = max(self.now, due)
                target.waits = False
                self.ready.append(target)
            return True
        if not self.ready:
            return False
        if self.between is not None:
            self.between()
        self._turn()
        return True

    def close(self) -> None:
        """End the run: unwind every thread, with all fakes refusing. The world is as it was."""
        self.closed = True
        self.current = None
        for process in self.processes:
            for thread in process.threads:
                while not thread.greenlet.dead:  # again: one may begin to wait in a `finally`
                    thread.greenlet.throw(Unwound)
        self.ready.clear()
        self._timers.clear()

    def _switch(self, thread: SimThread) -> None:
        """Let others run until it is this thread's turn again."""
        self.hub.switch()
        if self.closed:
            raise Unwound
        if thread.asked_to_leave:
            thread.asked_to_leave = False
            raise SystemExit(0)

    def _turn(self) -> None:
        ready = self.ready
        if not ready:
            return
        index = self.random.randrange(len(ready))
        thread = ready[index]
        ready[index] = ready[-1]
        ready.pop()
        process = thread.process
        if not process.alive:
            return
        if process.frozen:
            process.parked.append(thread)
            return
        self.now += TURN_S
        self.turns += 1
        self.current = thread
        thread.greenlet.switch()
        self.current = None
        if thread.greenlet.dead:
            process.threads.remove(thread)


class SimProcess:
    """Threads that live and die together, and the children that die with them."""

    def __init__(
        self, scheduler: Scheduler, name: str, pid: int, parent: SimProcess | None
    ) -> None:
        self.scheduler, self.name, self.pid, self.parent = scheduler, name, pid, parent
        self.alive, self.frozen = True, False
        self.status: int | None = None
        self.threads: list[SimThread] = []
        self.parked: list[SimThread] = []
        self.children: list[SimProcess] = []
        self.on_exit: list[Callable[[int], None]] = []
        """Called with the status at the moment of the end, in no thread or in whoever killed."""
        self.started_s = scheduler.now
        self._main: SimThread | None = None
        self._orphan = False
        if parent is not None:
            parent.children.append(self)

    def start(self, target: Callable[[], object], *, name: str) -> SimThread:
        """Run `target` in a new thread of this process."""
        scheduler = self.scheduler
        thread = SimThread(self, name)

        def body() -> None:
            try:
                target()
            except greenlet.GreenletExit:
                raise
            except BaseException as error:  # noqa: BLE001 - kept for who judges the run
                scheduler.bugs.append((thread, error))
                scheduler.tell("thread %s died of %r", name, error)

        thread.greenlet = greenlet.greenlet(body, scheduler.hub)
        self.threads.append(thread)
        if self.alive and not scheduler.closed:
            scheduler.ready.append(thread)
        return thread

    def run_main(self, main: Callable[[], int]) -> None:
        """Start the main thread: the process ends, orderly, with what `main` returns."""
        self._main = self.start(lambda: self.exit(main()), name="main")

    def exit(self, status: int) -> None:
        """End this process now; does not return if one of its threads asks."""
        self.end(status)
        running = self.scheduler.current
        if running is not None and running.process is self:
            self.scheduler.hub.switch()
            raise Unwound

    def kill(self) -> None:
        """SIGKILL: no thread of it runs again. Nothing happens if it has ended."""
        self.end(KILLED)

    def terminate(self) -> None:
        """SIGTERM: SystemExit in the main thread, where it waits or at its next turn, as
        `bootstrap` has it.
        """
        if not self.alive:
            return
        main = self._main
        if main is None:  # before anything was said about signals
            self.end(TERMINATED)
            return
        main.asked_to_leave = True
        if main.waits:
            main.waits = False
            self.scheduler.ready.append(main)

    def end(self, status: int) -> None:
        """What both ends have in common; returns also to a thread of the process."""
        if not self.alive:
            return
        self.alive, self.status = False, status
        scheduler = self.scheduler
        scheduler.story.record(scheduler.now, self.name, "ends with status %d", status)
        self.parked.clear()
        for child in self.children:
            if child.alive:
                child.lose_parent()
        for callback in self.on_exit:
            callback(status)

    def freeze(self) -> None:
        """SIGSTOP."""
        self.frozen = True

    def thaw(self) -> None:
        """SIGCONT: whatever became ready meanwhile runs now."""
        self.frozen = False
        self.scheduler.ready += self.parked
        self.parked.clear()
        if self._orphan and self.alive:
            self.lose_parent()

    def lose_parent(self) -> None:
        """The lifeline has ended: a thread of this process notices, so not while it is frozen."""
        self._orphan = True
        chance = self.scheduler.random
        self.scheduler.call_later(chance.random() * ORPHAN_S_MAX, self._notice)

    def _notice(self) -> None:
        if not self.frozen:
            self.kill()
