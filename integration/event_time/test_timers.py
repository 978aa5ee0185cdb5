"""Timers and two inputs on a real broker: orders that wait for their payments, through kills.

The pipeline is `pipelines/paid_orders.py`. The outcome of each order follows from the times in the
records. So the test computes it from its input, whatever is killed and however the job is rescaled.
Each order has exactly one outcome, and the outcome is unpaid only if its payment is too late.
"""

from __future__ import annotations

import json
import random
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer

import pipelines.paid_orders
from integration.support.brokers import Kafka
from integration.support.running import code_of_stop
from integration.support.user_project import Folder, Run

pytestmark = [pytest.mark.kafka, pytest.mark.timeout(240)]

PARTITIONS = 3
BEGIN_MS = round(time.time() - 86_400) * 1000
WAIT_MS = 60_000
LATENESS_MS = 9_000
"""The most milliseconds by which records are out of order: less than the bound of the pipeline."""

Outcomes = Counter[tuple[str, bool, int]]


def project(tmp_path: Path, kafka: Kafka) -> Folder:
    topics = ["shop-orders", "shop-payments", "order-outcomes"]
    folder = Folder.make(tmp_path, kafka.bootstrap, "", topics=topics, partitions=PARTITIONS)
    source = Path(pipelines.paid_orders.__file__).read_text()
    for topic in topics:
        source = source.replace(f'"{topic}"', f'"{{{topic}}}"')
    folder.write("job.py", source.replace('name="paid-orders"', 'name="{job}"'))
    return folder


class Shop:
    """Writes orders and payments, and knows the outcome of each order."""

    def __init__(self, folder: Folder) -> None:
        self._folder, self._random = folder, random.Random(7)
        self._producer = Producer({"bootstrap.servers": folder.bootstrap})
        self.due: Outcomes = Counter()
        self.now_ms = BEGIN_MS

    def trade(self, count: int) -> None:
        """Write orders, one every 200 ms of event time, and their payments: some before the order
        arrives, some too late, some never.
        """
        payments = []
        for number in range(count):
            self.now_ms += 200
            order = f"o{(self.now_ms - BEGIN_MS) // 200}"
            at_ms = self.now_ms - self._random.randrange(LATENESS_MS)
            self._send("shop-orders", order, {"cents": number, "placed_at_ms": at_ms})
            delay_ms = self._random.choice([0, 1_000, 30_000, WAIT_MS, WAIT_MS + 1, None])
            paid = delay_ms is not None and delay_ms <= WAIT_MS
            if delay_ms is not None:
                payments.append((at_ms + delay_ms, order))
            end_ms = at_ms + delay_ms if paid and delay_ms is not None else at_ms + WAIT_MS
            self.due[order, paid, end_ms] += 1
        for paid_at_ms, order in sorted(payments):
            self._send("shop-payments", order, {"paid_at_ms": paid_at_ms})
        self._producer.flush()

    def close(self) -> None:
        """Write a record into each partition that is later than every wait. They have no outcome
        as long as nothing drains.
        """
        self.now_ms += 10 * WAIT_MS
        for topic, field in (("shop-orders", "placed_at_ms"), ("shop-payments", "paid_at_ms")):
            for partition in range(PARTITIONS):
                record = {"order_id": f"{topic}-{partition}", "cents": 0, field: self.now_ms}
                self._producer.produce(
                    self._folder.topics[topic], json.dumps(record), partition=partition
                )
        self._producer.flush()

    def _send(self, topic: str, order: str, fields: dict[str, Any]) -> None:
        value = json.dumps({"order_id": order, **fields})
        self._producer.produce(self._folder.topics[topic], value, key=order)
        self._producer.poll(0)


def outcomes(folder: Folder) -> Outcomes:
    found: Outcomes = Counter()
    for message in folder.read("order-outcomes"):
        one = json.loads(message.value() or b"")
        found[one["order_id"], one["paid"], one["at_ms"]] += 1
    return found


def kill_slots(folder: Folder, run: Run) -> None:
    """Kill all slots, and wait for the first checkpoints of the next attempt."""
    run.kill_slots()
    published = len(folder.published())
    run.until(lambda: len(folder.published()) > published + 1, "a checkpoint")


OPTIONS = ("--set", f"wait_minutes={WAIT_MS // 60_000}")


@pytest.mark.slow
@pytest.mark.parametrize(("before", "after"), [(1, 2), (3, 2)])
def test_each_order_has_one_outcome_after_kills_and_rescaling(
    kafka: Kafka, tmp_path: Path, before: int, after: int
) -> None:
    folder = project(tmp_path, kafka)
    shop = Shop(folder)
    shop.trade(1_000)
    words = ("--parallelism", str(before), *OPTIONS)
    with folder.started(*words, reference="job:PaidOrders", bounded=False) as run:
        run.until(lambda: len(outcomes(folder)) > 100, "outcomes")
        for _ in range(2):
            shop.trade(500)
            kill_slots(folder, run)
        assert run.stop().code == code_of_stop(folder.journal()), run.err
    assert outcomes(folder) < shop.due, "a stop fires nothing"
    shop.trade(500)
    shop.close()
    words = ("--parallelism", str(after), *OPTIONS)
    with folder.started(*words, reference="job:PaidOrders", bounded=False) as run:
        run.until(lambda: outcomes(folder).total() >= shop.due.total(), "all outcomes")
        kill_slots(folder, run)
        assert run.stop().code == code_of_stop(folder.journal()), run.err
    assert outcomes(folder) == shop.due


@pytest.mark.slow
def test_bounded_run_drains_and_a_later_run_is_refused(kafka: Kafka, tmp_path: Path) -> None:
    folder = project(tmp_path, kafka)
    shop = Shop(folder)
    shop.trade(500)
    outcome = folder.run("--parallelism", "2", *OPTIONS, reference="job:PaidOrders")
    assert outcome.code == 0, outcome.err
    assert "this run drains at the end of its input" in outcome.err
    assert outcomes(folder) == shop.due
    outcome = folder.run("--parallelism", "2", *OPTIONS, reference="job:PaidOrders")
    assert outcome.code == 2
    assert "was taken when the job drained" in outcome.err
    assert "--no-drain" in outcome.err
    assert outcomes(folder) == shop.due


@pytest.mark.slow
def test_bounded_run_that_does_not_drain_and_a_backfill_leave_what_is_open_to_a_later_run(
    kafka: Kafka, tmp_path: Path
) -> None:
    folder = project(tmp_path, kafka)
    shop = Shop(folder)
    shop.trade(500)
    outcome = folder.run("--no-drain", *OPTIONS, reference="job:PaidOrders")
    assert outcome.code == 0, outcome.err
    assert "this run drains" not in outcome.err
    assert outcomes(folder) < shop.due
    shop.trade(500)
    words = ["--kafka", kafka.bootstrap, "--master", "in-process", "--wave-records", "300"]
    command = [str(Path(sys.executable).with_name("tidegate")), "backfill", "job:PaidOrders"]
    command += [*words, *OPTIONS, "-c", "job.parallelism=2", "--json"]
    done = subprocess.run(
        command, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    found = outcomes(folder)
    assert found < shop.due
    shop.trade(200)
    outcome = folder.run("--parallelism", "3", *OPTIONS, reference="job:PaidOrders")
    assert outcome.code == 0, outcome.err
    assert outcomes(folder) == shop.due


def test_each_order_has_one_outcome_after_kills_while_timers_fire(
    kafka: Kafka, tmp_path: Path
) -> None:
    folder = project(tmp_path, kafka)
    slow = (tmp_path / "job.py").read_text()
    head = "    def on_timer(self, fired: Fired, _ctx: Context[str]) -> Iterable[Outcome]:\n"
    assert head in slow
    slow = slow.replace(head, f"{head}        time.sleep(0.002)\n")
    (tmp_path / "job.py").write_text(
        slow.replace("import msgspec\n", "import time\n\nimport msgspec\n")
    )
    shop = Shop(folder)
    shop.trade(20_000)
    words = ["--parallelism", "2", *OPTIONS, "-c", "checkpoint.interval=100ms"]
    # Checkpoints come early, also in the backlog. The timers alone take seven seconds.
    words += ["-c", "checkpoint.interval_during_backlog=0ms"]
    with folder.started(*words, reference="job:PaidOrders", bounded=True) as run:
        for _ in range(3):
            published = len(folder.published())
            run.until(lambda: len(folder.published()) > published, "a checkpoint")  # noqa: B023
            run.kill_slots()
        assert run.wait().code == 0, run.err
    assert " 0 restarts" not in run.err.splitlines()[-1]
    assert outcomes(folder) == shop.due
