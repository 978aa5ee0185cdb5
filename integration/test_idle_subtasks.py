"""A subtask that writes nothing for an interval, and a crash just after it was published.

What was prepared for such an interval is nothing at all; a recovery that were told of an empty
transaction could not end it, and the job would never come back. All kills are where it matters: the
publication stands, and nothing that it names is ended.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from integration import checker
from integration.killing.runs import Job
from integration.killing.traps import Trap
from tidegate.checkpoint.transactional_ids import parse_transactional_id
from tidegate.drivers.kafka.embedded import EmbeddedKafka

pytestmark = [pytest.mark.kafka, pytest.mark.timeout(300)]

RECORDS = 400


def customers(job: Job, partition: int) -> set[bytes]:
    """Of the orders written so far, those of one partition."""
    found = checker.read_committed(job.bootstrap, job.topics["orders"])
    return {record.key or b"" for record in found if record.partition == partition}


def writers(job: Job) -> set[int]:
    """Subtasks of whose transactions the last publication that names any has some."""
    entries = [entry for entry in job.journal() if entry.get("transactions")]
    named = [txn["transactional_id"] for txn in entries[-1]["transactions"]] if entries else []
    return {parts.subtask for parts in map(parse_transactional_id, named) if parts is not None}


def test_killed_after_an_interval_in_which_a_subtask_wrote_nothing_it_recovers(
    any_kafka: EmbeddedKafka, tmp_path: Path
) -> None:
    # Without state nothing is shuffled: a subtask whose partitions are idle is idle itself.
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
    # Again, in a life in which the idle subtask has not written at all; here only the JobMaster is
    # killed, and its successor ends what it published.
    job.write(RECORDS, seed=3, of=busy)
    with job.started(traps=[Trap("jobmaster.published")]) as run:
        run.until_snapped(0)
        assert len(writers(job)) == 1, job.journal()[-1]
        run.until(job.is_settled, "settled again")
        run.kill()
    job.write(RECORDS, seed=4)
    job.run()
    job.assert_exact()
