"""A transactional id whose epochs are used up: the broker gives it another producer id.

The epoch of a producer has 16 bits, and each transaction of a job uses one epoch. A job with one
subtask gets a transactional id that reaches its last epoch in the job's first transactions. A few
checkpoints later the job uses the id again, and the id then has another producer id. The job must
not confuse the transactions of the two producer ids, and a recovery that finds both in the journal
must not confuse them either.
"""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Final

import pytest

from integration.faults.kill_points.killed_runs import Job
from integration.support.take_transactional_id import take
from tidegate.commit.transactional_ids import format_transactional_id
from tidegate.drivers.kafka.coordinator_connection import raise_for_code
from tidegate.drivers.kafka.embedded import EmbeddedKafka
from tidegate.drivers.kafka.transactions import KafkaTransactionAdmin
from tidegate.ids import Attempt, JobName, SubtaskIndex, TransactionalId, Uid

pytestmark = [pytest.mark.kafka, pytest.mark.soak, pytest.mark.timeout(900)]

EPOCH_MAX: Final = 32_766
"""The last epoch that a broker gives."""
RECORDS = 6_000
PACE = 500


def test_output_is_exact_when_a_transactional_id_gets_a_new_producer_id(
    any_kafka: EmbeddedKafka, tmp_path: Path
) -> None:
    job = Job.make(any_kafka.bootstrap, tmp_path, "LargeOrders")
    job.write(RECORDS // 10, seed=1)
    job.run(parallelism=1)
    last = job.journal()[-1]
    id_ = format_transactional_id(
        job=JobName(job.name),
        journal_id=last["journal"],
        sink=Uid("large"),
        attempt=Attempt(last["number"] + 1),  # a claim's number is its attempt
        subtask=SubtaskIndex(0),
        index=0,
    )
    producer_id = used_up(any_kafka.bootstrap, id_)
    job.write(RECORDS, seed=2)
    with job.started("--restore", "latest", pace=PACE, parallelism=1) as run:
        run.until(lambda: len(named_producers(job, id_)) > 1, "published with both producer ids")
        run.kill()
    assert producer_id in named_producers(job, id_)
    job.run(parallelism=1)
    job.assert_exact()


def named_producers(job: Job, id_: str) -> set[int]:
    """Return the producer ids of this transactional id in all publications."""
    named = [txn for entry in job.journal() for txn in entry.get("transactions", ())]
    return {txn["producer_id"] for txn in named if txn["transactional_id"] == id_}


def used_up(bootstrap: str, id_: TransactionalId) -> int:
    """Take the id until the next client gets its last epoch. Return the id's producer id."""
    with closing(KafkaTransactionAdmin({"bootstrap.servers": bootstrap})) as log:
        epoch = -1
        while epoch < EPOCH_MAX - 1:
            answer = take(log, id_)
            raise_for_code(answer.error_code)
            assert answer.producer_epoch == epoch + 1
            epoch = answer.producer_epoch
        return int(answer.producer_id)
