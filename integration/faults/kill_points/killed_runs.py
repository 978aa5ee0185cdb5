"""Starts a run of a job with the command of users, and compares the output that it left in Kafka.

The independent checker judges every sink.
"""

from __future__ import annotations

import itertools
import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from typing import Any, Final

import psutil

from integration.demo import checker
from integration.faults.kill_points import command, mains
from integration.faults.kill_points.kill_points import Plan, Trap
from integration.support import brokers
from integration.support.brokers import create_topic, produce, unique
from integration.support.resource_usage import kind_of
from integration.support.running import TooLateError
from integration.support.transactions import open_transactions
from tidegate.checkpoint.manifest import Manifest, decode_manifest

ROOT = Path(__file__).parents[3]
CUSTOMERS = 40
PARTITIONS = 4
RUN_S_MAX = 120.0
GONE_S_MAX: Final = 10.0
"""Seconds within which all processes below a killed command exit. A process that lives longer
outlives the command, which is an error.
"""

LARGE = 100
"""Amount above which an order is large. Most orders are large."""

SOURCES = {"TwoSources": ("orders", "later")}
"""The sources of the pipelines whose only source is not `orders`."""
SINKS = {
    "Totals": ("totals",),
    "LargeOrders": ("large",),
    "TwoSinks": ("totals", "large"),
    "TwoSources": ("totals",),
    "ThreeLevels": ("totals",),
}
JUDGED: dict[str, dict[str, Any]] = {
    "totals": {"field": checker.TOTAL},
    "large": {"field": checker.ORDER_ID, "minimum": Decimal(LARGE)},
}
"""The arguments with which the checker judges each sink."""


def orders(seed: int, prefix: str = "c") -> Iterator[tuple[bytes, bytes]]:
    """Yield the key and value of one order after the other, without end. Keys begin with the
    prefix.
    """
    rng = random.Random(seed)
    for number in itertools.count():
        customer = f"{prefix}{rng.randrange(CUSTOMERS)}"
        order = {
            "order_id": f"{seed}-{number}",
            "customer_id": customer,
            "amount": str(Decimal(rng.randrange(1, 100_000)) / 100),
            "placed_at_ms": number,
        }
        yield customer.encode(), json.dumps(order).encode()


@dataclass(slots=True)
class Job:
    """A job with its own name, topics and folder, and the pipeline class of
    `integration.faults.kill_points.jobs` that it runs.
    """

    bootstrap: str
    folder: Path
    pipeline: str
    name: str = ""
    topics: dict[str, str] = field(default_factory=dict)
    """Topics by the attribute name of the source or sink."""
    _entries: dict[str, dict[str, Any]] = field(default_factory=dict)
    _looking: threading.Lock = field(default_factory=threading.Lock)

    @classmethod
    def make(cls, bootstrap: str, folder: Path, pipeline: str) -> Job:
        """Return a job with new, empty topics."""
        job = cls(bootstrap, folder, pipeline, name=unique("killed"))
        for connector in (*job.sources, *job.sinks):
            job.topics[connector] = unique(connector)
            create_topic(bootstrap, job.topics[connector], partitions=PARTITIONS)
        folder.joinpath("job.py").write_text(
            f"from integration.faults.kill_points.jobs import {pipeline}\n\n\n"
            f'class Job({pipeline}, name="{job.name}"):\n'
            f'    """A job with its own name."""\n'
        )
        return job

    @property
    def sources(self) -> tuple[str, ...]:
        """Attribute names of the job's sources."""
        return SOURCES.get(self.pipeline, ("orders",))

    @property
    def sinks(self) -> tuple[str, ...]:
        """Attribute names of the job's sinks."""
        return SINKS[self.pipeline]

    def write(
        self,
        count: int,
        *,
        seed: int,
        to: str = "orders",
        of: Collection[bytes] | None = None,
    ) -> None:
        """Write orders with unique ids. `of` limits them to these customers.

        Each source has its own customers, so that the expected output of each customer is defined.
        """
        made = orders(seed, "c" if to == "orders" else f"{to}-")
        chosen = (each for each in made if of is None or each[0] in of)
        produce(self.bootstrap, self.topics[to], list(itertools.islice(chosen, count)))

    @contextmanager
    def started(
        self,
        *options: str,
        traps: Sequence[Trap] = (),
        pace: int | None = None,
        run_mains: Mapping[str, str] = mains.MAINS,
        config: Mapping[str, str] | None = None,
        parallelism: int = 2,
        environment: Mapping[str, str] | None = None,
        module: str = "integration.faults.kill_points.command",
        survives: bool = False,
    ) -> Iterator[Run]:
        """Start `tidegate run` on this job, and kill it at the end of the block if it still runs.

        With `survives`, frozen processes may come back after the cluster has declared them lost.
        """
        plan = Plan.of(self.folder / unique("traps"), traps)
        settings = {
            "kafka.bootstrap_servers": self.bootstrap,
            "checkpoint.interval": "250 ms",
            "checkpoint.interval_during_backlog": "0 ms",  # many checkpoints to interrupt
            "cluster.heartbeat_interval": "300 ms",
            "cluster.heartbeat_timeout": "4 s",
            **{f"sources.{key}.topic": self.topics[key] for key in self.sources},
            **{f"sinks.{key}.topic": self.topics[key] for key in self.sinks},
            **(config or {}),
        }
        arguments = ["run", "job:Job", "--json", "-p", str(parallelism), *options]
        for key, value in settings.items():
            arguments += ["-c", f"{key}={value}"]
        variables = {
            **os.environ,
            **(environment or {}),
            **plan.to_environment(),
            command.MAINS: json.dumps(dict(run_mains)),
            "PYTHONPATH": os.pathsep.join([str(ROOT / "framework"), str(ROOT)]),
            "PYTHONDONTWRITEBYTECODE": "1",
        }
        if pace is not None:
            variables[mains.PACE] = str(pace)
        if survives or any(trap.stops for trap in traps):
            variables[mains.SURVIVE] = "1"
        output = plan.folder.with_suffix(".out")
        errors = plan.folder.with_suffix(".err")
        with output.open("wb") as stdout, errors.open("wb") as stderr:
            process = subprocess.Popen(
                [sys.executable, "-P", "-m", module, *arguments],
                cwd=self.folder,
                env=variables,
                stdin=subprocess.DEVNULL,
                stdout=stdout,
                stderr=stderr,
            )
        run = Run(self, process, plan, output, errors)
        try:
            yield run
        finally:
            run.clean_up()

    def run(self, *options: str, **keywords: Any) -> Run:
        """Start the job, and wait until it exits by itself with code 0 and every trap has
        snapped.
        """
        with self.started("--bounded", *options, **keywords) as run:
            code = run.wait()
            assert code == 0, f"The job ended with exit code {code}.\n{run.story()}"
            snapped, traps = run.plan.snapped(), run.plan.traps
            assert len(snapped) == len(traps), f"Only {snapped} of {traps} snapped.\n{run.story()}"
        return run

    # --- what is left in Kafka ------------------------------------------------------------------

    def compare(self) -> Verdict:
        """Compare the output with the input by the independent checker."""
        verdict = Verdict()
        first, *others = (self.topics[source] for source in self.sources)
        for sink in self.sinks:
            output = self.topics[sink]
            verdict.take(
                checker.check(self.bootstrap, first, output, others=others, **JUDGED[sink])
            )
        return verdict

    def assert_exact(self) -> None:
        """Assert that every output is there once and in order, and that no open transaction blocks
        its readers.
        """
        verdict = self.compare()
        assert verdict.exact, verdict
        assert self.open_transactions() == []

    def is_settled(self) -> bool:
        """Return whether all expected output is committed, and no commit is in progress."""
        return self.has_committed() and self.compare().exact

    def has_committed(self) -> bool:
        """Return whether the newest publication is committed, and the journal says so."""
        last = (self.journal() or [{}])[-1]
        return last.get("kind") == "settled" or last.get("transactions") == []

    def open_transactions(self) -> list[str]:
        """Return the transactional ids of this job whose transaction is Ongoing."""
        return open_transactions(self.bootstrap, self.name)

    def journal(self) -> list[dict[str, Any]]:
        """Return all entries of the job's journal that this object has seen, oldest first. Each
        entry is read once, so entries that were truncated later are kept.

        The method may be called in any thread.
        """
        folder = self.folder / ".tidegate" / "checkpoints" / self.name / "journal"
        with self._looking:
            for path in folder.glob("*.json"):
                if path.name not in self._entries:
                    with suppress(FileNotFoundError):  # the entry was just truncated
                        self._entries[path.name] = json.loads(path.read_bytes())["body"]
            return [self._entries[name] for name in sorted(self._entries)]

    def manifest(self) -> Manifest | None:
        """Return the manifest of the newest publication. None if no publication exists, or its
        manifest was just deleted.
        """
        named = [e["checkpoint"] for e in self.journal() if e["kind"] == "publication"]
        if not named:
            return None
        attempt, counter = named[-1]
        folder = self.folder / ".tidegate" / "checkpoints" / self.name / "manifests"
        path = folder / f"{attempt}-{counter}.json"
        return decode_manifest(path.read_bytes(), str(path)) if path.exists() else None

    def claims(self) -> list[int]:
        """Return the numbers of the attempts that have claimed the job."""
        return [entry["number"] for entry in self.journal() if entry["kind"] == "claim"]


@dataclass(slots=True)
class Run:
    """A run that was started."""

    job: Job
    process: subprocess.Popen[bytes]
    plan: Plan
    output: Path
    errors: Path
    seen: set[int] = field(default_factory=set)
    """Pids of all processes below the command that were seen at any time."""

    def wait(self, timeout_s: float = RUN_S_MAX) -> int:
        """Wait until the command exits by itself, and return its exit code."""
        try:
            return self.process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            raise TooLateError(f"The command did not end.\n{self.story()}") from None

    def until(self, condition: Callable[[], Any], what: str, timeout_s: float = 60.0) -> Any:
        """Wait for a condition while the command runs, and return its first true value.

        A condition that reads records compares them: its failure is final (`Run.until`).
        """
        end = time.monotonic() + timeout_s
        before = brokers.readings
        while not (value := condition()):
            if self.process.poll() is not None:
                raise AssertionError(f"The command ended before this: {what}.\n{self.story()}")
            if time.monotonic() > end:
                late = AssertionError if brokers.readings > before else TooLateError
                raise late(f"This did not happen within {timeout_s:g} s: {what}.\n{self.story()}")
            time.sleep(0.05)
        return value

    def publications(self) -> int:
        """Return the number of publications in the journal so far, of all runs."""
        return sum(entry["kind"] == "publication" for entry in self.job.journal())

    def until_published(self, count: int) -> None:
        """Wait for this number of further publications."""
        before = self.publications()
        self.until(lambda: self.publications() >= before + count, f"{count} further publications")

    def until_snapped(self, number: int) -> None:
        """Wait until this trap of the plan has caught a process."""
        self.until(lambda: self.plan.pid(number), self.plan.traps[number].point)

    def processes(self) -> dict[str, list[psutil.Process]]:
        """Return the processes below the command by role: jobmanager, taskmanager, jobmaster,
        slot.
        """
        found: dict[str, list[psutil.Process]] = defaultdict(list)
        try:
            below = psutil.Process(self.process.pid).children(recursive=True)
        except psutil.NoSuchProcess:
            return found
        for process in below:
            self.seen.add(process.pid)
            if (role := kind_of(process)) is not None:
                found[role].append(process)
        return found

    def reports(self) -> list[dict[str, Any]]:
        """Return the reports that the command has printed."""
        lines = self.output.read_text().splitlines()
        return [json.loads(line) for line in lines if line.endswith("}")]

    def state(self) -> str:
        """Return the last reported state of the job. It is empty before the first report."""
        return next((said["state"] for said in reversed(self.reports()) if "state" in said), "")

    def kill(self) -> None:
        """Send SIGKILL to the command, and wait until all processes below it have ended."""
        self.processes()
        self.process.kill()
        self.process.wait()
        end = time.monotonic() + GONE_S_MAX
        while self.orphans():
            if time.monotonic() > end:
                raise AssertionError("Processes outlive the command that started them.")
            time.sleep(0.02)

    def story(self) -> str:
        """Return the last log lines of the processes, for the message of a failed test."""
        told = [f"stderr: {self.errors.read_text()[-2000:]}"]
        reports = self.reports()
        told += [f"last report: {reports[-1]}"] if reports else []
        told += [f"snapped: {self.plan.snapped()} of {self.plan.traps}"]
        kinds = [f"{e['number']} {e['kind']} {e.get('attempt', '')}" for e in self.job.journal()]
        told += [f"journal: {'; '.join(kinds[-30:])}"]
        for path in sorted((self.job.folder / ".tidegate" / "logs").rglob("*.log")):
            told.append(f"--- {path.name}\n{path.read_text()[-3000:]}")
        return "\n".join(told)

    def clean_up(self) -> None:
        """End the command and the processes that traps have caught, if they still run."""
        self.processes()
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        for pid in self.plan.snapped():
            if psutil.pid_exists(pid):
                os.kill(pid, signal.SIGKILL)

    def orphans(self) -> list[int]:
        """Return the pids of the processes that were seen below the command and still run."""
        return [pid for pid in self.seen if runs(pid)]


def runs(pid: int) -> bool:
    """Return whether a process exists and does not only wait for its parent to reap it."""
    try:
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


@dataclass(slots=True)
class Verdict:
    """The faults of an output, summed over all sinks."""

    records: int = 0
    missing: int = 0
    twice: int = 0
    other: list[str] = field(default_factory=list)
    """Problems of order, and values that were never expected."""

    @property
    def exact(self) -> bool:
        """Whether the output has records, and no faults."""
        return bool(self.records) and not (self.missing or self.twice or self.other)

    def take(self, found: checker.Verdict) -> None:
        """Add the result of the independent checker for one sink."""
        self.records += found.records_out
        self.missing += found.missing
        self.twice += found.doubled
        if not (found.exact or found.missing or found.doubled):
            self.other += found.first_problems
