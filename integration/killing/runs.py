"""One run of a job by the command that users have, and what it left in Kafka.

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

from integration import checker
from integration.brokers import create_topic, produce, unique
from integration.killing import command, mains
from integration.killing.traps import Plan, Trap
from tidegate.checkpoint.manifest import Manifest, decode_manifest

ROOT = Path(__file__).parents[2]
CUSTOMERS = 40
PARTITIONS = 4
RUN_S_MAX = 90.0
GONE_S_MAX: Final = 10.0
"""Everything below a command that was killed ends within this time, or outlives it."""

LARGE = 100
"""Above this amount an order is large; most are."""

SOURCES = {"TwoSources": ("orders", "later")}
"""Where it is not `orders` alone."""
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
"""What the checker is told of each sink."""


def orders(seed: int, prefix: str = "c") -> Iterator[tuple[bytes, bytes]]:
    """Key and value of one order after the other, without end; keys begin with the prefix."""
    chance = random.Random(seed)
    for number in itertools.count():
        customer = f"{prefix}{chance.randrange(CUSTOMERS)}"
        order = {
            "order_id": f"{seed}-{number}",
            "customer_id": customer,
            "amount": str(Decimal(chance.randrange(1, 100_000)) / 100),
            "placed_at_ms": number,
        }
        yield customer.encode(), json.dumps(order).encode()


@dataclass(slots=True)
class Job:
    """A job of its own: name, topics, folder, and the pipeline class of `integration.killing.jobs`
    that it runs.
    """

    bootstrap: str
    folder: Path
    pipeline: str
    name: str = ""
    topics: dict[str, str] = field(default_factory=dict)
    """Topic by the attribute name of the source or sink."""
    _entries: dict[str, dict[str, Any]] = field(default_factory=dict)
    _looking: threading.Lock = field(default_factory=threading.Lock)

    @classmethod
    def make(cls, bootstrap: str, folder: Path, pipeline: str) -> Job:
        """Its topics are made; nothing is in them."""
        job = cls(bootstrap, folder, pipeline, name=unique("killed"))
        for connector in (*job.sources, *job.sinks):
            job.topics[connector] = unique(connector)
            create_topic(bootstrap, job.topics[connector], partitions=PARTITIONS)
        folder.joinpath("job.py").write_text(
            f"from integration.killing.jobs import {pipeline}\n\n\n"
            f'class Job({pipeline}, name="{job.name}"):\n'
            f'    """A job with a name of its own."""\n'
        )
        return job

    @property
    def sources(self) -> tuple[str, ...]:
        """Their attribute names."""
        return SOURCES.get(self.pipeline, ("orders",))

    @property
    def sinks(self) -> tuple[str, ...]:
        """Their attribute names."""
        return SINKS[self.pipeline]

    def write(
        self,
        count: int,
        *,
        seed: int,
        to: str = "orders",
        of: Collection[bytes] | None = None,
    ) -> None:
        """Write orders; each has an id that no other has. `of`: only these customers'.

        Each source has customers of its own: what is due for one is then defined.
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
        module: str = "integration.killing.command",
        survives: bool = False,
    ) -> Iterator[Run]:
        """`tidegate run` on this job, killed at the end of the block if it still runs.

        `survives`: slots and JobMasters that are frozen may come back when they were given up.
        """
        plan = Plan.of(self.folder / unique("traps"), traps)
        settings = {
            "kafka.bootstrap": self.bootstrap,
            "checkpoint.interval": "250 ms",
            "checkpoint.interval_during_backlog": "0 ms",  # many checkpoints to strike at
            "cluster.heartbeat_interval": "300 ms",
            "cluster.heartbeat_timeout": "4 s",
            **{f"sources.{key}.topic": self.topics[key] for key in self.sources},
            **{f"sinks.{key}.topic": self.topics[key] for key in self.sinks},
            **(config or {}),
        }
        arguments = ["run", "job:Job", "--json", "-p", str(parallelism), *options]
        for key, value in settings.items():
            arguments += ["-c", f"{key}={value}"]
        surroundings = {
            **os.environ,
            **(environment or {}),
            **plan.to_environment(),
            command.MAINS: json.dumps(dict(run_mains)),
            "PYTHONPATH": os.pathsep.join([str(ROOT / "framework"), str(ROOT)]),
            "PYTHONDONTWRITEBYTECODE": "1",
        }
        if pace is not None:
            surroundings[mains.PACE] = str(pace)
        if survives or any(trap.stops for trap in traps):
            surroundings[mains.SURVIVE] = "1"
        output = plan.folder.with_suffix(".out")
        errors = plan.folder.with_suffix(".err")
        with output.open("wb") as stdout, errors.open("wb") as stderr:
            process = subprocess.Popen(
                [sys.executable, "-P", "-m", module, *arguments],
                cwd=self.folder,
                env=surroundings,
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
        """Start, and wait until it ends by itself with exit code 0 and every trap snapped."""
        with self.started("--bounded", *options, **keywords) as run:
            code = run.wait()
            assert code == 0, f"exit code {code}\n{run.story()}"
            snapped, traps = run.plan.snapped(), run.plan.traps
            assert len(snapped) == len(traps), f"only {snapped} of {traps} snapped\n{run.story()}"
        return run

    # --- what is left in Kafka ------------------------------------------------------------------

    def compare(self) -> Verdict:
        """Output against input, by the independent checker."""
        verdict = Verdict()
        first, *others = (self.topics[source] for source in self.sources)
        for sink in self.sinks:
            output = self.topics[sink]
            verdict.take(
                checker.check(self.bootstrap, first, output, others=others, **JUDGED[sink])
            )
        return verdict

    def assert_exact(self) -> None:
        """Every output once and in order, and nothing in the way of its readers."""
        verdict = self.compare()
        assert verdict.exact, verdict
        assert self.open_transactions() == []

    def is_settled(self) -> bool:
        """Whether all that is due is committed, and no commit is under way."""
        last = (self.journal() or [{}])[-1]
        done = last.get("kind") == "settled" or last.get("transactions") == []
        return done and self.compare().exact

    def open_transactions(self) -> list[str]:
        """Ids of this job that are Ongoing."""
        from tidegate.drivers.kafka.transactions import KafkaTransactionAdmin
        from tidegate.ports.kafka import TransactionState

        log = KafkaTransactionAdmin({"bootstrap.servers": self.bootstrap})
        try:
            listed = log.list(f"tidegate.{self.name}.")
        finally:
            log.close()
        return [id_ for id_, state in listed.items() if state is TransactionState.ONGOING]

    def journal(self) -> list[dict[str, Any]]:
        """The entries of the job's journal that were ever seen, oldest first; each is read once.

        In any thread.
        """
        folder = self.folder / ".tidegate" / "checkpoints" / self.name / "journal"
        with self._looking:
            for path in folder.glob("*.json"):
                if path.name not in self._entries:
                    with suppress(FileNotFoundError):  # it was just trimmed
                        self._entries[path.name] = json.loads(path.read_bytes())["body"]
            return [self._entries[name] for name in sorted(self._entries)]

    def manifest(self) -> Manifest | None:
        """Of the newest publication; None if there is none, or it was just deleted."""
        named = [e["checkpoint"] for e in self.journal() if e["kind"] == "publication"]
        if not named:
            return None
        attempt, counter = named[-1]
        folder = self.folder / ".tidegate" / "checkpoints" / self.name / "manifests"
        path = folder / f"{attempt}-{counter}.json"
        return decode_manifest(path.read_bytes(), str(path)) if path.exists() else None

    def claims(self) -> list[int]:
        """Attempts that were begun."""
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
    """Every process below it that was ever seen."""

    def wait(self, timeout_s: float = RUN_S_MAX) -> int:
        """Until it ends by itself; its exit code."""
        try:
            return self.process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"it does not end\n{self.story()}") from None

    def until(self, condition: Callable[[], Any], what: str, timeout_s: float = 60.0) -> Any:
        """Wait for a condition while the run lives; its first true value."""
        end = time.monotonic() + timeout_s
        while not (value := condition()):
            if self.process.poll() is not None:
                raise AssertionError(f"it ended before {what}\n{self.story()}")
            if time.monotonic() > end:
                raise AssertionError(f"not {what} within {timeout_s:g} s\n{self.story()}")
            time.sleep(0.05)
        return value

    def publications(self) -> int:
        """In the journal so far, of all runs."""
        return sum(entry["kind"] == "publication" for entry in self.job.journal())

    def until_published(self, count: int) -> None:
        """Wait for so many publications from now on."""
        before = self.publications()
        self.until(lambda: self.publications() >= before + count, f"{count} publications")

    def until_snapped(self, number: int) -> None:
        """Wait until this trap of the plan has caught a process."""
        self.until(lambda: self.plan.pid(number), self.plan.traps[number].point)

    def processes(self) -> dict[str, list[psutil.Process]]:
        """What runs below the command, by role: jobmanager, taskmanager, jobmaster, slot."""
        found: dict[str, list[psutil.Process]] = defaultdict(list)
        try:
            below = psutil.Process(self.process.pid).children(recursive=True)
        except psutil.NoSuchProcess:
            return found
        for process in below:
            self.seen.add(process.pid)
            try:
                role = process.cmdline()[-1]
                parent = process.parent()
                if parent is not None and parent.cmdline()[-1:] == ["zygote"]:
                    role = "slot"
            except (psutil.NoSuchProcess, psutil.ZombieProcess, IndexError):
                continue
            found[role].append(process)
        return found

    def reports(self) -> list[dict[str, Any]]:
        """What it has reported."""
        lines = self.output.read_text().splitlines()
        return [json.loads(line) for line in lines if line.endswith("}")]

    def state(self) -> str:
        """Of the job, as last reported; nothing before the first report."""
        return next((said["state"] for said in reversed(self.reports()) if "state" in said), "")

    def kill(self) -> None:
        """SIGKILL the command, and wait until everything below it has ended, too."""
        self.processes()
        self.process.kill()
        self.process.wait()
        end = time.monotonic() + GONE_S_MAX
        while self.orphans():
            if time.monotonic() > end:
                raise AssertionError("processes outlive the command that started them")
            time.sleep(0.02)

    def story(self) -> str:
        """For a failed test: what the processes logged last."""
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
        """End what still runs, and what was stopped."""
        self.processes()
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        for pid in self.plan.snapped():
            if psutil.pid_exists(pid):
                os.kill(pid, signal.SIGKILL)

    def orphans(self) -> list[int]:
        """Processes that were seen below it and live on."""
        return [pid for pid in self.seen if runs(pid)]


def runs(pid: int) -> bool:
    """Whether a process is there and not only waits to be reaped."""
    try:
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


@dataclass(slots=True)
class Verdict:
    """What is wrong with an output, of all sinks."""

    records: int = 0
    missing: int = 0
    twice: int = 0
    other: list[str] = field(default_factory=list)
    """Order, and what was never due."""

    @property
    def exact(self) -> bool:
        """Nothing is wrong, with something at all."""
        return bool(self.records) and not (self.missing or self.twice or self.other)

    def take(self, found: checker.Verdict) -> None:
        """Add what the independent checker says."""
        self.records += found.records_out
        self.missing += found.missing
        self.twice += found.doubled
        if not (found.exact or found.missing or found.doubled):
            self.other += found.first_problems
