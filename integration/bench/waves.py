"""Measures the fixed cost of a wave of a backfill on Spark.

The command is `python -m integration.bench.waves`. It starts a broker and runs waves of almost no
records through the running totals, so that only the fixed cost remains. It runs on `local[2,4]`, at
parallelism 2 or another one (`--parallelism 200`).

It prints the time to start the session, and the time of the first wave. For the warm waves, it
prints medians of the seconds, of the CPU seconds, and of the seconds of each part. `measure_fixed`
makes the table (`python -m integration.bench.spark_bench --only fixed`).
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
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import psutil

from integration.bench.page import Table
from integration.bench.spark_cost import judged
from integration.spark.jobs import ROOT, exact, new_job
from tidegate.backfill.driver import Backfill, run_in_turn
from tidegate.backfill.spark.executor import SparkExecutor
from tidegate.backfill.spark.session import BackfillSession, start_session
from tidegate.backfill.spark.stream import make_wave_loop
from tidegate.bootstrap import WAVE_TASK
from tidegate.controlplane.journal.job_journal import JobJournal
from tidegate.drivers.kafka.embedded import EmbeddedKafka

PARALLELISM = 2
LOOPS = ("plain", "streamed")
WAVE_OFFSETS = 4
PARTS: Final = ("spark job", "recover", "publish", "commit", "clean_up")
GOALS_S: Final = {2: 1.0, 200: 4.0}
"""Goals for the seconds of a warm wave, by parallelism."""


@dataclass(frozen=True, slots=True)
class Figures:
    """The figures of the first wave of a job, and the medians of its other waves."""

    waves: int
    total_s: float
    first_s: float
    warm_s: float
    warm_with_loop_s: float
    warm_cpu_s: float
    parts: dict[str, float]


class Spent:
    """The seconds of each part of each wave, and the CPU of this process and its children."""

    def __init__(self) -> None:
        self.parts: dict[str, list[float]] = defaultdict(list)
        self._cpu_s: dict[psutil.Process, float] = {}

    def timed(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """Wrap a function so that its seconds are noted."""

        def call(*arguments: Any, **keywords: Any) -> Any:
            began_s = time.monotonic()
            try:
                return function(*arguments, **keywords)
            finally:
                self.parts[name].append(time.monotonic() - began_s)

        return call

    def cpu_s(self, broker: list[int]) -> float:
        """Return the CPU of all processes so far, also of ended ones, without the broker."""
        for each in [psutil.Process(), *psutil.Process().children(recursive=True)]:
            with contextlib.suppress(psutil.NoSuchProcess):
                if each.pid not in broker:
                    times = each.cpu_times()
                    self._cpu_s[each] = times.user + times.system
        return sum(self._cpu_s.values())


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--waves", type=int, default=20, help="Number of waves per loop.")
    parser.add_argument("--rounds", type=int, default=2, help="Number of rounds.")
    parser.add_argument(
        "--parallelism", type=int, default=PARALLELISM, help="Number of tasks of each level."
    )
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as place, _broker(Path(place)) as broker:
        began_s = time.monotonic()
        with start_session("local[2,4]", python_path=[ROOT], folder=Path(place)) as session:
            _say("session", seconds=round(time.monotonic() - began_s, 2))
            for number in range(given.rounds):
                for loop in LOOPS:
                    folder = Path(place, f"{loop}-{number}")
                    folder.mkdir()
                    found = measure_waves(
                        session, broker, folder, loop, given.parallelism, given.waves
                    )
                    _say(loop, **asdict(found))
    return 0


def measure_fixed(
    place: Path,
    broker: EmbeddedKafka,
    waves: Mapping[int, int],
    tell: Callable[[str], None],
) -> Table:
    """Make a table of warm, streamed waves. `waves` has their number by parallelism."""
    rows, verdicts = [], []
    with start_session("local[2,4]", python_path=[ROOT], folder=place) as session:
        for parallelism, count in waves.items():
            folder = place / f"fixed-{parallelism}"
            folder.mkdir()
            found = measure_waves(session, broker, folder, "streamed", parallelism, count)
            tell(
                f"Parallelism {parallelism}: a warm wave takes {found.warm_with_loop_s:.2f} s, "
                f"{found.warm_cpu_s:.2f} CPU s"
            )
            goal_s = GOALS_S[parallelism]
            said = judged(found.warm_with_loop_s < goal_s, f"below {goal_s:g} s")
            verdicts.append(
                f"A warm wave at parallelism {parallelism}: {found.warm_with_loop_s:.2f} s, {said}."
            )
            seconds = (found.first_s, found.warm_with_loop_s, found.warm_cpu_s)
            parts = (found.parts[name] for name in PARTS)
            rows.append([str(parallelism), str(count), *(f"{s:.2f}" for s in (*seconds, *parts))])
    note = (
        f"{' '.join(verdicts)} The waves have {WAVE_OFFSETS} records, on local[2]. They have two "
        "levels, so the number of tasks is twice the parallelism. Figures are medians of the waves "
        "after the first one. The CPU is that of the whole tree with the JVM and without the "
        "broker."
    )
    titles = ("parallelism", "waves", "first s", "warm s", "CPU s", *(f"{p} s" for p in PARTS))
    return Table("Waves: fixed cost", titles, rows, note)


@contextlib.contextmanager
def _broker(place: Path) -> Iterator[EmbeddedKafka]:
    broker = EmbeddedKafka.start("4.3.0", directory=place / "kafka", owned=True)
    try:
        yield broker
    finally:
        broker.stop()


def measure_waves(
    session: BackfillSession,
    broker: EmbeddedKafka,
    folder: Path,
    loop: str,
    parallelism: int,
    waves: int,
) -> Figures:
    """Run this number of waves with almost no records, and check the output."""
    job = new_job(broker, folder, orders=waves * WAVE_OFFSETS)
    job.settings["job.max_parallelism"] = max(128, parallelism)
    spent = Spent()
    executor = SparkExecutor(session, WAVE_TASK)
    seconds: list[float] = []
    ends_s: list[float] = []
    cpu_s: list[float] = [spent.cpu_s(broker.pids)]

    def wave(run_wave: Callable[[], bool]) -> bool:
        began_s = time.monotonic()
        last = run_wave()
        seconds.append(time.monotonic() - began_s)
        ends_s.append(time.monotonic())
        cpu_s.append(spent.cpu_s(broker.pids))
        return last

    inner = make_wave_loop(session) if loop == "streamed" else run_in_turn
    executor.run = spent.timed("spark job", executor.run)  # type: ignore[method-assign]
    with _timed_journal(spent):
        began_s = time.monotonic()
        job.backfill(
            parallelism=parallelism,
            wave_offsets=WAVE_OFFSETS,
            executor=executor,
            loop=lambda run_wave: inner(lambda: wave(run_wave)),
        )
        total_s = time.monotonic() - began_s
    assert exact(job)
    gaps = [b - a for a, b in itertools.pairwise(ends_s[1:])]
    cpus = [b - a for a, b in itertools.pairwise(cpu_s[1:])]
    return Figures(
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
    timed = ((JobJournal, PARTS[1:]), (Backfill, ("_plan",)))
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
