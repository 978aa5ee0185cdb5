"""Provides a job that runs while it is attacked, with constant input and committed readers.

`LiveJob` starts the job with the command of users, feeds it orders at a steady rate, and reads its
sinks with `read_committed` from the first record on. `attacked` gets the time at which a fault
began (or ended, if it lasts). It waits until every sink shows output of records that were written
after that time. `finish` ends the job in order, and says whether the output is exact. The
independent checker compares the output with the input. The records that readers saw during the run
are compared with the final output.
"""

from __future__ import annotations

import json
import random
import signal
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from decimal import Decimal
from pathlib import Path
from typing import Any, Final, Self

from confluent_kafka import Consumer, Producer, TopicPartition

from integration.demo import checker
from integration.faults.kill_matrix.mains import MAINS
from integration.faults.kill_matrix.scenarios import EXACT
from integration.faults.kill_points import killed_runs as runs
from integration.faults.kill_points.kill_points import Trap
from integration.faults.kill_points.killed_runs import CUSTOMERS, LARGE, Job, Run, Verdict

RATE: Final = 100
"""Orders per second. At this rate every partition has some orders in each checkpoint."""
RECOVERY_S_MAX: Final = 300.0
"""Seconds within which a job must recover at all. The actual recovery time is measured and
recorded.
"""
QUIET_S: Final = 5.0
"""Seconds without output after which all output has arrived. Many checkpoints fit into this
time.
"""
LAG_MS_MAX: Final = 2_000
"""Longest age of the lag in a report, in milliseconds."""
COMMAND: Final = "integration.faults.kill_matrix.command"
QUICK_RESTARTS: Final = {
    "restart.strategy": "fixed_delay",
    "restart.delay": "100 ms",
    "checkpoint.timeout": "10 s",
    "checkpoint.tolerated_outage": "60 s",
}
"""Settings for many faults in sequence. The pauses of the defaults would only add waiting time."""


class OrderProducer:
    """A feeder that writes orders in a thread until it is stopped."""

    def __init__(self, bootstrap: str, topic: str, seed: int) -> None:
        self._producer = Producer(
            {
                "bootstrap.servers": bootstrap,
                "enable.idempotence": True,
                "partitioner": "murmur2_random",
                "linger.ms": 5,
                "message.timeout.ms": 600_000,  # longer than any fault that the job must survive
                "reconnect.backoff.max.ms": 1000,
                "delivery.report.only.error": True,
                "on_delivery": lambda error, _: self._refused.append(error),
                "log_level": 0,
            }
        )
        self._refused: list[object] = []
        self._topic, self._seed = topic, seed
        self.orders = self.large = 0
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._produce, name="feeder", daemon=True)
        self._thread.start()

    def _produce(self) -> None:
        rng = random.Random(self._seed)
        begun_s = time.monotonic()
        while not self._ending.wait(max(0.0, begun_s + self.orders / RATE - time.monotonic())):
            customer, amount = f"c{rng.randrange(CUSTOMERS)}", rng.randrange(1, 100_000)
            order = {
                "order_id": f"{self._seed}-{self.orders}",
                "customer_id": customer,
                "amount": str(Decimal(amount) / 100),
                "placed_at_ms": self.orders,
            }
            self._producer.produce(self._topic, json.dumps(order).encode(), customer.encode())
            self._producer.poll(0)
            self.orders += 1
            self.large += Decimal(amount) / 100 > LARGE

    def stop(self) -> None:
        """Stop writing, and wait until all orders are acknowledged."""
        self._ending.set()
        self._thread.join()
        left = self._producer.flush(RECOVERY_S_MAX)
        if left or self._refused:
            message = (
                f"{left} orders were not sent, and {len(self._refused)} were refused:"
                f" {self._refused[:1]}"
            )
            raise RuntimeError(message)


class Watcher:
    """A `read_committed` reader of a topic from its beginning, in a thread, which keeps the
    records.
    """

    def __init__(self, bootstrap: str, topic: str, partitions: int) -> None:
        self.topic = topic
        self.seen: list[checker.Record] = []
        self.failure = ""
        self._newest_ms = 0
        self._changed = threading.Condition()
        self._consumer = Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": "watcher",  # the reader never joins the group
                "enable.auto.commit": False,
                "auto.offset.reset": "error",
                "isolation.level": "read_committed",
                "fetch.wait.max.ms": 50,
                "reconnect.backoff.max.ms": 1000,
                "log_level": 0,
            }
        )
        self._consumer.assign([TopicPartition(topic, number, 0) for number in range(partitions)])
        self._ending = False
        self._thread = threading.Thread(target=self._watch, name="watcher", daemon=True)
        self._thread.start()

    def _watch(self) -> None:
        while not self._ending:
            for message in self._consumer.consume(1_000, 0.05):
                error = message.error()
                with self._changed:
                    if error is not None:
                        self.failure = str(error)
                    else:
                        at = (message.partition() or 0, message.offset() or 0)
                        self.seen.append(checker.Record(*at, message.key(), message.value()))
                        self._newest_ms = max(self._newest_ms, message.timestamp()[1])
                    self._changed.notify_all()

    def await_newer(self, since_ms: float, end_s: float) -> bool:
        """Return whether a record with this timestamp or a later one was seen in time."""
        return self._await(lambda: self._newest_ms >= since_ms, end_s)

    def await_count(self, count: int, end_s: float) -> bool:
        """Return whether this number of records was seen in time."""
        return self._await(lambda: len(self.seen) >= count, end_s)

    def _await(self, condition: Callable[[], bool], end_s: float) -> bool:
        with self._changed:
            while not condition():
                if self.failure or not self._changed.wait(max(0.0, end_s - time.monotonic())):
                    return False
            return True

    def close(self) -> None:
        """Stop reading."""
        self._ending = True
        self._thread.join()
        self._consumer.close()


class LiveJob:
    """A running job, as a context manager. `finish` ends the job in order."""

    def __init__(
        self,
        bootstrap: str,
        folder: Path,
        pipeline: str,
        *,
        seed: int,
        environment: Mapping[str, str],
        config: Mapping[str, str] | None = None,
        options: tuple[str, ...] = (),
        traps: Sequence[Trap] = (),
        await_output: bool = True,
    ) -> None:
        """Prepare the job, which starts on entry.

        With `await_output`, entry waits for output of the job. Otherwise it returns after the
        start.
        """
        self.job = Job.make(bootstrap, folder, pipeline)
        self._open = ExitStack()
        self._seed, self._environment = seed, dict(environment)
        self._config = {**QUICK_RESTARTS, **(config or {})}
        self._options, self._traps = options, traps
        self._await_output = await_output
        self.watchers: dict[str, Watcher] = {}
        self.recoveries_s: list[float] = []

    def __enter__(self) -> Self:
        try:
            bootstrap, topics = self.job.bootstrap, self.job.topics
            self.order_producer = OrderProducer(bootstrap, topics["orders"], self._seed)
            self._open.callback(self.order_producer._ending.set)
            for sink, topic in topics.items():
                if sink != "orders":
                    self.watchers[sink] = Watcher(bootstrap, topic, 4)
                    self._open.callback(self.watchers[sink].close)
            self.run: Run = self._open.enter_context(self.started(*self._options))
            if self._await_output:
                self.until_output(time.time() * 1000)
        except BaseException:
            self._open.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._open.close()

    def start_again(self, *options: str) -> None:
        """Start another run without traps, after the first run has ended."""
        self.run = self._open.enter_context(self.started(*self._options, *options, traps=()))

    def started(
        self, *options: str, traps: Sequence[Trap] | None = None
    ) -> AbstractContextManager[Run]:
        """Run `tidegate run` on this job, with the mains, settings and environment of the story."""
        return self.job.started(
            *options,
            traps=self._traps if traps is None else traps,
            run_mains=MAINS,
            config=self._config,
            environment=self._environment,
            module=COMMAND,
        )

    def until_output(self, since_ms: float, timeout_s: float = RECOVERY_S_MAX) -> None:
        """Wait until every sink shows output of records that were written at or after this time."""
        end_s = time.monotonic() + timeout_s
        for sink, watcher in self.watchers.items():
            while not watcher.await_newer(since_ms, min(end_s, time.monotonic() + 1.0)):
                if watcher.failure:
                    raise AssertionError(f"{sink} cannot be read: {watcher.failure}")
                if self.run.process.poll() is not None:
                    raise AssertionError(f"The job has ended.\n{self.run.story()}")
                if time.monotonic() > end_s:
                    raise AssertionError(
                        f"There was no output within {timeout_s:g} s.\n{self.run.story()}"
                    )

    def attacked(self, since_ms: float | None = None) -> float:
        """Wait for output of records written since this time (by default now), and return the
        seconds that it took.
        """
        since_ms = time.time() * 1000 if since_ms is None else since_ms
        self.until_output(since_ms)
        self.recoveries_s.append(time.time() - since_ms / 1000)
        return self.recoveries_s[-1]

    def finish(self, *, lossy: bool = False) -> str:
        """End the input, then the job, and judge. Return EXACT or the problem.

        With `lossy`, the amount of output is not known. So the output ends when the job has read
        all of the input, and no further output arrives.
        """
        self.order_producer.stop()
        if lossy:
            self._until_all_is_read(time.time() * 1000)
        counts = {"totals": self.order_producer.orders, "large": self.order_producer.large}
        end_s = time.monotonic() + RECOVERY_S_MAX
        for sink, watcher in self.watchers.items():
            if lossy:
                while watcher.await_count(len(watcher.seen) + 1, time.monotonic() + QUIET_S):
                    pass
            elif not watcher.await_count(counts[sink], end_s):
                # The job is still judged, and the checker then says what is missing.
                break
        self.run.process.send_signal(signal.SIGINT)
        code = self.run.wait(RECOVERY_S_MAX)
        if code != 0:
            return f"the job ended with exit code {code}: {self.run.errors.read_text()[-500:]}"
        return self.judge()

    def _until_all_is_read(self, since_ms: float) -> None:
        """Wait until the job has read all orders that were written before this time."""

        def has_read() -> bool:
            last = (self.run.reports() or [{}])[-1]
            return (
                last.get("state") == "RUNNING"
                and last.get("lag") == 0
                and last["reported_ms"] > since_ms + LAG_MS_MAX
            )

        self.run.until(has_read, "the job has read all of its input", RECOVERY_S_MAX)

    def judge(self) -> str:
        """Judge the present content of Kafka. Return EXACT or the problem."""
        verdict = self.job.compare()
        open_, vanished_records = self.job.open_transactions(), self.vanished_records()
        if verdict.exact and not open_ and not vanished_records:
            return EXACT
        return _describe(verdict, open_, vanished_records)

    def vanished_records(self) -> int:
        """Return how many records that readers saw during the run are no longer there."""
        return sum(
            checker.vanished_records(watcher.seen, self.committed(sink))
            for sink, watcher in self.watchers.items()
        )

    def committed(self, connector: str) -> list[checker.Record]:
        """Return the records that a topic of the job holds now."""
        return list(checker.read_committed(self.job.bootstrap, self.job.topics[connector]))

    def holes(self) -> tuple[int, str]:
        """Return the number of keys with a single missing output, if all outputs before and after
        it exist. Also return the problem of the other keys, or an empty text.
        """
        holed, wrong = 0, ""
        orders = self.committed("orders")
        for sink in self.watchers:
            expected, found = _sequences(sink, orders, self.committed(sink))
            for key in {*expected, *found}:
                due, got = expected.get(key, []), found.get(key, [])
                before = next(
                    (n for n, each in enumerate(got) if due[n : n + 1] != [each]), len(got)
                )
                if len(got) > len(due) or got[before:] != due[len(due) - len(got) + before :]:
                    wrong = f"{sink} of {key} lacks more than one piece of its output"
                holed += got != due
        return holed, wrong

    def told(self, run: Run | None = None) -> str:
        """Return every error that a run has shown to its users, on the terminal or in a report for
        scripts.
        """
        run = run or self.run
        errors = [report["error"]["message"] for report in run.reports() if report.get("error")]
        return "\n".join([run.errors.read_text(), *errors])

    @property
    def attempts(self) -> int:
        """The number of claims in the journal."""
        return sum(entry["kind"] == "claim" for entry in self.job.journal())


def _sequences(
    sink: str, orders: list[checker.Record], output: list[checker.Record]
) -> tuple[Mapping[str, list[Any]], Mapping[str, list[Any]]]:
    """Return the expected and the found values by key, in order."""
    judged, ignored = runs.JUDGED[sink], checker.Verdict()
    field = judged["field"]
    return (
        checker._expected(orders, judged.get("minimum", Decimal(0)), field, ignored),
        checker._found(output, field, ignored),
    )


def _describe(verdict: Verdict, open_: list[str], vanished_records: int) -> str:
    said = (
        f"of {verdict.records} records, {verdict.missing} are missing and {verdict.twice} are"
        " there twice"
    )
    if verdict.other:
        said += f", {verdict.other[0]}"
    if vanished_records:
        said += f", {vanished_records} records that readers saw are gone"
    return said + (f", open transactions: {', '.join(open_)}" if open_ else "")
