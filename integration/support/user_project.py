"""A user's working folder for tests of failures: a pipeline, a broker, and `tidegate run` in it.

The tests start the command as users do. They compare its output with golden files, after they have
replaced everything that differs between runs: ports, paths, random names and process ids.
`TIDEGATE_TEST_GOLDEN=write` writes the golden files again.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
from confluent_kafka import Message

from integration.support import brokers
from integration.support.brokers import create_topic, produce, read_all, unique
from integration.support.resource_usage import kind_of
from integration.support.running import (
    ROOT,
    TooLateError,
    alive,
    await_gone,
    in_time,
    journal,
    kill,
)
from tidegate.drivers.kafka import die_with_parent

GOLDEN = Path(__file__).parents[2] / "tests" / "golden" / "messages"
WRITE_GOLDEN = "TIDEGATE_TEST_GOLDEN"
RUN_S_MAX = 120.0
POLL_S = 0.02
WAIT_S = 120.0
"""The limit of most waits. It costs time only where a test fails, so it suits a busy machine."""

_OWNED = [sys.executable, "-I", "-S", die_with_parent.__file__]
"""The start of a command line. A process id and a command follow; the command dies with that
process.
"""

TOTALS = """
from collections.abc import Iterable

import msgspec

from tidegate import Context, Json, KafkaSink, KafkaSource, KeyedProcess, Pipeline, ValueState


class Order(msgspec.Struct, frozen=True):
    customer: str
    amount: int


class Total(msgspec.Struct, frozen=True):
    customer: str
    total: int


class Running(KeyedProcess[str, Order, Total]):
    total = ValueState(int, default=0)

    def process(self, order: Order, ctx: Context[str]) -> Iterable[Total]:
        self.total.value += order.amount
        yield Total(ctx.key, self.total.value)


class Totals(Pipeline, name="{job}"):
    orders = KafkaSource("{orders}", value=Json(Order))
    totals = KafkaSink("{totals}", value=Json(Total), record_key=lambda total: total.customer)

    def define(self) -> None:
        by_customer = self.orders.key_by(lambda order: order.customer)
        by_customer.process(Running(), uid="running").to(self.totals)
"""
"""A small stateful pipeline, with placeholders for its names."""

ONE_CHECKPOINT = {"checkpoint.interval": "1min", "checkpoint.min_pause": "1min"}
"""Settings of a bounded run that takes only its final checkpoint, even on a slow machine. The final
checkpoint does not wait for `min_pause`.
"""


@dataclass(slots=True, kw_only=True)
class Outcome:
    """The exit code, the output and the duration of a command."""

    code: int
    out: str
    err: str
    took_s: float


@dataclass(slots=True)
class Folder:
    """A folder with a pipeline, and its own topics."""

    path: Path
    bootstrap: str
    job: str = field(default_factory=lambda: unique("totals"))
    topics: dict[str, str] = field(default_factory=dict)

    @classmethod
    def make(
        cls,
        path: Path,
        bootstrap: str,
        text: str = TOTALS,
        *,
        topics: Sequence[str] = ("orders", "totals"),
        partitions: int = 1,
    ) -> Folder:
        """Make the topics, and write `job.py` with their names in the text's placeholders."""
        folder = cls(path, bootstrap)
        for name in topics:
            folder.topics[name] = unique(name)
            create_topic(bootstrap, folder.topics[name], partitions=partitions)
        folder.write("job.py", text)
        return folder

    def write(self, name: str, text: str) -> Path:
        """Write a file in the folder. Replace `{job}` and the names of topics in braces."""
        for key, value in {"job": self.job, **self.topics}.items():
            text = text.replace(f"{{{key}}}", value)
        path = self.path / name
        path.write_text(text.lstrip("\n"), encoding="utf-8")
        return path

    def edit(self, name: str, old: str, new: str) -> None:
        """Replace a text in a file, as a user would. Fail if the file does not hold it."""
        path = self.path / name
        text = path.read_text(encoding="utf-8")
        assert old in text, f"{name} does not hold {old!r}"
        path.write_text(text.replace(old, new), encoding="utf-8")

    def orders(self, count: int, *, first: int = 0, topic: str = "orders") -> None:
        """Write orders of three customers, in turn, each of amount 1."""
        self.send(topic, orders_of_three_customers(range(first, first + count)))

    def send_amounts(self, amounts: range) -> None:
        """Write one order of each amount, of seven customers."""
        orders = [(n % 7, b'{"customer": "c%d", "amount": %d}' % (n % 7, n)) for n in amounts]
        self.send("orders", [(b"c%d" % customer, order) for customer, order in orders])

    def send(self, topic: str, records: Sequence[tuple[bytes | None, bytes | None]]) -> None:
        """Write records to one of the topics."""
        produce(self.bootstrap, self.topics[topic], records)

    def read(self, topic: str) -> list[Message]:
        """Read one of the topics to its end with `read_committed`."""
        return read_all(self.bootstrap, self.topics[topic])

    def assert_exact(self, count: int) -> None:
        """Check that each total of the first `count` orders is there once, in order per key."""
        found: dict[str, list[int]] = {}
        for message in self.read("totals"):
            total = json.loads(message.value() or b"")
            found.setdefault(total["customer"], []).append(total["total"])
        due = {f"c{c}": list(range(1, len(range(c, count, 3)) + 1)) for c in range(min(3, count))}
        assert found == due

    def run(
        self,
        *options: str,
        reference: str = "job:Totals",
        config: Mapping[str, str] | None = None,
        environment: Mapping[str, str] | None = None,
        kafka: bool = True,
        prefix: Sequence[str] = (),
    ) -> Outcome:
        """Run a bounded `tidegate run` to its end, and return its outcome."""
        with self.started(
            *options,
            reference=reference,
            config=config,
            environment=environment,
            kafka=kafka,
            prefix=prefix,
        ) as run:
            return run.wait()

    def command(self, *words: str, environment: Mapping[str, str] | None = None) -> Outcome:
        """Run another command of tidegate in the folder to its end, and return its outcome."""
        began_s = time.monotonic()
        done = subprocess.run(
            [str(Path(sys.executable).with_name("tidegate")), *words],
            cwd=self.path,
            env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1", **(environment or {})},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
            timeout=RUN_S_MAX,
        )
        took_s = time.monotonic() - began_s
        return Outcome(code=done.returncode, out=done.stdout, err=done.stderr, took_s=took_s)

    @contextmanager
    def started(
        self,
        *options: str,
        reference: str = "job:Totals",
        config: Mapping[str, str] | None = None,
        environment: Mapping[str, str] | None = None,
        kafka: bool = True,
        bounded: bool = True,
        prefix: Sequence[str] = (),
    ) -> Iterator[Run]:
        """Start `tidegate run`. At the end of the block, kill it if it still runs."""
        settings = {"checkpoint.interval": "300ms", **(config or {})}
        words = [word for key, value in settings.items() for word in ("-c", f"{key}={value}")]
        command = [*prefix, str(Path(sys.executable).with_name("tidegate")), "run", reference]
        command += ["--kafka", self.bootstrap] if kafka else []
        command += ["--bounded"] if bounded else []
        output = Path(tempfile.mkdtemp(prefix="run-", dir=self.path))
        with (output / "out").open("wb") as out, (output / "err").open("wb") as err:
            process = subprocess.Popen(
                [*_OWNED, str(os.getpid()), *command, *words, *options],
                cwd=self.path,
                env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1", **(environment or {})},
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                start_new_session=True,
            )
        run = Run(process, output, time.monotonic())
        try:
            yield run
        finally:
            run.clear()

    def logs(self) -> str:
        """Return the logs of all processes of all runs in this folder."""
        files = sorted((self.path / ".tidegate" / "logs").rglob("*.log"))
        return "\n".join(path.read_text(errors="replace") for path in files)

    def journal(self) -> list[dict[str, Any]]:
        """Return the entries of the job's journal, oldest first."""
        return journal(self.path / ".tidegate" / "checkpoints" / self.job)

    def published(self) -> list[str]:
        """Return the ids of the job's published checkpoints, oldest first.

        On a busy machine there can be some before the final one.
        """
        found = [entry["checkpoint"] for entry in self.journal() if entry["kind"] == "publication"]
        return [f"{attempt}-{counter}" for attempt, counter in found]

    def normalised(self, text: str) -> str:
        """Replace the parts of a text that differ from run to run."""
        code = re.escape(f"{self.path}/.tidegate/state/{self.job}/code/")
        text = re.sub(rf"{code}[0-9a-f]{{64}}", "FOLDER", text)
        text = text.replace(str(self.path), "FOLDER").replace(self.bootstrap, "HOST:PORT")
        text = text.replace(str(ROOT), "PROJECT")
        text = re.sub(r"127\.0\.0\.1:\d+", "HOST:PORT", text)
        text = re.sub(r"\bid [\w-]{22}(?![\w-])", "id TOPIC-ID", text)
        text = re.sub(r"-[0-9a-f]{8}\b", "", text)
        text = re.sub(r"\b[0-9a-f]{16}\b", "JOURNAL", text)
        text = re.sub(r"(JOURNAL\.[\w-]+)\.\d+\.\d+\.\d+", r"\1.ATTEMPT.SUBTASK.SLOT", text)
        return re.sub(r"process \d+", "process PID", text)


@dataclass(slots=True)
class Run:
    """A started `tidegate run`."""

    process: subprocess.Popen[bytes]
    output: Path
    began_s: float
    seen: set[int] = field(default_factory=set)

    def wait(self, timeout_s: float = RUN_S_MAX) -> Outcome:
        """Wait until the run ends by itself, and return its outcome."""
        try:
            code = self.process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            raise TooLateError(f"it does not end\n{self.err}") from None
        took_s = time.monotonic() - self.began_s
        return Outcome(code=code, out=self.out, err=self.err, took_s=took_s)

    def until(self, condition: Callable[[], Any], what: str, timeout_s: float = WAIT_S) -> Any:
        """Wait for a condition, and return its first true value. Fail if the run ends first.

        A condition that reads records compares them. If it stays false, then records may be lost
        or doubled, so the error is not TooLateError, and the test is not run again.
        """
        end_s = time.monotonic() + timeout_s
        before = brokers.readings
        while not (value := condition()):
            if self.process.poll() is not None:
                raise AssertionError(f"it ended before {what}\n{self.err}")
            if time.monotonic() > end_s:
                late = AssertionError if brokers.readings > before else TooLateError
                raise late(f"not {what} within {timeout_s:g} s\n{self.err}")
            time.sleep(POLL_S)
        return value

    def stop(self) -> Outcome:
        """Send SIGINT, as Ctrl-C does, and return the outcome."""
        self.process.send_signal(signal.SIGINT)
        return self.wait()

    def slots(self) -> list[int]:
        """Return the process ids of the run's slots."""
        return self.processes("slot")

    def processes(self, role: str) -> list[int]:
        """Return the ids of the run's processes with a role."""
        return [process.pid for process in self._below() if kind_of(process) == role]

    def kill_slots(self) -> None:
        """Kill every slot with SIGKILL, and wait for the first one if no slot runs yet."""
        self.until(lambda: kill(self.slots()), "a kill of a slot")

    def clear(self) -> None:
        """Kill the command if it still runs, and fail if its processes outlive it."""
        below = {process.pid for process in self._below()}
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        left = await_gone(below)
        for pid in left:
            if alive(pid):
                os.kill(pid, signal.SIGKILL)
        in_time(not left, f"processes {sorted(left)} outlived the run that started them")

    @property
    def err(self) -> str:
        """The text that the command has written to stderr, which users see in the terminal."""
        return (self.output / "err").read_text(errors="replace")

    @property
    def out(self) -> str:
        """The text that the command has written to stdout, for scripts."""
        return (self.output / "out").read_text(errors="replace")

    def _below(self) -> list[psutil.Process]:
        try:
            return psutil.Process(self.process.pid).children(recursive=True)
        except psutil.NoSuchProcess:
            return []


def orders_of_three_customers(numbers: range) -> list[tuple[bytes, bytes]]:
    """Return the keys and values of orders of three customers, in turn, each of amount 1."""
    customers = [f"c{number % 3}" for number in numbers]
    return [(c.encode(), json.dumps({"customer": c, "amount": 1}).encode()) for c in customers]


def paragraph(text: str) -> str:
    """Return the lines of the error: from the last line that begins with the command's name."""
    lines = text.splitlines()
    starts = [number for number, line in enumerate(lines) if line.startswith("tidegate: ")]
    return "\n".join(lines[starts[-1] :]) if starts else text


def assert_golden(name: str, text: str) -> None:
    """Check that the text equals the golden file, or write it with `TIDEGATE_TEST_GOLDEN=write`."""
    path = GOLDEN / f"{name}.txt"
    if os.environ.get(WRITE_GOLDEN) == "write":
        path.parent.mkdir(exist_ok=True)
        path.write_text(text + "\n", encoding="utf-8")
    assert text == path.read_text(encoding="utf-8").rstrip("\n")
