"""The scheduler: virtual time, and the choice from one seed of the thread that runs next.

Every thread of every simulated process is a greenlet. Exactly one greenlet runs, until it blocks.
Then the scheduler draws the next from those that can run, or moves the time to the next timer. A
run is therefore one sequence, and only its seed decides it. The product's code runs unchanged. It
blocks in queues, events, sleeps and calls, which `threads.py` and the other fakes implement with
`wait`.

The threads of a killed process never run again. Their `finally` blocks do not run until the end of
the run. Then the threads are unwound, and every fake refuses their calls (`Unwound`). The threads
of a frozen process stop where they are, while its timers continue. A thawed process is a zombie
that does not notice the lost time. Each turn of a thread costs a little virtual time, so that no
thread can spin forever.

The scheduler does not depend on tidegate.
"""

from __future__ import annotations

import heapq
import itertools
import random
from collections.abc import Callable
from typing import Final

import greenlet

from tests.simulator.trace import Trace
from tidegate.user_exceptions import ProcessEnd, Terminated

TURN_S: Final = 0.00002
"""Virtual time of one turn of a thread, in seconds."""
PORT_CALLS_MAX: Final = 24
"""Largest number of non-blocking calls of a thread before other threads get their turn."""
ORPHAN_S_MAX: Final = 0.05
"""Longest time in seconds until a process notices that its parent is gone."""
KILLED: Final = -9
TERMINATED: Final = -15


class Unwound(greenlet.GreenletExit, ProcessEnd):  # type: ignore[misc]  # greenlet ships no types
    """The exception that unwinds a thread, because the run is over or its process is dead.

    A thread that unwinds must not change anything.
    """


class SimThread:
    """One thread of a process, made by `SimProcess.start`."""

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
        """Number of waits of the thread. A timer of an earlier wait does not wake it."""
        self.waits = self.woken = self.asked_to_leave = False
        self.calls_left = 1


class Scheduler:
    """The threads that can run, the timers, and the choices of the seed.

    `between` is called before each turn, outside the threads. Faults and checks use it.
    """

    def __init__(self, seed: object, *, story: Trace | None = None) -> None:
        self.story = story or Trace()
        self.random = random.Random(f"{seed}/schedule")
        self.seed = seed
        self.now = 0.0
        self.turns = 0
        self.current: SimThread | None = None
        self.between: Callable[[], None] | None = None
        self.bugs: list[tuple[SimThread, BaseException]] = []
        """Exceptions that left a thread or a worker. No other code would report them."""
        self.processes: list[SimProcess] = []
        self.closed = False
        self.ready: list[SimThread] = []
        self._timers: list[tuple[float, int, SimThread | Callable[[], None], int]] = []
        self._numbers = itertools.count()
        self._pids = itertools.count(100)
        self.hub = greenlet.getcurrent()

    # --- for the fakes --------------------------------------------------------------------------

    def random_for(self, purpose: str) -> random.Random:
        """Return a separate random stream, so that extra draws do not change other streams."""
        return random.Random(f"{self.seed}/{purpose}")

    def call_later(self, seconds: float, action: Callable[[], None]) -> None:
        """Run `action` after some seconds, outside the threads.

        The action must not block. It may wake and start threads.
        """
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
        """End the `wait` of a thread. Return False if the thread does not wait any longer, or if
        its process is dead.
        """
        if not thread.waits or not thread.process.alive:
            return False
        thread.waits, thread.woken = False, True
        self.ready.append(thread)
        return True

    def maybe_switch(self) -> None:
        """Let other threads run, at random. Fakes call it in each call that does not block, because
        a real thread can lose its turn between any two lines.
        """
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
        """Return the running thread. Raise AssertionError outside the threads, because only a
        wrong fake blocks there.
        """
        if self.closed:
            raise Unwound
        if self.current is None:
            message = "something blocks outside of any simulated thread"
            raise AssertionError(message)
        return self.current

    def record_event(self, what: str, *details: object) -> None:
        """Record an event of the running process in the trace."""
        where = self.current.process.name if self.current else "world"
        self.story.record(self.now, where, what, *details)

    # --- processes ------------------------------------------------------------------------------

    def process(self, name: str, parent: SimProcess | None = None) -> SimProcess:
        """Create a process without threads. It ends soon after its parent."""
        made = SimProcess(self, name, next(self._pids), parent)
        self.processes.append(made)
        return made

    # --- the run --------------------------------------------------------------------------------

    def run(self, until_s: float, done: Callable[[], bool] = lambda: False) -> None:
        """Run until `done`, or until the virtual time is `until_s`, or until no step is left."""
        while not done() and self.now < until_s and self.step():
            pass

    def step(self) -> bool:
        """Run one turn of a thread, or one timer. Return False if no step is left."""
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
        """End the run: unwind every thread while all fakes refuse calls. No state changes."""
        self.closed = True
        self.current = None
        for process in self.processes:
            for thread in process.threads:
                while not thread.greenlet.dead:  # repeat: a thread may wait in its `finally`
                    thread.greenlet.throw(Unwound)
        self.ready.clear()
        self._timers.clear()

    def _switch(self, thread: SimThread) -> None:
        """Let other threads run until it is this thread's turn again."""
        self.hub.switch()
        if self.closed:
            raise Unwound
        if thread.asked_to_leave:
            thread.asked_to_leave = False
            raise Terminated(0)

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
    """A simulated process: threads that end together, and child processes that end with them."""

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
        """Callbacks for the end of the process, called with the exit status.

        They run outside the threads, or in the thread that ended the process.
        """
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
                scheduler.record_event("thread %s died of %r", name, error)

        thread.greenlet = greenlet.greenlet(body, scheduler.hub)
        self.threads.append(thread)
        if self.alive and not scheduler.closed:
            scheduler.ready.append(thread)
        return thread

    def run_main(self, main: Callable[[], int]) -> None:
        """Start the main thread. The process exits with the status that `main` returns."""
        self._main = self.start(lambda: self.exit(main()), name="main")

    def exit(self, status: int) -> None:
        """End this process now. Do not return if one of its own threads calls it."""
        self.end(status)
        running = self.scheduler.current
        if running is not None and running.process is self:
            self.scheduler.hub.switch()
            raise Unwound

    def kill(self) -> None:
        """Kill the process, as SIGKILL does: no thread of it runs again. Do nothing if it has
        ended.
        """
        self.end(KILLED)

    def terminate(self) -> None:
        """Terminate the process, as SIGTERM does.

        The main thread raises Terminated where it waits or at its next turn, as in `bootstrap`.
        """
        if not self.alive:
            return
        main = self._main
        if main is None:  # the process has not set its signal handlers yet
            self.end(TERMINATED)
            return
        main.asked_to_leave = True
        if main.waits:
            main.waits = False
            self.scheduler.ready.append(main)

    def end(self, status: int) -> None:
        """End the process with a status. It returns even if a thread of the process calls it."""
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
        """Freeze the process, as SIGSTOP does."""
        self.frozen = True

    def thaw(self) -> None:
        """Let the process continue, as SIGCONT does. Threads that became ready run now."""
        self.frozen = False
        self.scheduler.ready += self.parked
        self.parked.clear()
        if self._orphan and self.alive:
            self.lose_parent()

    def lose_parent(self) -> None:
        """Kill the process soon, because its parent is gone.

        A thread of the process must notice it, so a frozen process dies only after its thaw.
        """
        self._orphan = True
        rng = self.scheduler.random
        self.scheduler.call_later(rng.random() * ORPHAN_S_MAX, self._notice)

    def _notice(self) -> None:
        if not self.frozen:
            self.kill()
