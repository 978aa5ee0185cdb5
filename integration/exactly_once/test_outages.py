"""Brokers that are away, within an interval, for longer than the delivery timeout of a record.

The producer then drops the records that it was given. A later flush finds no record left to send,
and would report success. With normal settings an attempt also fails at about this time because it
completes no checkpoint, so either of the two causes ends it. This is the second test here, and the
case *all away* of `faults/kill_matrix/broker_faults.py`, with three brokers.

In the first test only the producer's own record of the failure can prevent a publication. The
producers therefore have a delivery timeout that is much shorter than the checkpoint timeout. The
test writes nothing more meanwhile, and keeps the broker from aborting the transaction. Without
these measures something else would reveal the failure.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest

from integration.faults.kill_points.kill_points import Trap
from integration.faults.kill_points.killed_runs import Job, Run
from integration.faults.kill_points.mains import DELIVERY
from tidegate.drivers.kafka.embedded import EmbeddedKafka

pytestmark = [pytest.mark.kafka, pytest.mark.timeout(300)]

RECORDS = 1_000
PACE = 200
CONFIG = {"restart.strategy": "fixed_delay", "restart.delay": "100 ms"}
PATIENT = {**CONFIG, "checkpoint.interval": "2 s", "checkpoint.timeout": "60 s"}
DELIVERY_S, AWAY_S_MAX = 2.0, 20.0
"""The delivery timeout and the longest outage, in seconds. The outage ends when the job reports the
failed delivery.
"""
NEVER_ABORTED = {"transaction.abort.timed.out.transaction.cleanup.interval.ms": "3600000"}
SHORT_TIMEOUTS = {
    **CONFIG,
    "checkpoint.interval": "3 s",
    "checkpoint.tolerable_failed_checkpoints": "0",
    "checkpoint.timeout": "3 s",
    "checkpoint.tolerated_outage": "0 s",
}
SHORT_DELIVERY_S = 6.0
"""The delivery timeout of these settings, in seconds. It equals the transaction timeout."""
NEVER_WITHOUT_LEADERS = {"broker.session.timeout.ms": "60000"}
"""A session longer than the freeze of the node.

A node that was frozen for longer than its session briefly takes the leadership of its partitions
from itself. Kafka 4.3.0 forgets abort markers of that time (KAFKA-20734), and then their readers
wait for ever, whatever the job does. `docs/guides/transactions.md` describes this bug of the
broker.
"""


@contextmanager
def own_kafka(folder: Path, properties: Mapping[str, str]) -> Iterator[EmbeddedKafka]:
    folder = folder / "kafka"
    with EmbeddedKafka.start(directory=folder, owned=True, properties=properties) as kafka:
        yield kafka


@pytest.mark.slow
def test_failed_delivery_is_never_published_even_if_a_later_flush_succeeds(tmp_path: Path) -> None:
    with own_kafka(tmp_path, NEVER_ABORTED) as kafka:
        job = Job.make(kafka.bootstrap, tmp_path, "Totals")
        job.write(RECORDS, seed=1)
        environment = {DELIVERY: str(round(DELIVERY_S * 1000))}
        with job.started(config=PATIENT, environment=environment, pace=PACE) as run:
            run.until(job.is_settled, "settled")
            # The first batch has opened the transaction. The slot holds the second batch.
            held = run.plan.add(Trap("slot.writing", nth=2, holds=True))
            job.write(RECORDS // 10, seed=2)
            run.until_snapped(held)
            attempt, number = job.claims()[-1], job.journal()[-1]["number"]
            kafka.kill()
            run.plan.release(held)  # the slot now writes the batch, but no broker runs
            # A job that does not notice the failed delivery publishes after the restart.
            end_s = time.monotonic() + AWAY_S_MAX
            while not failure(run, attempt) and time.monotonic() < end_s:
                time.sleep(0.1)
            kafka.restart()
            run.until(lambda: failure(run, attempt) or named_since(job, number), "failed")
            assert named_since(job, number, attempt) == [], run.story()
            assert "could not deliver a record" in failure(run, attempt), run.story()
            run.until(job.is_settled, "settled again")
            run.process.send_signal(signal.SIGINT)
            assert run.wait() == 0, run.story()
        job.assert_exact()


def test_job_restarts_and_is_exact_after_a_broker_outage_longer_than_the_delivery_timeout(
    tmp_path: Path,
) -> None:
    with own_kafka(tmp_path, NEVER_WITHOUT_LEADERS) as kafka:
        job = Job.make(kafka.bootstrap, tmp_path, "Totals")
        job.write(3 * RECORDS, seed=3)
        with job.started("--bounded", config=SHORT_TIMEOUTS, pace=PACE) as run:
            run.until(lambda: is_mid_interval(run), "in the middle of an interval")
            os.kill(kafka.pids[0], signal.SIGSTOP)
            try:
                attempt, number = job.claims()[-1], job.journal()[-1]["number"]
                stopped_s = time.monotonic()
                run.until(lambda: failure(run, attempt), "failed")
                time.sleep(max(0.0, stopped_s + SHORT_DELIVERY_S + 2 - time.monotonic()))
            finally:
                os.kill(kafka.pids[0], signal.SIGCONT)
            assert run.wait() == 0, run.story()
        assert named_since(job, number, attempt) == [], run.story()
        job.assert_exact()
        assert not [entry for entry in job.journal() if entry["kind"] in {"retracted", "lost"}]


def is_mid_interval(run: Run) -> bool:
    """Return whether the live attempt runs and has settled all of its publications."""
    entries, claims = run.job.journal(), run.job.claims()
    live = bool(claims) and entries[-1].get("attempt") == claims[-1]
    return live and entries[-1]["kind"] == "settled" and run.state() == "RUNNING"


def named_since(job: Job, number: int, attempt: int | None = None) -> list[str]:
    """Return the ids of transactions in publications after a journal entry.

    With `attempt`, only the publications of this attempt count.
    """
    return [
        txn["transactional_id"]
        for entry in job.journal()
        if entry["number"] > number and attempt in {None, entry.get("attempt")}
        for txn in entry.get("transactions", ())
    ]


def failure(run: Run, attempt: int) -> str:
    """Return the error with which an attempt ended; an empty string while it has not ended."""
    history = [each for report in run.reports() for each in report.get("failed_attempts", ())]
    return next((each["error"]["message"] for each in history if each["attempt"] == attempt), "")
