"""Provides a job under attack, with constant input, a committed reader and a verdict at any time.

Between two attacks, `judge_so_far` asks the independent checker whether the visible output is a
prefix of the expected output. So a wrong record is found in the cell that caused it. After the job
has read all input, `judge_at_the_end` has the checker compare everything. It also compares the
records that the reader saw with the final output. This module does not decide what is right.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from decimal import Decimal
from pathlib import Path
from typing import Any

from confluent_kafka import Producer

from integration.demo import checker
from integration.faults.kill_points.killed_runs import JUDGED, Job, Run, orders
from integration.support.watching import CommittedOutput

BURST_S = 0.05
LOOK_S = 0.1
"""Seconds between two reads of the journal, whose entries stay for some seconds."""
FLUSH_S = 30.0


class WrongError(Exception):
    """The output is wrong, or an expected event did not happen."""


class OrderProducer:
    """A feed that writes orders at a steady rate, in a separate thread, and remembers them."""

    def __init__(self, bootstrap: str, topic: str, *, seed: int, rate: int) -> None:
        self._topic, self._rate = topic, rate
        self._orders = orders(seed)
        self._written: list[checker.Record] = []
        self._refused: list[object] = []
        self._over = threading.Event()
        self._producer = Producer(
            {
                "bootstrap.servers": bootstrap,
                "enable.idempotence": True,
                "partitioner": "murmur2_random",
                "linger.ms": 5,
                "log_level": 0,
                "on_delivery": self._delivered,
            }
        )
        self._thread = threading.Thread(target=self._write, name="feed", daemon=True)
        self._thread.start()

    def written(self) -> list[checker.Record]:
        """Return all orders so far, in their order.

        Their offsets are as in a single partition. The topic has its own partitions, which the
        checker reads at the end.
        """
        return list(self._written)

    def end(self) -> None:
        """Stop the feed. Raise WrongError if an order could not be written."""
        self._over.set()
        self._thread.join()
        left = self._producer.flush(FLUSH_S)
        if left or self._refused:
            raise WrongError(f"{left} orders were not sent; refused: {self._refused[:1]}")

    def _delivered(self, error: object, _record: object) -> None:
        if error is not None:
            self._refused.append(error)

    def _write(self) -> None:
        begun = time.monotonic()
        while not self._over.wait(BURST_S):
            due = int((time.monotonic() - begun) * self._rate)
            while len(self._written) < due:
                key, value = next(self._orders)
                # The order is remembered first, because the visible output must never be ahead of
                # the known input.
                self._written.append(checker.Record(0, len(self._written), key, value))
                self._producer.produce(self._topic, value, key)
            self._producer.poll(0)


class Subject:
    """A job, its input, and the readers of its output."""

    def __init__(self, job: Job, feed: OrderProducer, outputs: dict[str, CommittedOutput]) -> None:
        self.job, self.feed, self.outputs = job, feed, outputs
        self.begun = False

    @classmethod
    @contextmanager
    def made(
        cls, bootstrap: str, folder: Path, pipeline: str, *, seed: int, rate: int
    ) -> Iterator[Subject]:
        """Make a job with its own topics. It does not run yet."""
        job = Job.make(bootstrap, folder, pipeline)
        with ExitStack() as open_:
            outputs = {
                sink: open_.enter_context(CommittedOutput(bootstrap, job.topics[sink], keep=True))
                for sink in job.sinks
            }
            feed = OrderProducer(bootstrap, job.topics["orders"], seed=seed, rate=rate)
            open_.callback(feed._over.set)
            open_.enter_context(seen_whole(job))
            yield cls(job, feed, outputs)

    @contextmanager
    def running(self, *options: str, **keywords: Any) -> Iterator[Run]:
        """Start the command once more. It continues where it ended."""
        restore = ("--restore", "latest") if self.begun else ()
        self.begun = True
        with self.job.started(*options, *restore, **keywords) as run:
            yield run

    def first_output(self, since_ms: int, timeout_s: float) -> int | None:
        """Return the time at which the first record written at or after `since_ms` became visible.

        Both times are milliseconds since the epoch. Return None if no such record comes in time.
        """
        output = next(iter(self.outputs.values()))
        return output.first_of(since_ms, timeout_s)

    def judge_so_far(self) -> None:
        """Judge the visible output. Raise WrongError if a committed reader has seen a record that
        is not expected, or records in another order.
        """
        for sink, output in self.outputs.items():
            seen = [checker.Record(*record) for record in output.kept()]
            verdict = checker.judge(
                self.feed.written(),
                seen,
                JUDGED[sink].get("minimum", Decimal(0)),
                field=JUDGED[sink]["field"],
                complete=False,
            )
            if not verdict.exact:
                raise WrongError(f"{sink}: {verdict}")

    def judge_at_the_end(self, timeout_s: float) -> None:
        """End the input, let the job read all of it, and judge. Raise WrongError if it is wrong."""
        self.feed.end()
        with self.running("--bounded") as run:
            code = run.wait(timeout_s)
            if code != 0:
                raise WrongError(f"the last run ended with exit code {code}: {run.story()}")
        verdict = self.job.compare()
        if not verdict.exact:
            raise WrongError(str(verdict))
        for sink, output in self.outputs.items():
            end = checker.read_committed(self.job.bootstrap, self.job.topics[sink])
            if changed := output.vanished_records(end):
                raise WrongError("; ".join(changed))
        if left := self.job.open_transactions():
            raise WrongError(f"transactions are left open: {', '.join(left)}")
        self._check_journal()

    def _check_journal(self) -> None:
        if (wrong := wrong_in_journal(self.job.journal())) is not None:
            raise WrongError(wrong)


@contextmanager
def seen_whole(job: Job) -> Iterator[None]:
    """Read the journal constantly, because a truncated entry can no longer be read."""
    over = threading.Event()

    def look() -> None:
        while not over.wait(LOOK_S):
            job.journal()

    thread = threading.Thread(target=look, name="journal", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def wrong_in_journal(entries: Sequence[Mapping[str, Any]]) -> str | None:
    """Return the fault of a journal of which every entry was seen, or None.

    A fault is an entry of another attempt than that of the newest claim before it, or a number
    without an entry.
    """
    owner = 0
    for number, entry in enumerate(entries, 1):
        if entry["number"] != number:
            return f"entry {number} of the journal was never seen"
        if entry["kind"] == "claim":
            owner = number
        elif entry.get("attempt", owner) != owner:
            return f"a fenced attempt wrote into the journal: {entry}"
    return None
