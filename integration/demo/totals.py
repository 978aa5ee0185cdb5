"""`make demo`: the order totals on a real broker, four kills, and an independent check.

A producer writes orders at a steady rate. `tidegate run` adds them up per customer, with four slots
in two TaskManagers and one checkpoint per second. Meanwhile the demo kills a slot, a TaskManager
with its slots, the JobMaster and the JobManager with SIGKILL. Each kill follows a completed
checkpoint of the attempt that it interrupts. When the job has read all orders, the demo stops it,
and the independent checker compares every total with the orders. A table shows the kills. The exit
code is 0 only if the job recovered from every kill and the output is exact.

The recovery time is the time that a reader of the output would measure: from the kill to the first
committed record of the next attempt.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

from integration.support.brokers import create_topic, unique
from integration.support.running import (
    GaveUpError,
    Report,
    TidegateRun,
    await_gone,
    owned,
    runs_with_checkpoint,
)
from integration.support.watching import CommittedOutput
from tidegate.drivers.kafka.embedded import EmbeddedKafka
from tidegate.errors import TidegateError
from tidegate.message_text import counted
from tidegate.terminal.live_line import LiveLine

PARALLELISM, TASK_MANAGERS, SLOTS = 4, 2, 2
PARTITIONS = 4
INTERVAL = "1 s"
PROGRESS_S = 5.0
RECOVERY_S_MAX = 60.0
DRAIN_S_MAX = 120.0
HEARTBEAT_MS = 1_000
"""The greatest age of a slot's reported lag, in ms. A report that comes twice this time after the
last order holds the true lag.
"""
EXACT, NOT_EXACT, INTERRUPTED = 0, 1, 130
BOLD, DIM, RED, GREEN = "1", "2", "31", "1;32"
"""Colours of a terminal."""


@dataclass(slots=True, kw_only=True)
class Kill:
    """One process that was killed, and the recovery after it."""

    kind: str
    pid: int
    checkpoints: int
    """Number of checkpoints that were completed before."""
    with_it: int
    """Number of processes that must end with it."""
    status: int = 0
    recovery_s: float = 0.0


@dataclass(slots=True, kw_only=True)
class Setting:
    """The brokers, topics and folder of the demo."""

    bootstrap: str
    orders: str
    totals: str
    folder: Path


def main(arguments: list[str] | None = None) -> int:
    """Run the demo, and return its exit code."""
    given = _options(arguments)
    signal.signal(signal.SIGTERM, interrupt)
    folder = given.directory or Path(tempfile.mkdtemp(prefix="tidegate-demo-"))
    folder.mkdir(parents=True, exist_ok=True)
    code = NOT_EXACT
    try:
        with setting(folder, given.kafka) as place:
            code = _story(place, given)
    except KeyboardInterrupt:
        say("interrupted; everything that was started is ended")
        code = INTERRUPTED
    except (GaveUpError, TidegateError) as error:
        say(f"the demo failed: {error}", RED)
    if code == EXACT and given.directory is None:
        shutil.rmtree(folder, ignore_errors=True)
    else:
        say(f"logs and data are in {folder} (.tidegate/logs)")
    return code


def say(line: str, colour: str = "") -> None:
    """Print a line of progress. A colour is one of those above, and is for terminals only."""
    coloured = colour and sys.stdout.isatty() and not os.environ.get("NO_COLOR")
    print(f"\x1b[{colour}m{line}\x1b[0m" if coloured else line, flush=True)


def interrupt(_signal: int, _frame: FrameType | None) -> None:
    """Treat SIGTERM as Ctrl-C: the demo ends every process that it started."""
    raise KeyboardInterrupt


@contextmanager
def setting(folder: Path, kafka: str | None) -> Iterator[Setting]:
    """Yield a new broker, or the given cluster, with two new topics. Print how the broker is
    downloaded and started.
    """
    if kafka is not None:
        names = unique("orders"), unique("order-totals")
        _make_topics(kafka, names)
        yield Setting(bootstrap=kafka, orders=names[0], totals=names[1], folder=folder)
        return
    begun, line = time.monotonic(), LiveLine(sys.stdout)
    try:
        broker = EmbeddedKafka.start(directory=folder / "kafka", owned=True, report=line.show)
    finally:
        line.end()
    with broker:
        say(f"Kafka {broker.version} answers after {time.monotonic() - begun:.1f} s")
        _make_topics(broker.bootstrap, ("orders", "order-totals"))
        yield Setting(
            bootstrap=broker.bootstrap, orders="orders", totals="order-totals", folder=folder
        )


def start_job(place: Setting, *extra: str) -> TidegateRun:
    """Start the job of the demo and the soak."""
    options = ["-p", str(PARALLELISM), "--task-managers", str(TASK_MANAGERS)]
    options += ["--slots", str(SLOTS), "--checkpoint-interval", INTERVAL, *extra]
    topics = {"sources.orders.topic": place.orders, "sinks.totals.topic": place.totals}
    return TidegateRun(place.folder, place.bootstrap, options=options, config=topics)


@contextmanager
def producer(
    place: Setting, *, seed: int, rate: int, records: int
) -> Iterator[subprocess.Popen[bytes]]:
    """Write orders until the block ends or all of them are written."""
    words = ["--bootstrap", place.bootstrap, "--topic", place.orders, "--seed", str(seed)]
    words += ["--rate", str(rate), "--records", str(records)]
    command = [sys.executable, "-m", "integration.demo.orders", *words]
    process = owned(command, folder=place.folder, log=place.folder / "orders.log")
    try:
        yield process
    finally:
        process.kill()
        process.wait()


TARGETS: dict[str, Callable[[Report, random.Random], int]] = {
    "slot process": lambda report, rng: int(rng.choice(report["slots"])["pid"]),
    "TaskManager": lambda report, rng: int(rng.choice(report["slots"])["task_manager_pid"]),
    "JobMaster": lambda report, _: int(report["jobmaster_pid"]),
    "JobManager": lambda report, _: int(report["jobmanager_pid"]),
}
"""The kinds of processes that are killed, in this order, each with a function that finds the
process id in a report.
"""


def kill(kind: str, run: TidegateRun, output: CommittedOutput, rng: random.Random) -> Kill:
    """Kill one process after a checkpoint of the live attempt, and wait for the next one's output.

    Raises GaveUpError if the job does not recover in time, or if processes outlive the one that
    started them.
    """
    before = run.wait_for(f"checkpoint before the {kind} is killed", runs_with_checkpoint)
    pid = TARGETS[kind](before, rng)
    below = _below(kind, pid, before)
    killed_ms = time.time() * 1000
    os.kill(pid, signal.SIGKILL)
    done = Kill(
        kind=kind,
        pid=pid,
        checkpoints=len(run.checkpoints),
        with_it=len(below),
        status=run.await_exit(pid),
    )
    after = run.wait_for(
        f"new attempt after the {kind} was killed",
        lambda report: bool(report["attempt"] > before["attempt"]),
    )
    # Output that the old attempt published becomes visible too. Only newer records count.
    seen_ms = output.first_of(after["reported_ms"], RECOVERY_S_MAX)
    if seen_ms is None:
        message = f"no output within {RECOVERY_S_MAX:g} s after the {kind} was killed"
        raise GaveUpError(f"{message}: {run.tail()}")
    done.recovery_s = (seen_ms - killed_ms) / 1000
    if left := await_gone(below):
        raise GaveUpError(f"processes {sorted(left)} outlived the {kind} that they belong to")
    return done


def check(place: Setting) -> tuple[int, str]:
    """Run the independent checker in another process, and return its exit code and its output."""
    words = ["--bootstrap", place.bootstrap, "--orders", place.orders, "--totals", place.totals]
    command = [sys.executable, "-m", "integration.demo.checker", *words]
    checker = owned(command, folder=place.folder, log=place.folder / "checker.log", pipe=True)
    try:
        said = checker.communicate()[0].decode().rstrip()
    finally:
        checker.kill()
        checker.wait()
    return checker.returncode, said


def drain(run: TidegateRun, since_ms: float) -> None:
    """Wait until the job has read every order that was written before `since_ms`."""
    run.wait_for(
        "end of what there is to read",
        lambda report: (
            report["state"] == "RUNNING"
            and report["lag"] == 0
            and report["reported_ms"] > since_ms + 2 * HEARTBEAT_MS
        ),
        DRAIN_S_MAX,
    )


def _story(place: Setting, given: argparse.Namespace) -> int:
    kills: list[Kill] = []
    rng = random.Random(given.seed)
    extra = ["--take-over"] if given.take_over else []
    with (
        start_job(place, *extra) as run,
        CommittedOutput(place.bootstrap, place.totals) as output,
    ):
        run.wait_for("running job", lambda report: bool(report["state"] == "RUNNING"))
        say(f"the job runs: {PARALLELISM} slots in {TASK_MANAGERS} TaskManagers; orders begin")
        begun = time.monotonic()
        paced = {"seed": given.seed, "rate": given.rate, "records": given.records}
        with producer(place, **paced) as orders, _progress(begun, run, output):
            expected_s = given.records / given.rate
            for number, kind in enumerate(TARGETS, start=1):
                due = begun + expected_s * number / (len(TARGETS) + 2)
                time.sleep(max(0.0, due - time.monotonic()))
                if orders.poll() is not None:
                    raise GaveUpError(f"the orders ended before the {kind} could be killed")
                kills.append(kill(kind, run, output, rng))
                last = kills[-1]
                say(
                    f"{_clock(begun)}  {kind} {last.pid} killed (status {last.status}), "
                    f"output again after {last.recovery_s:.1f} s",
                    RED,
                )
            if orders.wait() != 0:
                raise GaveUpError(f"the producer failed: see {place.folder / 'orders.log'}")
            written_s = time.monotonic() - begun
            drain(run, time.time() * 1000)
            drained_s = time.monotonic() - begun
        code = run.stop()
    if code != 0:
        raise GaveUpError(f"the job ended with exit code {code}: {run.tail()}")
    say(
        f"{_clock(begun)}  all read, stopped with a final checkpoint; the checker reads both topics"
    )
    verdict, said = check(place)
    _tell(kills, run, given, (written_s, drained_s), said, exact=verdict == 0)
    return EXACT if verdict == 0 else NOT_EXACT


def _below(kind: str, pid: int, report: Report) -> set[int]:
    """Return the processes that must end together with the killed one."""
    slots = {slot["pid"] for slot in report["slots"]}
    if kind == "JobManager":
        managers = {slot["task_manager_pid"] for slot in report["slots"]}
        return slots | managers | {report["jobmaster_pid"]}
    if kind == "TaskManager":
        return {slot["pid"] for slot in report["slots"] if slot["task_manager_pid"] == pid}
    return slots if kind == "JobMaster" else set()


def _tell(
    kills: list[Kill],
    run: TidegateRun,
    given: argparse.Namespace,
    times: tuple[float, float],
    verdict: str,
    *,
    exact: bool,
) -> None:
    rows = [("killed", "process", "status", "took along", "checkpoints before", "recovery")]
    rows += [
        (
            each.kind,
            str(each.pid),
            f"{each.status} ({signal.Signals(-each.status).name})" if each.status < 0 else "",
            f"{each.with_it} processes" if each.with_it else "nothing",
            str(each.checkpoints),
            f"{each.recovery_s:.1f} s",
        )
        for each in kills
    ]
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    say("")
    for number, row in enumerate(rows):
        cells = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        say("  ".join(cells).rstrip(), "" if number else BOLD)
    written_s, drained_s = times
    say("")
    say(
        f"records      {given.records:,} written in {written_s:.1f} s, all read and added up "
        f"after {drained_s:.1f} s"
    )
    say(f"             {given.records / drained_s:,.0f} a second over all kills")
    say(f"checkpoints  {len(run.checkpoints)} completed, with an interval of {INTERVAL}")
    say(f"restarts     {len(run.attempts) - 1}")
    tell_verdict(verdict, exact=exact)


def tell_verdict(said: str, *, exact: bool) -> None:
    """Print what the checker said, in lines of less than 100 columns."""
    colour = GREEN if exact else RED
    for number, line in enumerate(said.replace("; ", "\n").splitlines()):
        say(f"{'' if number else 'verdict':<13}{line}", colour)


@contextmanager
def _progress(begun: float, run: TidegateRun, output: CommittedOutput) -> Iterator[None]:
    """Print a line every `PROGRESS_S` seconds while the block lasts."""
    over = threading.Event()

    def tell() -> None:
        while not over.wait(PROGRESS_S):
            report = run.report or {}
            state = str(report.get("state", "starting")).lower().replace("_", " ")
            lag = report.get("lag")
            say(
                f"{_clock(begun)}  {state}, {counted(max(0, len(run.attempts) - 1), 'restart')}, "
                f"lag {'not known' if lag is None else f'{lag:,}'}, "
                f"{counted(len(run.checkpoints), 'checkpoint')}, "
                f"{output.records:,} totals visible",
                DIM,
            )

    teller = threading.Thread(target=tell, name="progress", daemon=True)
    teller.start()
    try:
        yield
    finally:
        over.set()
        teller.join()


def _clock(begun: float) -> str:
    seconds = int(time.monotonic() - begun)
    return f"{seconds // 60}:{seconds % 60:02d}"


def _make_topics(bootstrap: str, names: tuple[str, str]) -> None:
    for name in names:
        create_topic(bootstrap, name, partitions=PARTITIONS)


def _options(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m integration.demo.totals", description=__doc__)
    parser.add_argument("--rate", type=int, default=20_000, help="orders a second")
    parser.add_argument("--records", type=int, default=1_000_000, help="orders in all")
    parser.add_argument("--seed", type=int, default=1, help="of the orders and of what is killed")
    parser.add_argument("--kafka", metavar="HOST:PORT", help="use this cluster, with new topics")
    parser.add_argument("--take-over", action="store_true", help="of tidegate run; for --kafka")
    parser.add_argument("--directory", type=Path, help="work in this folder and keep it")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
