"""`make demo-spark`: a backfill on Spark with kills, then the live job, and an independent check.

A topic holds a million orders. `tidegate backfill` adds them up per customer, wave by wave, on a
local Spark that it starts itself (`local[2]`). The demo kills a Python worker with SIGKILL during a
wave, and Spark runs its task again. After a later wave the demo kills the driver, and then, after
another wave, Spark's JVM. Each time the same command continues the backfill. The demo then writes
more orders, and `tidegate run --bounded` continues where the backfill ended. The independent
checker compares every total with the orders. The exit code is 0 only if all totals are exact.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

import psutil

from integration.demo.orders import write
from integration.demo.totals import (
    EXACT,
    INTERRUPTED,
    NOT_EXACT,
    Setting,
    check,
    interrupt,
    say,
    setting,
    tell_verdict,
)
from integration.support.running import PIPELINE, GaveUpError, owned
from tidegate.errors import TidegateError

PARALLELISM = 4
WAVES = 5
RATE: Final = 10_000_000
"""Orders per second: higher than any producer can write, so the rate does not limit it."""
ORPHANS_S = 30.0
TIDEGATE: Final = str(Path(sys.executable).with_name("tidegate"))


def main(arguments: list[str] | None = None) -> int:
    """Run the demo, and return its exit code."""
    given = _options(arguments)
    signal.signal(signal.SIGTERM, interrupt)
    folder = given.directory or Path(tempfile.mkdtemp(prefix="tidegate-demo-spark-"))
    folder.mkdir(parents=True, exist_ok=True)
    code = NOT_EXACT
    try:
        with setting(folder, None) as place:
            code = _story(place, given)
    except KeyboardInterrupt:
        say("interrupted; everything that was started is ended")
        code = INTERRUPTED
    except (GaveUpError, TidegateError) as error:
        say(f"the demo failed: {error}")
    if code == EXACT and given.directory is None:
        shutil.rmtree(folder, ignore_errors=True)
    else:
        say(f"logs and data are in {folder} (.tidegate/logs)")
    return code


class Command:
    """A running `tidegate backfill --json`, or the live run after it, and its events."""

    def __init__(self, place: Setting, action: str, *more: str) -> None:
        words = ["--kafka", place.bootstrap, "-p", str(PARALLELISM), "--json", *more]
        for name, topic in (("sources.orders", place.orders), ("sinks.totals", place.totals)):
            words += ["-c", f"{name}.topic={topic}"]
        self.log = place.folder / f"{action}.log"
        self._process = owned(
            [TIDEGATE, action, PIPELINE, *words], folder=place.folder, log=self.log, pipe=True
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._process.kill()
        self._process.wait()
        if self._process.stdout is not None:
            self._process.stdout.close()

    def events(self) -> Iterator[dict[str, Any]]:
        """Yield each event as it arrives, until the command ends."""
        assert self._process.stdout is not None
        for line in self._process.stdout:
            yield json.loads(line)

    def next_wave(self) -> dict[str, Any]:
        """Wait for the end of a wave. Raise GaveUpError if the command ends first."""
        for event in self.events():
            if event["event"] == "wave":
                return event
        raise GaveUpError(f"the backfill ended before its wave: {self._tail()}")

    def rest(self) -> list[dict[str, Any]]:
        """Return all events up to the end. Raise GaveUpError if the command fails."""
        found = list(self.events())
        if self.wait() != 0:
            raise GaveUpError(f"the command failed: {self._tail()}")
        return found

    def wait(self) -> int:
        """Wait for the end of the command, and return its exit code."""
        return self._process.wait()

    def kill(self) -> set[int]:
        """Kill the command with SIGKILL, and return the processes that must end with it."""
        below = {each.pid for each in self.below()}
        self._process.kill()
        return below

    def below(self) -> list[psutil.Process]:
        """Return all processes that the command has started."""
        return psutil.Process(self._process.pid).children(recursive=True)

    def _tail(self) -> str:
        return " | ".join(self.log.read_text(errors="replace").splitlines()[-5:])


def workers(command: Command) -> list[int]:
    """Return the Python workers of Spark: the children of its daemon."""
    found = []
    for process in command.below():
        with contextlib.suppress(psutil.NoSuchProcess):
            parent = process.parent()
            if parent is not None and "pyspark.daemon" in parent.cmdline():
                found.append(process.pid)
    return found


def jvm(command: Command) -> int:
    """Return the process id of the driver's JVM. Raise GaveUpError if it has no JVM."""
    for process in command.below():
        with contextlib.suppress(psutil.NoSuchProcess):
            if process.name() == "java":
                return process.pid
    raise GaveUpError("the backfill has no JVM")


def _story(place: Setting, given: argparse.Namespace) -> int:
    begun = time.monotonic()
    write(place.bootstrap, place.orders, seed=1, rate=RATE, count=given.records)
    say(f"{_clock(begun)}  {given.records:,} orders are history; the backfill begins")
    words = ["--master", "local[2]", "--wave-records", str(-(-given.records // WAVES))]
    read = []
    with Command(place, "backfill", *words) as first:
        read.append(first.next_wave())
        killed = _kill_worker(first)
        say(f"{_clock(begun)}  a wave is committed; Python worker {killed} killed in the next one")
        read.append(first.next_wave())
        _await_end(first.kill())
        say(f"{_clock(begun)}  that wave is committed; the driver killed, and Spark ended with it")
    with Command(place, "backfill", *words) as second:
        read.append(second.next_wave())
        pid = jvm(second)
        os.kill(pid, signal.SIGKILL)
        code = second.wait()
        if code == 0:
            raise GaveUpError("the backfill ended well although its JVM was killed")
        say(f"{_clock(begun)}  another wave; Spark's JVM {pid} killed, and the driver said so")
    with Command(place, "backfill", *words) as third:
        read += [event for event in third.rest() if event["event"] == "wave"]
    backfilled_s = time.monotonic() - begun
    say(f"{_clock(begun)}  the same command has done the rest; the live job goes on")
    write(place.bootstrap, place.orders, seed=2, rate=RATE, count=given.records // 10)
    with Command(place, "run", "--bounded") as live:
        live.rest()
    say(f"{_clock(begun)}  all read; the checker reads both topics")
    verdict, said = check(place)
    seconds = sum(wave["seconds"] for wave in read)
    records = sum(wave["records_in"] for wave in read)
    say("")
    say(f"waves        {len(read)} committed: {records:,} records in {seconds:.1f} s of waves")
    say(f"             {backfilled_s:.1f} s with three starts of Spark, kills and repetitions")
    tell_verdict(said, exact=verdict == 0)
    return EXACT if verdict == 0 else NOT_EXACT


def _kill_worker(command: Command) -> int:
    """Kill a Python worker with SIGKILL as soon as one exists, and return its process id."""
    end_s = time.monotonic() + ORPHANS_S
    while time.monotonic() < end_s:
        for pid in workers(command):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
                return pid
        time.sleep(0.05)
    raise GaveUpError("Spark has no Python worker")


def _await_end(pids: set[int]) -> None:
    """Wait until all processes have ended. Raise GaveUpError after `ORPHANS_S` seconds."""
    end_s = time.monotonic() + ORPHANS_S
    while any(psutil.pid_exists(pid) for pid in pids):
        if time.monotonic() > end_s:
            left = sorted(pid for pid in pids if psutil.pid_exists(pid))
            raise GaveUpError(f"processes {left} outlived the driver that started them")
        time.sleep(0.1)


def _clock(begun: float) -> str:
    return f"{time.monotonic() - begun:6.1f} s"


def _options(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="make demo-spark", description=__doc__)
    parser.add_argument("--records", type=int, default=1_000_000, help="orders of the history")
    parser.add_argument("--directory", type=Path, help="where logs and data stay")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
