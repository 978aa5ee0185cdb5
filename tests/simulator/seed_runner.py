"""The runner of many seeds: worker processes that each run one seed after the other.

A worker is `python -m tests.simulator.seed_runner`. It reads one seed per line from its
standard input, and answers each with a line of JSON. It exits at the end of its input, so it never
outlives the process that started it. Runs share only the code, so each of them can be replayed
alone.
"""

from __future__ import annotations

import gc
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Final

import msgspec

WORKER: Final = (sys.executable, "-m", "tests.simulator.seed_runner")
BACKFILLS: Final = "--backfills"
"""Command-line argument of workers whose runs have backfills."""
EVENT_TIME: Final = "--event-time"
"""Command-line argument of workers whose runs have event time."""


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """The result of one seed, without its trace."""

    seed: int
    pipeline: str
    violation: str | None
    virtual_s: float
    turns: int
    kills: int
    freezes: int
    attempts: int
    publications: int
    waves: int
    rollbacks: int
    losses: int
    visible: int
    expired: int


@dataclass(slots=True)
class Summary:
    """The sum of the results of many seeds."""

    seeds: int = 0
    turns: int = 0
    virtual_s: float = 0.0
    kills: int = 0
    freezes: int = 0
    attempts: int = 0
    publications: int = 0
    waves: int = 0
    rollbacks: int = 0
    losses: int = 0
    expired: int = 0
    seconds: float = 0.0
    violations: list[Verdict] = field(default_factory=list)

    def add(self, verdict: Verdict) -> None:
        """Add the verdict of one seed."""
        self.seeds += 1
        self.turns += verdict.turns
        self.virtual_s += verdict.virtual_s
        self.kills += verdict.kills
        self.freezes += verdict.freezes
        self.attempts += verdict.attempts
        self.publications += verdict.publications
        self.waves += verdict.waves
        self.rollbacks += verdict.rollbacks
        self.losses += verdict.losses
        self.expired += verdict.expired
        if verdict.violation is not None:
            self.violations.append(verdict)

    def __str__(self) -> str:
        rate = self.seeds / self.seconds if self.seconds else 0.0
        return (
            f"{self.seeds} seeds in {self.seconds:.0f} s ({rate:.1f} a second), "
            f"{len(self.violations)} with a violation; {self.virtual_s / 3600:.1f} h of virtual "
            f"time, {self.turns} turns, {self.kills} kills, {self.freezes} freezes, "
            f"{self.attempts} attempts, {self.publications} publications, {self.waves} waves of "
            f"backfills, {self.rollbacks} rolled back, {self.losses} expected "
            f"losses, {self.expired} offsets of inputs expired"
        )


class WorkerDiedError(Exception):
    """The error that a worker exited during a seed: the simulator itself is broken."""


def simulate(
    seeds: Iterable[int],
    *,
    workers: int,
    told: Callable[[Verdict, Summary], None],
    backfills: bool = False,
    event_time: bool = False,
) -> Summary:
    """Run seeds in `workers` processes. Call `told` with each verdict, one call at a time.

    With `backfills`, each run has backfills; with `event_time`, event time. An exception of
    `told`, or a KeyboardInterrupt of the main thread, ends all workers. Raise WorkerDiedError if a
    worker exits by itself.
    """
    summary, lock, began_s = Summary(), threading.Lock(), time.monotonic()
    rest, failures = iter(seeds), list[BaseException]()
    command = (*WORKER, *([BACKFILLS] * backfills), *([EVENT_TIME] * event_time))
    processes = [
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        for _ in range(workers)
    ]

    def drive(process: subprocess.Popen[bytes]) -> None:
        try:
            for verdict in _verdicts(process, rest, lock):
                with lock:
                    summary.add(verdict)
                    summary.seconds = time.monotonic() - began_s
                    told(verdict, summary)
        except BaseException as error:  # noqa: BLE001 - raised below, in the caller's thread
            failures.append(error)

    threads = [threading.Thread(target=drive, args=(each,), daemon=True) for each in processes]
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        for process in processes:
            process.kill()
            process.wait()
            for pipe in (process.stdin, process.stdout):
                if pipe is not None:
                    pipe.close()
    if failures:
        raise failures[0]
    return summary


def _verdicts(
    process: subprocess.Popen[bytes], rest: Iterator[int], lock: threading.Lock
) -> Iterator[Verdict]:
    if process.stdin is None or process.stdout is None:
        return
    while True:
        with lock:
            seed = next(rest, None)
        if seed is None:
            return
        process.stdin.write(b"%d\n" % seed)
        process.stdin.flush()
        line = process.stdout.readline()
        if not line:
            message = f"the worker ended while it simulated seed {seed}: replay it alone"
            raise WorkerDiedError(message)
        yield msgspec.json.decode(line, type=Verdict)


def serve(*, backfills: bool, event_time: bool) -> None:
    """Run the worker: write one verdict for each seed that arrives."""
    from tests.simulator.run import run_seed

    gc.collect()
    gc.freeze()  # the collections after each run then skip the imported modules
    for line in sys.stdin.buffer:
        outcome = run_seed(int(line), backfills=backfills, event_time=event_time)
        verdict = Verdict(
            seed=outcome.seed,
            pipeline=outcome.plan.shape.pipeline.__name__,
            violation=outcome.violation,
            virtual_s=outcome.virtual_s,
            turns=outcome.turns,
            kills=outcome.kills,
            freezes=outcome.freezes,
            attempts=outcome.attempts,
            publications=outcome.publications,
            waves=outcome.waves,
            rollbacks=outcome.rollbacks,
            losses=outcome.losses,
            visible=outcome.visible,
            expired=outcome.expired,
        )
        sys.stdout.buffer.write(msgspec.json.encode(verdict) + b"\n")
        sys.stdout.buffer.flush()
        del outcome
        gc.collect()  # a run is one large reference cycle of processes and threads


if __name__ == "__main__":
    serve(backfills=BACKFILLS in sys.argv[1:], event_time=EVENT_TIME in sys.argv[1:])
