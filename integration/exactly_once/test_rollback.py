"""A publication of which the broker has aborted some transactions, on real brokers.

All processes are stopped just after a publication and then killed, so its transactions stay open.
Then the test lets them time out, fences one as another client would, or sends a late
EndTxn(commit). If no record of the publication is visible, the next run must roll it back. If some
records are visible, every run must report the loss and fail until the user accepts the loss.
On Kafka 3.9, `make test` runs one test of each of the two, and `-m soak` the others.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from integration.conftest import soak_on_39
from integration.faults.kill_points.kill_points import Trap
from integration.faults.kill_points.killed_runs import Job
from integration.support.take_transactional_id import take
from tidegate.drivers.kafka.embedded import EmbeddedKafka
from tidegate.drivers.kafka.transactions import KafkaTransactionAdmin
from tidegate.ids import TransactionalId
from tidegate.ports.kafka import EndTxnResult, TransactionState

pytestmark = [pytest.mark.kafka, pytest.mark.timeout(300)]

RECORDS = 9_000
"""A number of records so high that the third publication comes before the input ends, also on a
busy machine.
"""
PACE = 300

SHORT_TIMEOUTS = {
    "checkpoint.tolerable_failed_checkpoints": "0",
    "checkpoint.timeout": "2 s",
    "checkpoint.tolerated_outage": "6 s",
}
"""Settings with a transaction timeout of 10 s. Even on a busy machine, the test lists the open
transactions before this timeout.
"""


def die_after_a_publication(
    job: Job, config: Mapping[str, str] | None = None
) -> list[dict[str, Any]]:
    """Run until a publication lists several transactions, and kill all processes.

    Returns these transactions, which are all open.
    """
    for _ in range(5):
        trap = Trap("jobmaster.published", 3, stops=True)
        with job.started("--bounded", traps=[trap], pace=PACE, config=config) as run:
            run.until(run.plan.snapped, "stopped", 150)
        named: list[dict[str, Any]] = job.journal()[-1]["transactions"]
        if len(named) > 1:  # there can be only one if the machine is busy and sources read nothing
            break
    assert len(named) > 1
    assert {txn["transactional_id"] for txn in named} <= set(job.open_transactions())
    return named


def half_a_fence(bootstrap: str, transactional_id: str) -> None:
    """Send one InitProducerId, like a client that dies before it repeats the request.

    The broker aborts the transaction.
    """
    with closing(KafkaTransactionAdmin({"bootstrap.servers": bootstrap})) as log:
        take(log, transactional_id)
        until_state(log, transactional_id, TransactionState.COMPLETE_ABORT)


def whole_fence(bootstrap: str, transactional_id: str) -> None:
    """Fence the id like a client that takes it over: repeat InitProducerId until it succeeds."""
    with closing(KafkaTransactionAdmin({"bootstrap.servers": bootstrap})) as log:
        log.fence(TransactionalId(transactional_id))


def late_commit(bootstrap: str, txn: Mapping[str, Any]) -> None:
    """Send the EndTxn(commit) that the dead JobMaster did not send."""
    with closing(KafkaTransactionAdmin({"bootstrap.servers": bootstrap})) as log:
        id_ = TransactionalId(txn["transactional_id"])
        outcome = log.end(id_, txn["producer_id"], txn["epoch"], commit=True)
        assert outcome is EndTxnResult.ACCEPTED
        until_state(log, id_, TransactionState.COMPLETE_COMMIT)


def until_state(log: KafkaTransactionAdmin, transactional_id: str, state: TransactionState) -> None:
    end = time.monotonic() + 20
    while (facts := log.describe(TransactionalId(transactional_id))) is None or (
        facts.state is not state
    ):
        assert time.monotonic() < end, facts
        time.sleep(0.05)


def until_none_is_open(job: Job) -> None:
    end = time.monotonic() + 60
    while job.open_transactions():
        assert time.monotonic() < end
        time.sleep(0.2)


def kinds(job: Job) -> list[str]:
    return [entry["kind"] for entry in job.journal()]


def test_publication_is_rolled_back_if_a_transaction_is_aborted_before_any_commit(
    every_kafka: EmbeddedKafka, tmp_path: Path
) -> None:
    job = Job.make(every_kafka.bootstrap, tmp_path, "TwoSinks")
    job.write(RECORDS, seed=1)
    named = die_after_a_publication(job)
    half_a_fence(every_kafka.bootstrap, named[1]["transactional_id"])
    job.run()
    assert "retracted" in kinds(job)
    assert "lost" not in kinds(job)
    job.assert_exact()


@pytest.mark.slow
@soak_on_39
def test_transaction_aborted_after_another_one_was_committed_is_reported_as_lost(
    any_kafka: EmbeddedKafka, tmp_path: Path
) -> None:
    job = Job.make(any_kafka.bootstrap, tmp_path, "TwoSinks")
    job.write(RECORDS, seed=2)
    named = die_after_a_publication(job)
    late_commit(any_kafka.bootstrap, named[0])
    half_a_fence(any_kafka.bootstrap, named[1]["transactional_id"])
    it_is_loud_until_the_loss_is_accepted(job, named[1]["transactional_id"], {})
    verdict = job.compare()
    assert verdict.missing, verdict
    assert not verdict.twice, verdict


@pytest.mark.slow
def test_committed_transaction_that_was_fenced_twice_is_reported_as_lost(
    kafka: EmbeddedKafka, tmp_path: Path
) -> None:
    """A whole fence leaves the same state as two fences of a committed transaction. The records of
    a committed transaction must not be written twice.
    """
    job = Job.make(kafka.bootstrap, tmp_path, "TwoSinks")
    job.write(RECORDS, seed=3)
    named = die_after_a_publication(job)
    late_commit(kafka.bootstrap, named[0])
    for _ in range(2):
        whole_fence(kafka.bootstrap, named[0]["transactional_id"])
    it_is_loud_until_the_loss_is_accepted(job, named[0]["transactional_id"], {})
    verdict = job.compare()
    assert not verdict.missing, verdict
    assert not verdict.twice, verdict


@pytest.mark.slow
@soak_on_39
def test_publication_is_rolled_back_if_all_its_transactions_timed_out(
    any_kafka: EmbeddedKafka, tmp_path: Path
) -> None:
    job = Job.make(any_kafka.bootstrap, tmp_path, "Totals")
    job.write(RECORDS, seed=4)
    die_after_a_publication(job, SHORT_TIMEOUTS)
    until_none_is_open(job)
    job.run(config=SHORT_TIMEOUTS)
    assert kinds(job).count("retracted") == 1
    job.assert_exact()


@pytest.mark.slow
def test_transaction_timeout_after_a_partial_commit_is_reported_as_lost(
    any_kafka: EmbeddedKafka, tmp_path: Path
) -> None:
    job = Job.make(any_kafka.bootstrap, tmp_path, "Totals")
    job.write(RECORDS, seed=5)
    named = die_after_a_publication(job, SHORT_TIMEOUTS)
    late_commit(any_kafka.bootstrap, named[0])
    until_none_is_open(job)
    it_is_loud_until_the_loss_is_accepted(job, named[1]["transactional_id"], SHORT_TIMEOUTS)
    verdict = job.compare()
    assert verdict.missing, verdict
    assert not verdict.twice, verdict


def it_is_loud_until_the_loss_is_accepted(job: Job, lost: str, config: Mapping[str, str]) -> None:
    for _ in range(2):
        with job.started("--bounded", config=config) as failed:
            assert failed.wait() == 1, failed.story()
        told = failed.errors.read_text()
        for part in ("has lost output", lost, "--accept-data-loss"):
            assert part in told, failed.story()
    job.run("--accept-data-loss", config=config)
