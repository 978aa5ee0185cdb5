"""`make soak MINUTES=30`: the main job under random kills for a long time, judged at the end.

Orders flow steadily; every few seconds one process of the cluster, any of them, is ended by
SIGKILL, also in the middle of a recovery. Once a minute a line tells what the cluster holds:
memory, threads, open files, files on disk; what grows there without end is a leak. At the end
everything is read, the job stopped, and the independent checker has the last word.
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
from pathlib import Path

from integration.demo import (
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
from integration.running import GaveUpError, Report, TidegateRun, runs_with_checkpoint
from tidegate.errors import TidegateError

TELL_S = 60.0
QUIET_S_MAX = 120.0
"""Without a kill the job must run again within this time."""
# Kills come faster than the default back-off forgets: it would soon wait a minute after each.
OPTIONS = ("-c", "restart.strategy=fixed_delay", "-c", "restart.delay=100ms")


def main(arguments: list[str] | None = None) -> int:
    """Run for so many minutes; exit code 0 if the output is exact."""
    given = _options(arguments)
    signal.signal(signal.SIGTERM, interrupt)
    folder = Path(tempfile.mkdtemp(prefix="tidegate-soak-"))
    code = NOT_EXACT
    try:
        with setting(folder, None, say) as place:
            code = _story(place, given)
    except KeyboardInterrupt:
        say("interrupted; everything that was started is ended")
        code = INTERRUPTED
    except (GaveUpError, TidegateError) as error:
        say(f"the soak failed: {error}")
    if code == EXACT:
        shutil.rmtree(folder, ignore_errors=True)
    else:
        say(f"logs and data are in {folder} (.tidegate/logs)")
    return code


def _story(place: Setting, given: argparse.Namespace) -> int:
    seconds = given.minutes * 60
    records = int(given.rate * seconds)
    say(f"{given.minutes:g} minutes, {records:,} orders, seed {given.seed}")
    with start_job(place, *OPTIONS) as run:
        run.wait_for("running job", _runs)
        paced = {"seed": given.seed, "rate": given.rate, "records": records}
        with producer(place, **paced) as orders:
            killed = _kill_for(seconds, run, place, given)
            if orders.wait() != 0:
                raise GaveUpError(f"the producer failed: see {place.folder / 'orders.log'}")
            run.wait_for("running job after the last kill", runs_with_checkpoint, QUIET_S_MAX)
            drain(run, time.time() * 1000)
        _tell(place, run, killed)
        code = run.stop()
    if code != 0:
        raise GaveUpError(f"the job ended with exit code {code}: {run.tail()}")
    verdict, said = check(place)
    say(said)
    return EXACT if verdict == 0 else NOT_EXACT


def _runs(report: Report) -> bool:
    return bool(report["state"] == "RUNNING")


def _kill_for(
    seconds: float, run: TidegateRun, place: Setting, given: argparse.Namespace
) -> Counter[str]:
    """Kill at random for so long; how often which kind."""
    chance = random.Random(given.seed)
    killed: Counter[str] = Counter()
    end_s = time.monotonic() + seconds
    tell_s = time.monotonic() + TELL_S
    while time.monotonic() < end_s:
        time.sleep(min(chance.expovariate(1 / given.pause), max(0.0, end_s - time.monotonic())))
        report = run.report
        if report is not None:
            kind = chance.choice(given.only or list(TARGETS))
            if report["slots"] or kind in {"JobMaster", "JobManager"}:
                killed[kind] += _kill(TARGETS[kind](report, chance))
        if time.monotonic() > tell_s:
            tell_s += TELL_S
            _tell(place, run, killed)
        # One that never comes back is found here, not after the whole time.
        run.wait_for("running job", _runs, QUIET_S_MAX)
    return killed


def _kill(pid: int) -> bool:
    """False where there was nothing to kill any more."""
    if pid == 0:
        return False
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return False
    return True


def _tell(place: Setting, run: TidegateRun, killed: Counter[str]) -> None:
    report = run.report or {}
    kills = ", ".join(f"{count} {kind}" for kind, count in sorted(killed.items())) or "none"
    pids = {run.pid, *run.living()}
    held = Counter[str]()
    for pid in pids:
        held.update(_held(pid))
    work = place.folder / ".tidegate"
    files = {name: _files(work / name) for name in ("checkpoints", "state", "logs")}
    disk = ", ".join(
        f"{name} {n} files {size / (1 << 20):.1f} MiB" for name, (n, size) in files.items()
    )
    say(
        f"{time.strftime('%H:%M:%S')}  killed {kills}; attempt {report.get('attempt')}, "
        f"{report.get('checkpoints_completed')} checkpoints, lag {report.get('lag')}; "
        f"{len(pids)} processes, {held['kib'] >> 10} MiB, {held['threads']} threads, "
        f"{held['files']} open files; {disk}"
    )


def _held(pid: int) -> dict[str, int]:
    """What a process holds; nothing if it is gone."""
    try:
        status = Path(f"/proc/{pid}/status").read_text(encoding="utf-8")
        files = len(list(Path(f"/proc/{pid}/fd").iterdir()))
    except (FileNotFoundError, ProcessLookupError):
        return {}
    lines = dict(line.split(":", 1) for line in status.splitlines() if ":" in line)
    return {
        "kib": int(lines.get("VmRSS", "0 kB").split()[0]),
        "threads": int(lines["Threads"]),
        "files": files,
    }


def _files(folder: Path) -> tuple[int, int]:
    """Number and bytes of the files below a folder, which may change meanwhile."""
    count = size = 0
    for path, _, names in os.walk(folder):
        for name in names:
            try:
                size += Path(path, name).lstat().st_size
            except FileNotFoundError:
                continue
            count += 1
    return count, size


def _options(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m integration.soak", description=__doc__)
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--rate", type=int, default=2_000, help="orders a second")
    parser.add_argument("--pause", type=float, default=8.0, help="seconds between kills, about")
    parser.add_argument(
        "--only", action="append", choices=TARGETS, help="kill only this, to see what others gather"
    )
    parser.add_argument("--seed", type=int, default=1, help="of the orders and the kills")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
