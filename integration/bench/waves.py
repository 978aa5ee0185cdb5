"""What a wave of a backfill costs on Spark: `python -m integration.bench.waves`, beside a broker.

It runs waves of almost no records through the running totals, on `local[2,4]` at parallelism 2: all
that is left is the fixed cost. It prints the start of the session, the first wave, and for the warm
waves the median of seconds and CPU seconds, and where the time goes.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import statistics
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil

from integration.backfills import BackfillJob
from integration.spark.jobs import ROOT, exact, new_job
from tidegate.backfill.driver import Backfill, run_in_turn
from tidegate.backfill.spark.executor import SparkExecutor
from tidegate.backfill.spark.session import BackfillSession, start_session
from tidegate.backfill.spark.stream import streamed
from tidegate.bootstrap import WAVE_TASK
from tidegate.controlplane.jobmaster.job_journal import JobJournal
from tidegate.drivers.kafka.embedded import EmbeddedKafka

PARALLELISM = 2
LOOPS = ("plain", "streamed")


class Spent:
    """Seconds per part of each wave, and CPU seconds of this process and its children."""

    def __init__(self) -> None:
        self.parts: dict[str, list[float]] = defaultdict(list)
        self._cpu_s: dict[psutil.Process, float] = {}

    def timed(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """The function, whose seconds are noted."""

        def call(*arguments: Any, **keywords: Any) -> Any:
            began_s = time.monotonic()
            try:
                return function(*arguments, **keywords)
            finally:
                self.parts[name].append(time.monotonic() - began_s)

        return call

    def cpu_s(self, broker: list[int]) -> float:
        """Of all processes so far, also of those that have ended, without the broker."""
        for each in [psutil.Process(), *psutil.Process().children(recursive=True)]:
            with contextlib.suppress(psutil.NoSuchProcess):
                if each.pid not in broker:
                    times = each.cpu_times()
                    self._cpu_s[each] = times.user + times.system
        return sum(self._cpu_s.values())


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--waves", type=int, default=20, help="of almost no records, per loop")
    parser.add_argument("--rounds", type=int, default=2, help="of both loops in one session")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as place, _broker(Path(place)) as broker:
        began_s = time.monotonic()
        with start_session("local[2,4]", python_path=[ROOT], folder=Path(place)) as session:
            _say("session", seconds=round(time.monotonic() - began_s, 2))
            for number in range(given.rounds):
                for loop in LOOPS:
                    folder = Path(place, f"{loop}-{number}")
                    folder.mkdir()
                    job = new_job(broker, folder, orders=given.waves * 4)
                    _measure(session, job, loop, broker.pids)
    return 0


@contextlib.contextmanager
def _broker(place: Path) -> Iterator[EmbeddedKafka]:
    broker = EmbeddedKafka.start("4.3.0", directory=place / "kafka", owned=True)
    try:
        yield broker
    finally:
        broker.stop()


def _measure(session: BackfillSession, job: BackfillJob, loop: str, broker: list[int]) -> None:
    spent = Spent()
    executor = SparkExecutor(session, WAVE_TASK)
    seconds: list[float] = []
    ends_s: list[float] = []
    cpu_s: list[float] = [spent.cpu_s(broker)]

    def wave(run_wave: Callable[[], bool]) -> bool:
        began_s = time.monotonic()
        last = run_wave()
        seconds.append(time.monotonic() - began_s)
        ends_s.append(time.monotonic())
        cpu_s.append(spent.cpu_s(broker))
        return last

    inner = streamed(session) if loop == "streamed" else run_in_turn
    executor.run = spent.timed("spark job", executor.run)  # type: ignore[method-assign]
    with _timed_journal(spent):
        began_s = time.monotonic()
        job.backfill(
            parallelism=PARALLELISM,
            wave_offsets=4,
            executor=executor,
            loop=lambda run_wave: inner(lambda: wave(run_wave)),
        )
        total_s = time.monotonic() - began_s
    assert exact(job)
    gaps = [b - a for a, b in itertools.pairwise(ends_s[1:])]
    cpus = [b - a for a, b in itertools.pairwise(cpu_s[1:])]
    _say(
        loop,
        waves=len(seconds),
        total_s=round(total_s, 2),
        first_s=round(seconds[0], 2),
        warm_s=_median(seconds[1:]),
        warm_with_loop_s=_median(gaps),
        warm_cpu_s=_median(cpus),
        parts={name: _median(each[1:]) for name, each in spent.parts.items()},
    )


@contextlib.contextmanager
def _timed_journal(spent: Spent) -> Iterator[None]:
    timed = ((JobJournal, ("recover", "publish", "commit", "clean_up")), (Backfill, ("_plan",)))
    real = [(owner, name, getattr(owner, name)) for owner, names in timed for name in names]
    for owner, name, function in real:
        setattr(owner, name, spent.timed(name, function))
    try:
        yield
    finally:
        for owner, name, function in real:
            setattr(owner, name, function)


def _median(values: list[float]) -> float:
    return round(statistics.median(values), 3)


def _say(what: str, **figures: Any) -> None:
    sys.stdout.write(json.dumps({"what": what, **figures}) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
