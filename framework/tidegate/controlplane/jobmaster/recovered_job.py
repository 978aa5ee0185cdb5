"""What a recovery gives to an attempt, and what each slot is told of it. It decides nothing."""

from __future__ import annotations

from dataclasses import dataclass

from tidegate.checkpoint.restore import RestorePlan
from tidegate.ids import Attempt
from tidegate.protocol.messages import Deploy, RestoredState, Submission


@dataclass(frozen=True, slots=True, kw_only=True)
class RecoveredJob:
    """What an attempt begins with: the job is settled and fenced, and this is what it restores."""

    attempt: Attempt
    journal: str
    claim_nonce: str
    kafka_cluster: str
    finished: bool
    """This submit's final checkpoint is published: nothing is left but to close."""
    stopped: bool
    """It was published for a user's stop, before the end of the input."""
    submission: Submission
    restoration: RestorePlan
    """Empty where it is finished."""
    transaction_timeout_ms: int
    warm_producers: int
    transaction_slots: int
    max_message_bytes: dict[str, int]
    """Of the topics of sinks, where the brokers tell it."""
    read_again: str = ""
    """Offsets that the first attempt of a submission reads again, because it restores an older
    checkpoint by hand."""
    storage: str = ""
    """The id of the checkpoint storage: slots use no other."""

    def deploy(self, ordinal: int, peers: tuple[str, ...]) -> Deploy:
        """What one slot is told."""
        return Deploy(
            job=self.submission.job,
            attempt=self.attempt,
            ordinal=ordinal,
            journal=self.journal,
            claim_nonce=self.claim_nonce,
            kafka_cluster=self.kafka_cluster,
            submission=self.submission,
            peers=peers,
            splits=self.restoration.splits[ordinal],
            restored={
                uid: RestoredState(snapshots=snapshots)
                for uid, snapshots in self.restoration.keyed[ordinal].items()
            },
            transaction_timeout_ms=self.transaction_timeout_ms,
            warm_producers=self.warm_producers,
            transaction_slots=self.transaction_slots,
            max_message_bytes=self.max_message_bytes,
            storage=self.storage,
        )
