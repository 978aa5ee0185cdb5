"""Brokers that are away for longer than a record may wait for its delivery, in mid-interval.

Records that were handed to a producer are then lost with it; a flush that comes after that finds
nothing left to send and would call it done. By the settings alone an attempt fails about then for
want of a checkpoint, too, so either of the two ends it (the second test here, and *all away* of
`chaos/broker_faults.py`, with three brokers). So that only the producer's own memory of the failure
stands between it and a publication, the first test gives the producers a delivery timeout that is
much shorter than a checkpoint may take, writes nothing more meanwhile, and keeps the broker from
aborting the transaction: each of these would be noticed otherwise.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest

from integration.killing.mains import DELIVERY
from integration.killing.runs import Job, Run
from integration.killing.traps import Trap
from tidegate.drivers.kafka.embedded import EmbeddedKafka

pytestmark = [pytest.mark.kafka, pytest.mark.timeout(300)]

RECORDS = 1_000
PACE = 200
CONFIG = {"restart.strategy": "fixed_delay", "restart.delay": "100 ms"}
PATIENT = {**CONFIG, "checkpoint.interval": "2 s", "checkpoint.timeout": "60 s"}
DELIVERY_S, AWAY_S = 2.0, 4.0
"""librdkafka looks for records that are overdue once a second."""
NEVER_ABORTED = {"transaction.abort.timed.out.transaction.cleanup.interval.ms": "3600000"}
HASTY = {
    **CONFIG,
    "checkpoint.interval": "3 s",
    "checkpoint.tolerable_failed_checkpoints": "0",
    "checkpoint.timeout": "3 s",
    "checkpoint.tolerated_outage": "0 s",
}
HASTY_DELIVERY_S = 6.0
"""What that comes to: the delivery timeout is the transaction timeout."""
NEVER_WITHOUT_LEADERS = {"broker.session.timeout.ms": "60000"}
"""A node that stood still for longer than its session takes its partitions' leadership from itself
for a moment, and 4.3.0 forgets the abort markers of just then (KAFKA-20734): their readers wait for
ever, whatever the job does. It is the broker's story and told in `docs/transactions.md`.
"""


@contextmanager
def own_kafka(folder: Path, properties: Mapping[str, str]) -> Iterator[EmbeddedKafka]:
    folder = folder / "kafka"
    with EmbeddedKafka.start(directory=folder, owned=True, properties=properties) as kafka:
        yield kafka


def test_a_failed_delivery_is_never_published_whatever_a_later_flush_says(tmp_path: Path) -> None:
    with own_kafka(tmp_path, NEVER_ABORTED) as kafka:
        job = Job.make(kafka.bootstrap, tmp_path, "Totals")
        job.write(RECORDS, seed=1)
        environment = {DELIVERY: str(round(DELIVERY_S * 1000))}
        with job.started(config=PATIENT, environment=environment, pace=PACE) as run:
            run.until(job.is_settled, "settled")
            # The first batch has opened the transaction, the second is in the slot's hands.
            held = run.plan.add(Trap("slot.writing", nth=2, holds=True))
            job.write(RECORDS // 10, seed=2)
            run.until_snapped(held)
            attempt, number = job.claims()[-1], job.journal()[-1]["number"]
            kafka.kill()
            run.plan.release(held)  # it hands over what it has, to nobody
            time.sleep(AWAY_S)
            kafka.restart()
            run.until(lambda: failure(run, attempt) or named_since(job, number), "failed")
            assert named_since(job, number, attempt) == [], run.story()
            assert "could not deliver a record" in failure(run, attempt), run.story()
            run.until(job.is_settled, "settled again")
            run.process.send_signal(signal.SIGINT)
            assert run.wait() == 0, run.story()
        job.assert_exact()


def test_away_for_longer_than_the_delivery_timeout_the_job_restarts_and_is_exact(
    tmp_path: Path,
) -> None:
    with own_kafka(tmp_path, NEVER_WITHOUT_LEADERS) as kafka:
        job = Job.make(kafka.bootstrap, tmp_path, "Totals")
        job.write(3 * RECORDS, seed=3)
        with job.started("--bounded", config=HASTY, pace=PACE) as run:
            run.until(lambda: is_mid_interval(run), "in the middle of an interval")
            os.kill(kafka.pids[0], signal.SIGSTOP)
            try:
                attempt, number = job.claims()[-1], job.journal()[-1]["number"]
                stopped_s = time.monotonic()
                run.until(lambda: failure(run, attempt), "failed")
                time.sleep(max(0.0, stopped_s + HASTY_DELIVERY_S + 2 - time.monotonic()))
            finally:
                os.kill(kafka.pids[0], signal.SIGCONT)
            assert run.wait() == 0, run.story()
        assert named_since(job, number, attempt) == [], run.story()
        job.assert_exact()
        assert not [entry for entry in job.journal() if entry["kind"] in {"retracted", "lost"}]


def is_mid_interval(run: Run) -> bool:
    """The live attempt runs, and everything that it has published is settled."""
    entries, claims = run.job.journal(), run.job.claims()
    live = bool(claims) and entries[-1].get("attempt") == claims[-1]
    return live and entries[-1]["kind"] == "settled" and run.state() == "RUNNING"


def named_since(job: Job, number: int, attempt: int | None = None) -> list[str]:
    """Ids of transactions that were published after this entry: by this attempt, or by any."""
    return [
        txn["transactional_id"]
        for entry in job.journal()
        if entry["number"] > number and attempt in {None, entry.get("attempt")}
        for txn in entry.get("transactions", ())
    ]


def failure(run: Run, attempt: int) -> str:
    """Why this attempt ended; nothing while it has not."""
    history = [each for report in run.reports() for each in report.get("history", ())]
    return next((each["error"]["message"] for each in history if each["attempt"] == attempt), "")
