"""The result of a recovery for an attempt, and the deployment of each slot. It decides nothing."""

from __future__ import annotations

from dataclasses import dataclass

from tidegate.checkpoint.restore import RestorePlan
from tidegate.ids import Attempt
from tidegate.protocol.messages import Deploy, RestoredState
from tidegate.protocol.submission import Submission


@dataclass(frozen=True, slots=True, kw_only=True)
class RecoveredJob:
    """The start data of an attempt. The job is settled and fenced, and the attempt restores this
    state.
    """

    attempt: Attempt
    journal_id: str
    claim_nonce: str
    kafka_cluster: str
    finished: bool
    """Whether the final checkpoint of this submission is published. Then the job only has to be
    closed.
    """
    stopped: bool
    """Whether the final checkpoint was taken because of a user's stop, before the end of the
    input.
    """
    submission: Submission
    restore_plan: RestorePlan
    """The restore plan. Empty if the job is finished."""
    transaction_timeout_ms: int
    producer_pool_size: int
    transactional_ids_per_subtask: int
    max_message_bytes: dict[str, int]
    """`max.message.bytes` of each sink topic, if the brokers report it."""
    read_again: str = ""
    """Offsets that the first attempt of a submission reads again, because the user restores an
    older checkpoint."""
    storage: str = ""
    """The id of the checkpoint storage. Slots use no other storage."""
    host: str = ""
    """The host of the JobMaster, or of the driver of a backfill."""
    tz_database: str = ""
    """The version of the tz database on this host, if the job has calendar windows."""

    def deploy(self, ordinal: int, peers: tuple[str, ...]) -> Deploy:
        """Return the deployment of one slot."""
        return Deploy(
            job=self.submission.job,
            attempt=self.attempt,
            ordinal=ordinal,
            journal_id=self.journal_id,
            claim_nonce=self.claim_nonce,
            kafka_cluster=self.kafka_cluster,
            submission=self.submission,
            peers=peers,
            splits=self.restore_plan.splits[ordinal],
            restored={
                uid: RestoredState(snapshots=snapshots)
                for uid, snapshots in self.restore_plan.keyed[ordinal].items()
            },
            transaction_timeout_ms=self.transaction_timeout_ms,
            producer_pool_size=self.producer_pool_size,
            transactional_ids_per_subtask=self.transactional_ids_per_subtask,
            max_message_bytes=self.max_message_bytes,
            storage=self.storage,
            input_over=self.restore_plan.input_over,
            watermarks=dict(self.restore_plan.watermarks),
            host=self.host,
            tz_database=self.tz_database,
        )
