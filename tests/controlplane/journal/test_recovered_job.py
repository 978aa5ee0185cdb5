"""What a slot of a new attempt is given."""

from __future__ import annotations

from tests.controlplane.jobmanager.dispatching import submission
from tidegate.checkpoint.restore import RestorePlan
from tidegate.controlplane.journal.recovered_job import RecoveredJob
from tidegate.ids import Attempt


def test_every_slot_gets_the_watermarks_of_steps_and_the_tz_database_of_the_attempt() -> None:
    recovered = RecoveredJob(
        attempt=Attempt(1),
        journal_id="j",
        claim_nonce="n",
        kafka_cluster="k",
        finished=False,
        stopped=False,
        submission=submission(),
        restore_plan=RestorePlan(
            keyed=({}, {}), splits=((), ()), new_partitions=(), watermarks={"stamp": 7}
        ),
        transaction_timeout_ms=60_000,
        producer_pool_size=1,
        transactional_ids_per_subtask=1,
        max_message_bytes={},
        host="control-1",
        tz_database="2026f",
    )
    for ordinal in range(2):
        deploy = recovered.deploy(ordinal, ("a", "b"))
        assert deploy.watermarks == {"stamp": 7}
        assert (deploy.host, deploy.tz_database) == ("control-1", "2026f")
