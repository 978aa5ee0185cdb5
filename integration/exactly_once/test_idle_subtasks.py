"""A subtask that writes nothing for an interval, and a crash just after its publication.

The subtask prepares no transaction for such an interval. If a publication listed an empty
transaction, a recovery could not end it, and the job would never run again. All kills are at the
critical point: the publication is written, and no transaction that it lists is ended.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from integration.conftest import soak_on_39
from integration.demo import checker
from integration.faults.kill_points.kill_points import Trap
from integration.faults.kill_points.killed_runs import Job
from tidegate.commit.transactional_ids import parse_transactional_id
from tidegate.drivers.kafka.embedded import EmbeddedKafka

pytestmark = [pytest.mark.slow, pytest.mark.kafka, pytest.mark.timeout(300)]

RECORDS = 400


def customers(job: Job, partition: int) -> set[bytes]:
    """Return the customers whose orders so far are in one partition."""
    found = checker.read_committed(job.bootstrap, job.topics["orders"])
    return {record.key or b"" for record in found if record.partition == partition}


def writers(job: Job) -> set[int]:
    """Return the subtasks with transactions in the last publication that lists any."""
    entries = [entry for entry in job.journal() if entry.get("transactions")]
    named = [txn["transactional_id"] for txn in entries[-1]["transactions"]] if entries else []
    return {parts.subtask for parts in map(parse_transactional_id, named) if parts is not None}


@soak_on_39
def test_job_recovers_from_a_publication_of_an_interval_with_an_idle_subtask(
    any_kafka: EmbeddedKafka, tmp_path: Path
) -> None:
    # This pipeline has no state and no shuffle, so a subtask with idle partitions is idle too.
    job = Job.make(any_kafka.bootstrap, tmp_path, "LargeOrders")
    job.write(RECORDS, seed=1)
    busy = customers(job, 0)
    with job.started() as run:
        run.until(job.is_settled, "settled")
        held = run.plan.add(Trap("jobmaster.published", holds=True))
        job.write(RECORDS, seed=2, of=busy)
        run.until_snapped(held)
        assert len(writers(job)) == 1, job.journal()[-1]
        run.kill()
    # The second run repeats this with an idle subtask that has not written at all. Here only the
    # JobMaster is killed, and the next JobMaster ends the published transactions.
    job.write(RECORDS, seed=3, of=busy)
    with job.started(traps=[Trap("jobmaster.published")]) as run:
        run.until_snapped(0)
        assert len(writers(job)) == 1, job.journal()[-1]
        run.until(job.is_settled, "settled again")
        run.kill()
    job.write(RECORDS, seed=4)
    job.run()
    job.assert_exact()
