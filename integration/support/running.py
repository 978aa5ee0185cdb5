"""Runs `tidegate run` as scripts do: start it, follow its reports, stop it, end its processes.

The demo, the soak and the kill tests use this module. It knows the command line and its JSON lines,
but nothing of the runtime behind them. Every process that is started here dies with its owner, also
when the owner is killed. When the owner ends in order, no process is left.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from tidegate.drivers.kafka import die_with_parent

ROOT = Path(__file__).parents[2]
ENDED_TIMEOUT_S = 30.0
POLL_S = 0.02
PIPELINE = "pipelines.order_totals:OrderTotals"
DONE, STOPPED_WITHOUT_CHECKPOINT = 0, 4
"""Exit codes of the command, as in docs/reference/errors.md."""

Report = dict[str, Any]
"""One JSON line of `tidegate run --json`."""


class GaveUpError(Exception):
    """An expected event did not happen. The message holds the event and the reason."""


class TooLateError(GaveUpError, AssertionError):
    """An expected event did not happen in time, which may be the fault of a busy machine.

    The test may be run once more alone (`integration/support/failures.py`). Never raise this for a
    comparison of records.
    """


def in_time(passed: object, what: object) -> None:
    """Raise TooLateError if a comparison with a time limit is false."""
    if not passed:
        raise TooLateError(str(what))


def owned(
    command: Sequence[str],
    *,
    folder: Path,
    log: Path,
    pipe: bool = False,
    environment: Mapping[str, str] | None = None,
) -> subprocess.Popen[bytes]:
    """Start a process that dies with the current one.

    Its stderr goes to the file `log`, and so does its stdout unless `pipe` is true. `environment`
    is added to the environment of the current process. Call this function from the main thread:
    on Linux, the kernel kills the new process when the thread that started it ends.
    """
    prefix = [sys.executable, "-I", "-S", die_with_parent.__file__, str(os.getpid())]
    with log.open("ab") as output:
        return subprocess.Popen(
            [*(prefix if sys.platform == "linux" else []), *command],
            cwd=folder,
            env={
                **os.environ,
                **(environment or {}),
                "PYTHONPATH": f"{ROOT / 'framework'}:{ROOT}",
            },
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE if pipe else output,
            stderr=output,
            start_new_session=True,  # only the owner gets the SIGINT of a Ctrl-C in the terminal
        )


class TidegateRun:
    """A running `tidegate run --json` in its own working folder. The default pipeline is the order
    totals.
    """

    def __init__(
        self,
        folder: Path,
        bootstrap: str,
        *,
        pipeline: str = PIPELINE,
        options: Sequence[str] = (),
        config: Mapping[str, str] | None = None,
    ) -> None:
        words = [word for key, value in (config or {}).items() for word in ("-c", f"{key}={value}")]
        command = [str(Path(sys.executable).with_name("tidegate")), "run", pipeline, "--json"]
        self.log = folder / "run.log"
        self._process = owned(
            [*command, "--kafka", bootstrap, *options, *words],
            folder=folder,
            log=self.log,
            pipe=True,
        )
        self._changed = threading.Condition()
        self._newest: Report | None = None
        self._pids: set[int] = set()
        self.checkpoints: set[str] = set()
        """Ids of the completed checkpoints in the reports so far."""
        self.attempts: set[int] = set()
        """Numbers of the attempts in the reports so far. They have gaps."""
        self.exits: dict[int, int] = {}
        """Exit statuses by process id, as the parent processes have reported them."""
        self._reader = threading.Thread(target=self._read, name="reports", daemon=True)
        self._reader.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.clear()

    @property
    def pid(self) -> int:
        """The process id of the command itself."""
        return self._process.pid

    @property
    def report(self) -> Report | None:
        """The newest report; None before the first one."""
        with self._changed:
            return self._newest

    def living(self) -> set[int]:
        """Return the processes in the reports that still run."""
        with self._changed:
            self._pids = {pid for pid in self._pids if alive(pid)}
            return set(self._pids)

    def wait_for(
        self, what: str, condition: Callable[[Report], bool], timeout_s: float = 60.0
    ) -> Report:
        """Return the newest report if the condition holds for it; otherwise wait for such a report.

        Raises TooLateError after the timeout, and GaveUpError if the run has ended.
        """
        end_s = time.monotonic() + timeout_s
        with self._changed:
            while True:
                if self._newest is not None and condition(self._newest):
                    return self._newest
                if self._process.poll() is not None:
                    raise GaveUpError(f"the run ended while it waited for {what}: {self.tail()}")
                if time.monotonic() > end_s:
                    raise TooLateError(f"no {what} within {timeout_s:g} s: {self.tail()}")
                self._changed.wait(0.2)

    def await_exit(self, pid: int, timeout_s: float = ENDED_TIMEOUT_S) -> int:
        """Wait until a process's parent reports its end, and return its exit status.

        Raises TooLateError after the timeout.
        """
        end_s = time.monotonic() + timeout_s
        with self._changed:
            while pid not in self.exits:
                if time.monotonic() > end_s:
                    raise TooLateError(f"nobody has told of the end of process {pid}")
                self._changed.wait(0.2)
            return self.exits[pid]

    def stop(self, timeout_s: float = 60.0) -> int:
        """Send SIGINT, as Ctrl-C does, and return the exit code. The job takes a final checkpoint.

        Raises TooLateError if the run does not end before the timeout.
        """
        self._process.send_signal(signal.SIGINT)
        try:
            return self._process.wait(timeout_s)
        except subprocess.TimeoutExpired as error:
            message = f"the run did not end within {timeout_s:g} s: {self.tail()}"
            raise TooLateError(message) from error

    def clear(self) -> None:
        """Kill the command if it still runs, and check that no process of the run is left.

        Raises TooLateError if processes outlived the command. They are killed first.
        """
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait()
        self._reader.join(ENDED_TIMEOUT_S)
        if self._process.stdout is not None:
            self._process.stdout.close()
        left = await_gone(self._pids)
        for pid in left:
            os.kill(pid, signal.SIGKILL)
        if left:
            raise TooLateError(f"processes {sorted(left)} outlived the run that started them")

    def tail(self, lines: int = 5) -> str:
        """Return the last lines that the command has written to stderr."""
        text = self.log.read_text(encoding="utf-8", errors="replace")
        return " | ".join(text.splitlines()[-lines:])

    def _read(self) -> None:
        """Read the JSON lines of the command. This runs in a thread."""
        for line in self._process.stdout or ():
            said: Report = json.loads(line)
            with self._changed:
                if said["event"] == "jobmanager_exited":
                    self.exits[said["pid"]] = said["status"]
                else:
                    self._newest = said
                    self._note(said)
                self._changed.notify_all()

    def _note(self, report: Report) -> None:
        self.attempts |= {report["attempt"]} - {0}
        self._pids |= {report["jobmanager_pid"], report["jobmaster_pid"]} - {0}
        for slot in report["slots"]:
            self._pids |= {slot["pid"], slot["task_manager_pid"]}
        for ended in report["process_exits"]:
            self.exits[ended["pid"]] = ended["status"]
            self._pids.discard(ended["pid"])
        if report["last_checkpoint"] is not None:
            self.checkpoints.add(report["last_checkpoint"]["id"])


def runs_with_checkpoint(report: Report) -> bool:
    """Return whether the job runs with all slots and its present attempt has a checkpoint."""
    last = report["last_checkpoint"]
    return (
        report["state"] == "RUNNING"
        and not report["slots_missing"]
        and last is not None
        and last["id"].split("-")[0] == str(report["attempt"])
    )


def journal(job_folder: Path) -> list[dict[str, Any]]:
    """Return the entries of a job's journal, oldest first, from its checkpoint folder."""
    found = []
    for path in sorted((job_folder / "journal").glob("*.json")):
        with suppress(FileNotFoundError):  # a truncation has just deleted the entry
            found.append(json.loads(path.read_bytes())["body"])
    return found


def code_of_stop(entries: Sequence[Mapping[str, Any]]) -> int:
    """Compute the expected exit code of a command whose unbounded job was stopped.

    The code depends on whether the journal holds a final checkpoint of the last submission. A
    JobMaster that receives the stop during its recovery takes no final checkpoint.
    """
    (*_, submission) = [entry["submission"] for entry in entries if entry["kind"] == "claim"]
    final = any(
        entry["kind"] == "publication" and entry["final"] and entry["submission"] == submission
        for entry in entries
    )
    return DONE if final else STOPPED_WITHOUT_CHECKPOINT


def alive(pid: int) -> bool:
    """Return whether the process runs. A zombie does not run."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return False
    return stat.rpartition(")")[2].split()[0] not in "ZX"


def kill(pids: Iterable[int]) -> list[int]:
    """Send SIGKILL to each process that still runs, and return the ids of these.

    An attempt that loses one slot ends its others too, so some may have ended already.
    """
    killed = []
    for pid in filter(alive, pids):
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
            killed.append(pid)
    return killed


def await_gone(pids: set[int], timeout_s: float = 10.0) -> set[int]:
    """Wait until these processes have ended. Return those that still run after the timeout."""
    end_s = time.monotonic() + timeout_s
    left = {pid for pid in pids if alive(pid)}
    while left and time.monotonic() < end_s:
        time.sleep(POLL_S)
        left = {pid for pid in left if alive(pid)}
    return left
