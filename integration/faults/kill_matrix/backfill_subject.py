"""Provides a job that is backfilled under attack, with a committed reader and a verdict.

Its drivers are separate processes (`integration/spark/drivers.py`). They run one after the other,
or two at a time, and each continues where the journal ends. `judge_so_far` asks the independent
checker whether the visible output is a prefix of the expected output. After a last driver has read
everything, `judge_at_the_end` asks the checker about the whole output. It also compares the records
that the reader saw with the final output. This module does not decide what is right.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from decimal import Decimal
from pathlib import Path
from typing import Any, Final

import msgspec

from integration.demo import checker
from integration.faults.kill_matrix.subject import WrongError, seen_whole, wrong_in_journal
from integration.faults.kill_points.kill_points import Plan, Trap
from integration.faults.kill_points.killed_runs import JUDGED, Job, orders
from integration.spark.drivers import Driver, DriverOptions, running_driver
from integration.support.brokers import produce, unique
from integration.support.watching import CommittedOutput

WAVE: Final = 2_000
"""Number of offsets of a wave. A quarter of them is in each partition."""
WAIT_S: Final = 240.0
"""Seconds to wait for an event that takes some seconds on a quiet machine."""
POLL_S: Final = 0.1


class BackfillSubject:
    """A job, its input, and the readers of its output."""

    def __init__(self, job: Job, outputs: dict[str, CommittedOutput]) -> None:
        self.job, self.outputs = job, outputs
        self.options = DriverOptions(
            reference="job:Job",
            folder=str(job.folder),
            settings={
                "kafka.bootstrap_servers": job.bootstrap,
                "checkpoint.dir": str(job.folder / ".tidegate" / "checkpoints"),
                "state.local_dir": str(job.folder / ".tidegate" / "state"),
                **{f"sources.{key}.topic": job.topics[key] for key in job.sources},
                **{f"sinks.{key}.topic": job.topics[key] for key in job.sinks},
            },
            wave_offsets=WAVE,
        )
        self._written: list[checker.Record] = []
        self._seeds = itertools.count(1)

    @classmethod
    @contextmanager
    def made(cls, bootstrap: str, folder: Path, pipeline: str) -> Iterator[BackfillSubject]:
        """Make a job with its own, empty topics. Nothing runs yet."""
        job = Job.make(bootstrap, folder, pipeline)
        with ExitStack() as open_:
            outputs = {
                sink: open_.enter_context(CommittedOutput(bootstrap, job.topics[sink], keep=True))
                for sink in job.sinks
            }
            open_.enter_context(seen_whole(job))
            yield cls(job, outputs)

    def write(self, count: int) -> None:
        """Write this number of further orders."""
        made = list(itertools.islice(orders(next(self._seeds)), count))
        # The orders are remembered first, because the visible output must never be ahead of the
        # known input.
        before = len(self._written)
        self._written += [checker.Record(0, before + n, *each) for n, each in enumerate(made)]
        produce(self.job.bootstrap, self.job.topics["orders"], made)

    @contextmanager
    def driver(
        self,
        *traps: Trap,
        environment: Mapping[str, str] | None = None,
        **changes: Any,
    ) -> Iterator[Driver]:
        """Start another driver, which continues where the journal ends. `changes` replaces some of
        its options.
        """
        plan = Plan.of(self.job.folder / unique("traps"), traps)
        options = msgspec.structs.replace(self.options, **changes)
        with running_driver(options, plan, environment=environment) as driver:
            yield driver

    def first_output(self, since_ms: int) -> int:
        """Return the time at which the first record written at or after `since_ms` became visible.

        Both times are milliseconds since the epoch. Raise WrongError if no such record comes in
        time.
        """
        found = next(iter(self.outputs.values())).first_of(since_ms, WAIT_S)
        if found is None:
            raise WrongError(f"there was no output within {WAIT_S:g} s")
        return found

    def publications(self) -> int:
        """Return the number of publications in the journal so far."""
        return sum(entry["kind"] == "publication" for entry in self.job.journal())

    def judge_so_far(self) -> None:
        """Judge the visible output. Raise WrongError if a committed reader has seen a record that
        is not expected, or records in another order.
        """
        for sink, output in self.outputs.items():
            seen = [checker.Record(*record) for record in output.kept()]
            verdict = checker.judge(
                self._written,
                seen,
                JUDGED[sink].get("minimum", Decimal(0)),
                field=JUDGED[sink]["field"],
                complete=False,
            )
            if not verdict.exact:
                raise WrongError(f"{sink}: {verdict}")

    def judge_at_the_end(self, **changes: Any) -> None:
        """Let a last driver read everything, and judge the whole output."""
        with self.driver(**changes) as driver:
            ends_well(driver)
        self.judge_the_whole()

    def judge_the_whole(self) -> None:
        """Judge the whole output. Raise WrongError unless each output exists once, and no
        transaction is open.
        """
        verdict = self.job.compare()
        if not verdict.exact:
            raise WrongError(str(verdict))
        for sink, output in self.outputs.items():
            end = checker.read_committed(self.job.bootstrap, self.job.topics[sink])
            if changed := output.vanished_records(end):
                raise WrongError("; ".join(changed))
        if left := self.job.open_transactions():
            raise WrongError(f"transactions are left open: {', '.join(left)}")
        if (wrong := wrong_in_journal(self.job.journal())) is not None:
            raise WrongError(wrong)


def ends_well(driver: Driver) -> None:
    """Wait until the driver ends. Raise WrongError unless it ends by itself, has finished its
    waves, and leaves no process.
    """
    lines = driver.lines()
    code = driver.process.wait(WAIT_S)
    if (code, lines[-1:]) != (0, ["closed"]):
        raise WrongError(f"the driver ended with {code} and said {lines}: {tail(driver)}")
    until(driver.is_gone, "no process of the driver is left")


def until(condition: Callable[[], object], what: str, timeout_s: float = WAIT_S) -> None:
    """Wait until a condition is true. Raise WrongError if it is not true in time."""
    end_s = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > end_s:
            raise WrongError(f"this did not happen within {timeout_s:g} s: {what}")
        time.sleep(POLL_S)


def until_snapped(driver: Driver, number: int) -> int:
    """Wait until a trap has caught a process, and return its pid."""

    def caught() -> bool:
        if driver.plan.pid(number) is not None:
            return True
        if driver.process.poll() is not None:
            point = driver.plan.traps[number].point
            raise WrongError(f"the driver ended before {point}: {driver.lines()} {tail(driver)}")
        return False

    until(caught, driver.plan.traps[number].point)
    pid = driver.plan.pid(number)
    assert pid is not None
    return pid


def tail(driver: Driver) -> str:
    """Return the last lines that a driver has logged."""
    return driver.logged()[-1500:]


def short(error: Exception) -> str:
    """Return an error as a short verdict."""
    return " ".join(str(error).split())[:300] or type(error).__name__
