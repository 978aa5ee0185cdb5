"""Runs the order totals under random kills and freezes for a long time: `make soak MINUTES=30`.

A producer writes orders at a steady rate. Every few seconds the soak picks a process of the cluster
at random. It kills the process with SIGKILL, also during a recovery, or freezes it for a while with
SIGSTOP, sometimes so long that the process counts as lost. Once a minute a line shows the number of
kills, freezes and recoveries, and the resource usage: memory, threads and open files of each kind
of process, open transactions, and files on disk.

At the end the soak stops the job and prints three verdicts. The independent checker judges the
output. A reader that watched the whole run checks that no visible record has changed or
disappeared. The last verdict is whether every figure stayed level (`levels`). The exit code is 1 if
one of the three fails.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from integration.demo import checker
from integration.demo.totals import (
    EXACT,
    INTERRUPTED,
    NOT_EXACT,
    TARGETS,
    Setting,
    check,
    drain,
    interrupt,
    producer,
    say,
    setting,
    start_job,
)
from integration.support.leak_detection import judge
from integration.support.resource_usage import SLACK, ResourceUsage
from integration.support.running import GaveUpError, Report, TidegateRun, runs_with_checkpoint
from integration.support.watching import CommittedOutput
from tidegate.errors import TidegateError

TELL_S = 60.0
SAMPLES = 120
"""The number of samples in the whole run, but at least `SAMPLE_S_MIN` seconds lie between two."""
SAMPLE_S_MIN = 2.0
QUIET_S_MAX = 120.0
"""The longest time without a running job, in seconds. After it the soak fails."""
HEARTBEAT_TIMEOUT_S = 5.0
LOGS_OF_A_TASKMANAGER = 4
"""Number of log files of a TaskManager. It has one file, its fork server has one, and each of its
two slots has one. Later processes of a slot use the same file.
"""
# Kills come faster than the default backoff resets. So its delay would soon be a minute.
OPTIONS = (
    "-c",
    "restart.strategy=fixed_delay",
    "-c",
    "restart.delay=100ms",
    "-c",
    f"cluster.heartbeat_timeout={HEARTBEAT_TIMEOUT_S:g}s",
)


@dataclass(slots=True)
class Tally:
    """The number of kills and freezes, and of the recoveries and checkpoints after them."""

    killed: Counter[str] = field(default_factory=Counter)
    frozen: Counter[str] = field(default_factory=Counter)
    taskmanagers: set[int] = field(default_factory=set)
    """Process ids of all TaskManagers that have had a slot of the job."""
    attempt: int = 0
    recoveries: int = 0
    """Number of attempts after the first that have completed a checkpoint."""
    checkpoints: int = 0
    _before: int = 0
    """Number of checkpoints of earlier attempts."""
    _last: str = ""

    def see(self, report: Report) -> None:
        """Update the numbers from a report."""
        self.taskmanagers |= {slot["task_manager_pid"] for slot in report["slots"]}
        last = report["last_checkpoint"]
        if last is None or last["id"] == self._last:
            return
        self._last = last["id"]
        attempt, number = (int(part) for part in last["id"].split("-"))
        if attempt > self.attempt:
            self.recoveries += self.attempt > 0
            self.attempt, self._before = attempt, self.checkpoints
        self.checkpoints = self._before + number

    def __str__(self) -> str:
        return (
            f"killed {_counted(self.killed)}; frozen {_counted(self.frozen)}; "
            f"{self.recoveries} recoveries, {self.checkpoints} checkpoints"
        )


def main(arguments: list[str] | None = None) -> int:
    """Run the soak and return its exit code. It is 0 if all three verdicts are good."""
    given = _options(arguments)
    signal.signal(signal.SIGTERM, interrupt)
    folder = Path(tempfile.mkdtemp(prefix="tidegate-soak-"))
    code = NOT_EXACT
    try:
        with setting(folder, None) as place:
            code = _story(place, given)
    except KeyboardInterrupt:
        say("The soak was interrupted, and all of its processes have ended.")
        code = INTERRUPTED
    except (GaveUpError, TidegateError) as error:
        say(f"The soak failed: {error}")
    if code == EXACT:
        shutil.rmtree(folder, ignore_errors=True)
    else:
        say(f"Logs and data are in {folder} (.tidegate/logs).")
    return code


def _story(place: Setting, given: argparse.Namespace) -> int:
    seconds = given.minutes * 60
    records = int(given.rate * seconds)
    say(f"The soak takes {given.minutes:g} minutes, with {records:,} orders and seed {given.seed}.")
    tally = Tally()
    with (
        CommittedOutput(place.bootstrap, place.totals) as output,
        start_job(place, *OPTIONS) as run,
        ResourceUsage(place.bootstrap, place.folder / ".tidegate") as usage,
    ):
        run.wait_for("running job", _runs)
        paced = {"seed": given.seed, "rate": given.rate, "records": records}
        with producer(place, **paced) as orders:
            Attack(run, usage, tally, given).go_on_for(seconds)
            if orders.wait() != 0:
                raise GaveUpError(f"The producer failed. See {place.folder / 'orders.log'}.")
            run.wait_for("running job after the last kill", runs_with_checkpoint, QUIET_S_MAX)
            drain(run, time.time() * 1000)
        say(f"At the end: {tally}")
        code = run.stop()
        if code != 0:
            raise GaveUpError(f"The job ended with exit code {code}: {run.tail()}")
        verdict, said = check(place)
        say(said)
        changed = output.vanished_records(checker.read_committed(place.bootstrap, place.totals))
    for line in changed or ["No visible record has changed or disappeared."]:
        say(line)
    level = _print_levels(usage, tally)
    return EXACT if verdict == 0 and level and not changed else NOT_EXACT


def _print_levels(usage: ResourceUsage, tally: Tally) -> bool:
    """Print each figure over time, and return whether all figures stayed level.

    The number of log files may grow with the number of TaskManagers, because each has its own.
    """
    files = LOGS_OF_A_TASKMANAGER * len(tally.taskmanagers)
    more = {"logs files": SLACK["logs files"] + files}
    levels = judge(usage.samples, SLACK | more)
    width = max(len(level.name) for level in levels)
    say(f"{'':{width}}  {'first':>9} {'last':>9} {'highest':>9} {'trend':>9} {'allowed':>9}")
    for level in levels:
        said = "level" if level.level else "GROWS"
        say(
            f"{level.name:{width}}  {level.first:9,.1f} {level.last:9,.1f} {level.highest:9,.1f} "
            f"{level.growth:+9,.1f} {level.allowed:9,.1f}  "
            f"{said if level.judged else 'too few samples for a verdict'}"
        )
    return all(level.level for level in levels if level.judged)


class Attack:
    """A series of random kills and freezes, with measurements in between."""

    def __init__(
        self, run: TidegateRun, usage: ResourceUsage, tally: Tally, given: argparse.Namespace
    ) -> None:
        self._run, self._usage, self._tally, self._given = run, usage, tally, given
        self._chance = random.Random(given.seed)
        self._sample_s = max(SAMPLE_S_MIN, given.minutes * 60 / SAMPLES)
        self._thaw: dict[int, float] = {}
        """Monotonic time at which each frozen process gets SIGCONT, by process id."""

    def go_on_for(self, seconds: float) -> None:
        """Attack for `seconds`. At the end every frozen process gets SIGCONT.

        Raises GaveUpError if the job does not run for `QUIET_S_MAX` seconds.
        """
        now_s = begun_s = time.monotonic()
        strike_s, sample_s, tell_s = now_s, now_s, now_s + TELL_S
        healthy_s = now_s
        while (now_s := time.monotonic()) < begun_s + seconds:
            report = self._run.report
            if report is not None:
                self._tally.see(report)
                healthy_s = now_s if _runs(report) else healthy_s
            # A job that never recovers fails here, not only at the end of the soak.
            if now_s > healthy_s + QUIET_S_MAX:
                raise GaveUpError(
                    f"The job did not run within {QUIET_S_MAX:g} s: {self._run.tail()}"
                )
            self._thaw_what_is_due(now_s)
            if now_s >= strike_s and report is not None:
                self._strike(report, now_s)
                strike_s = now_s + self._chance.expovariate(1 / self._given.pause)
            if now_s >= sample_s:
                sample_s = now_s + self._sample_s
                self._usage.sample(self._run)
            if now_s >= tell_s:
                tell_s = now_s + TELL_S
                say(f"{time.strftime('%H:%M:%S')}  {self._tally}; {self._usage}")
            time.sleep(0.1)
        self._thaw_what_is_due(float("inf"))

    def _strike(self, report: Report, now_s: float) -> None:
        kind = self._chance.choice(self._given.only or list(TARGETS))
        freezes = self._chance.random() < self._given.freezes
        length_s = self._chance.uniform(0.2, 2 * HEARTBEAT_TIMEOUT_S)
        if not report["slots"] and kind not in {"JobMaster", "JobManager"}:
            return
        pid = TARGETS[kind](report, self._chance)
        if pid == 0 or pid in self._thaw:
            return
        try:
            os.kill(pid, signal.SIGSTOP if freezes else signal.SIGKILL)
        except ProcessLookupError:
            return
        if freezes:
            self._thaw[pid] = now_s + length_s
        (self._tally.frozen if freezes else self._tally.killed)[kind] += 1

    def _thaw_what_is_due(self, now_s: float) -> None:
        for pid, at_s in list(self._thaw.items()):
            if at_s <= now_s:
                del self._thaw[pid]
                with suppress(ProcessLookupError):  # it counted as lost and was killed while frozen
                    os.kill(pid, signal.SIGCONT)


def _runs(report: Report) -> bool:
    return bool(report["state"] == "RUNNING")


def _counted(counter: Counter[str]) -> str:
    return ", ".join(f"{count} {kind}" for kind, count in sorted(counter.items())) or "none"


def _options(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m integration.faults.soak", description=__doc__)
    parser.add_argument("--minutes", type=float, default=30.0, help="Duration in minutes.")
    parser.add_argument("--rate", type=int, default=2_000, help="Number of orders per second.")
    parser.add_argument(
        "--pause", type=float, default=8.0, help="Average number of seconds between two strikes."
    )
    parser.add_argument(
        "--freezes", type=float, default=0.3, help="Share of strikes that use SIGSTOP."
    )
    parser.add_argument(
        "--only",
        action="append",
        choices=TARGETS,
        help="Strike only this kind of process. Repeatable.",
    )
    parser.add_argument("--seed", type=int, default=1, help="Seed of the orders and the strikes.")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
