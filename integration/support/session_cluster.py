"""A session cluster under test: its servers are killed and restarted, and its job must be exact.

`SessionCluster` is the interface that a scenario needs, wherever the cluster runs. `Processes`
starts the servers as processes of this machine. Each TaskManager has its own loopback address, as
if it ran on its own host. `composed.py` runs the cluster in containers. The scenario is
`exact_through_kills`: the order totals run, servers are killed with SIGKILL and started again, and
the independent checker compares every total. The scenario uses only commands that users have.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Protocol, Self

import psutil

from integration.demo.checker import check
from integration.support.brokers import create_topic
from integration.support.running import (
    PIPELINE,
    ROOT,
    GaveUpError,
    Report,
    TooLateError,
    await_gone,
    owned,
)
from tidegate.drivers.kafka.broker_config import choose_ports
from tidegate.drivers.kafka.embedded import EmbeddedKafka

JOB: Final = "order-totals"
PARTITIONS = 4
INTERVAL = "1 s"
ENDLESS: Final = str(10**9)
"""A number of orders that the producer never reaches before a test ends it."""
POLL_S = 0.3
TIMEOUT_S = 120.0
"""A limit for one recovery on a busy machine, in seconds. It is not a measured value."""
TIDEGATE: Final = str(Path(sys.executable).with_name("tidegate"))


class SessionCluster(Protocol):
    """Brokers, a JobManager and two TaskManagers, each with a name."""

    bootstrap: str
    """Addresses of the brokers, as the current process reaches them."""
    jobmanager: str
    """Address of the JobManager, HOST:PORT, as the current process reaches it."""

    def begin(self, rate: int) -> None:
        """Make the topics, submit the order totals, and write `rate` orders per second."""
        ...

    def kill(self, name: str) -> None:
        """Kill `jobmanager`, `taskmanager1`, `taskmanager2` or a broker (`kafka1`) with SIGKILL."""
        ...

    def start_again(self, name: str) -> None:
        """Start a killed server again, as its supervisor would."""
        ...

    def end_orders(self) -> None:
        """Stop writing orders. Raise GaveUpError if the producer ended before."""
        ...

    def tail(self) -> str:
        """Return the last lines of the servers' logs."""
        ...


def tidegate(
    *words: str, folder: Path | None = None, timeout_s: float = 60.0
) -> subprocess.CompletedProcess[str]:
    """Run a `tidegate` command to its end."""
    return subprocess.run(
        [TIDEGATE, *words],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": f"{ROOT / 'framework'}:{ROOT}"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
    )


def exact_through_kills(
    cluster: SessionCluster, kills: Sequence[str], *, rate: int
) -> dict[str, float]:
    """Kill each of these servers in turn, while a producer writes orders all the time.

    Returns, by server, the seconds from the kill to the first checkpoint that began after it.

    Raises GaveUpError if the job does not recover, and AssertionError if the output is not exact.
    """
    took_s: dict[str, float] = {}
    cluster.begin(rate)
    before = wait_for(cluster, "first checkpoint", has_checkpoint)
    for name in kills:
        killed_s = time.monotonic()
        cluster.kill(name)
        cluster.start_again(name)
        before = wait_for(cluster, f"checkpoint after {name} was killed", _after(name, before))
        took_s[name] = time.monotonic() - killed_s
        # The next kill happens only when the cluster has recovered.
        before = wait_for(cluster, "checkpoint after that", _later(before))
    cluster.end_orders()
    done_ms = time.time() * 1000
    wait_for(
        cluster,
        "end of what there is to read",
        lambda report: report["lag"] == 0 and report["reported_ms"] > done_ms + 2_000,
    )
    stopped = tidegate("stop", JOB, "--jobmanager", cluster.jobmanager, "--json")
    if stopped.returncode != 0:
        raise GaveUpError(f"the job was not stopped: {stopped.stdout} {stopped.stderr}")
    assert json.loads(stopped.stdout)["state"] == "FINISHED"
    verdict = check(cluster.bootstrap, "orders", JOB)
    assert verdict.exact, verdict
    assert verdict.records_in == verdict.records_out > rate * len(kills), verdict
    return took_s


def has_checkpoint(report: Report) -> bool:
    """Return whether the job runs with all slots and its present attempt has a checkpoint."""
    last = report["last_checkpoint"]
    return (
        report["state"] == "RUNNING"
        and not report["slots_missing"]
        and last is not None
        and last["id"].startswith(f"{report['attempt']}-")
    )


def wait_for(
    cluster: SessionCluster,
    what: str,
    condition: Callable[[Report], bool],
    timeout_s: float = TIMEOUT_S,
) -> Report:
    """Return the first report for which the condition holds.

    Raises TooLateError after the timeout, and GaveUpError if the job has ended.
    """
    end_s = time.monotonic() + timeout_s
    while True:
        asked = tidegate("status", JOB, "--jobmanager", cluster.jobmanager, "--json")
        if asked.returncode == 0:
            report: Report = json.loads(asked.stdout)
            if condition(report):
                return report
            if report["state"] in {"FAILED", "CANCELED", "DEPOSED"}:
                raise GaveUpError(f"no {what}, the job has ended: {asked.stdout}")
        if time.monotonic() > end_s:
            raise TooLateError(
                f"no {what} within {timeout_s:g} s: {asked.stdout or asked.stderr} {cluster.tail()}"
            )
        time.sleep(POLL_S)


def _after(name: str, before: Report) -> Callable[[Report], bool]:
    """Make a condition: the job has a checkpoint that only the cluster after the kill can make."""
    if name.startswith("kafka"):  # the present attempt can survive the death of a broker
        return _later(before)
    return lambda report: report["attempt"] > before["attempt"] and has_checkpoint(report)


def _later(before: Report) -> Callable[[Report], bool]:
    """Make a condition: the job is two checkpoints further, as the first may already be running."""

    def number(report: Report) -> tuple[int, int]:
        attempt, counter = report["last_checkpoint"]["id"].split("-")
        return int(attempt), int(counter)

    attempt, counter = number(before)
    return lambda report: (
        has_checkpoint(report)
        and number(report)
        >= ((attempt, counter + 2) if report["attempt"] == attempt else (attempt + 1, 0))
    )


class Processes:
    """The cluster as processes of this machine. They die with the current process."""

    def __init__(self, folder: Path, *, brokers: int = 1) -> None:
        self._folder = folder
        self._running: dict[str, subprocess.Popen[bytes]] = {}
        ports = [each.client for each in choose_ports(2)]
        self.jobmanager = f"127.0.0.1:{ports[0]}"
        self._kafka = EmbeddedKafka.start(directory=folder / "kafka", nodes=brokers, owned=True)
        self.bootstrap = self._kafka.bootstrap
        # Each TaskManager has its own address, as on its own host, so their slots connect by TCP.
        # Only one of the two has a fixed port.
        self._commands = {
            "jobmanager": ["jobmanager"],
            "taskmanager1": ["taskmanager", "-c", f"taskmanager.port={ports[1]}"],
            "taskmanager2": ["taskmanager"],
        }
        for number in (1, 2):
            host = f"taskmanager.host=127.0.0.{number + 1}"
            self._commands[f"taskmanager{number}"] += ["-c", host]
        (folder / "tidegate.toml").write_text(
            f"""
            [kafka]
            bootstrap_servers = "{self.bootstrap}"
            [jobmanager]
            host = "127.0.0.1"
            port = {ports[0]}
            [checkpoint]
            interval = "{INTERVAL}"
            [job]
            parallelism = 2
            """
        )

    def __enter__(self) -> Self:
        for name in self._commands:
            self.start_again(name)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        below = [pid for process in self._running.values() for pid in _below(process.pid)]
        for process in self._running.values():
            process.send_signal(signal.SIGTERM)
        for process in self._running.values():
            process.wait(TIMEOUT_S)
        self._kafka.stop()
        if left := await_gone(set(below)):
            raise TooLateError(f"processes {sorted(left)} outlived the servers that started them")

    def begin(self, rate: int) -> None:
        for topic in ("orders", JOB):
            create_topic(self.bootstrap, topic, partitions=PARTITIONS)
        done = tidegate("submit", PIPELINE, "--json", folder=self._folder)
        if done.returncode != 0:
            raise GaveUpError(f"the job was not submitted: {done.stderr} {self.tail()}")
        words = ["--bootstrap", self.bootstrap, "--topic", "orders", "--rate", str(rate)]
        command = [sys.executable, "-m", "integration.demo.orders", *words, "--records", ENDLESS]
        log = self._folder / "orders.log"
        self._running["producer"] = owned(command, folder=self._folder, log=log)

    def kill(self, name: str) -> None:
        if name.startswith("kafka"):
            self._kafka.kill(int(name.removeprefix("kafka")) - 1)
            return
        self._running[name].kill()
        assert self._running[name].wait(TIMEOUT_S) == -signal.SIGKILL

    def start_again(self, name: str) -> None:
        if name.startswith("kafka"):
            self._kafka.restart(int(name.removeprefix("kafka")) - 1)
            return
        command = [TIDEGATE, *self._commands[name]]
        log = self._folder / f"{name}.log"
        self._running[name] = owned(command, folder=self._folder, log=log)

    def pid(self, name: str) -> int:
        """Return the process id of a server."""
        return self._running[name].pid

    def end_orders(self) -> None:
        producer = self._running.pop("producer")
        if producer.poll() is not None:
            raise GaveUpError(f"the producer ended by itself, with status {producer.returncode}")
        producer.kill()
        producer.wait(TIMEOUT_S)

    def tail(self) -> str:
        lines = []
        for name in self._commands:
            text = (self._folder / f"{name}.log").read_text(encoding="utf-8", errors="replace")
            lines += [f"{name}: {line}" for line in text.splitlines()[-5:]]
        return "\n".join(lines)


def _below(pid: int) -> list[int]:
    try:
        return [child.pid for child in psutil.Process(pid).children(recursive=True)]
    except psutil.NoSuchProcess:  # it has ended, and its children with it
        return []


Listing = dict[str, Any]
"""The output of `tidegate list --json`."""


def listing(at: str) -> Listing:
    """Return the jobs and TaskManagers of the cluster. Raise RuntimeError if the command fails."""
    done = tidegate("list", "--jobmanager", at, "--json")
    if done.returncode != 0:
        raise RuntimeError(done.stderr)
    found: Listing = json.loads(done.stdout)
    return found
