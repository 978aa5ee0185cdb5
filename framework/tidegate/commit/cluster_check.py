"""Whether a job may continue, and what it may restore, on the Kafka cluster that its brokers form.

Offsets and transactional ids belong to one Kafka cluster. On another cluster an offset skips or
repeats records, and the coordinator knows none of the transactions that a publication lists. So
each claim asks for the id of the cluster, and each manifest holds the id of its own. Every manifest
is checked before it is restored, because a rollback or `--restore ID` may lead to an older one.

The module has three findings, from the most to the least surprising:

- A submission sees another cluster than at its first claim. An address has changed under a running
  job. ClusterMismatchError: the job restarts until the address leads to the first cluster again.
- The last publication lists transactions of another cluster that are not settled. Only that cluster
  can commit them, so they are neither forgotten nor called lost. RefusedError: the remedy is to
  start the job on that cluster once and to stop it. If that cluster no longer exists,
  `accept_data_loss` of a new submission abandons the transactions, and the journal records it
  (`abandon_foreign_transactions`).
- The manifest is of another cluster. RefusedError, unless the operator consents
  (`restore_to_other_cluster`): a mirror has the same offsets in every topic. The claim stores the
  consent. It holds for the cluster on which it was given, until a publication of that cluster
  exists.
"""

from __future__ import annotations

from tidegate.checkpoint.manifest import Manifest
from tidegate.commit.effects import Procedure, wall_clock
from tidegate.commit.journal.claimed import (
    ClaimedJournal,
    append_entry,
    header_after,
)
from tidegate.commit.journal.entries import LossAccepted, Lost
from tidegate.commit.journal.state import JournalState, PublicationRef
from tidegate.commit.publish import load_manifest
from tidegate.commit.retry import STORAGE_RETRY, RetryPolicy
from tidegate.commit.transactional_ids import transaction_system
from tidegate.errors import ClusterMismatchError, CorruptCheckpointError, RefusedError
from tidegate.ids import KAFKA, JobName
from tidegate.protocol.subtask_snapshot import PreparedTransaction


def refuse_other_cluster(
    job: JobName,
    state: JournalState,
    point: PublicationRef | None,
    cluster: str,
    *,
    first_claim: bool,
    consent: bool,
    accept_data_loss: bool,
) -> Procedure[None]:
    """Check the Kafka cluster before a claim, so that a refused start changes nothing.

    `point` is the publication that the job would restore, and `cluster` the Kafka cluster on which
    it would run. `first_claim` tells that the claim is the first of its submission; `consent` and
    `accept_data_loss` count only then.
    """
    if not first_claim and state.kafka_cluster not in {"", cluster}:
        raise ClusterMismatchError(
            f"Job {job!r} was submitted on Kafka cluster {state.kafka_cluster}, but "
            f"kafka.bootstrap_servers is now Kafka cluster {cluster}. Make these names those of "
            f"brokers of {state.kafka_cluster} again; or stop the job and submit it again to move "
            "it."
        )
    if point is not None:
        manifest = yield from load_manifest_if_readable(point)
        if manifest is not None:
            refuse_manifest(manifest, state, cluster, consent=first_claim and consent)
    foreign = foreign_transactions(state, cluster)
    if foreign and not (first_claim and accept_data_loss):
        raise RefusedError(_unsettled_message(job, state, foreign, cluster))


def refuse_manifest(
    manifest: Manifest, state: JournalState, cluster: str, *, consent: bool = False
) -> None:
    """Raise RefusedError for a manifest of another cluster than `cluster`, unless the operator has
    consented. The consent comes with this claim (`consent`), or from an earlier claim and still
    counts.
    """
    if is_other_cluster(manifest, cluster) and not consent and state.moved_to != cluster:
        raise RefusedError(
            f"Checkpoint {manifest.checkpoint} of job {manifest.job!r} belongs to Kafka cluster "
            f"{manifest.kafka_cluster}, but kafka.bootstrap_servers is Kafka cluster "
            f"{cluster}, where its offsets mean other records. Set kafka.bootstrap_servers to "
            f"brokers of {manifest.kafka_cluster}; or start without state, with --restore none; "
            f"or, only if {cluster} is a mirror with the same offsets in every topic, add "
            "--restore-to-other-cluster."
        )


def is_other_cluster(manifest: Manifest, cluster: str) -> bool:
    """Return whether a manifest was written on another Kafka cluster, to which its offsets and
    topic ids belong.
    """
    return manifest.kafka_cluster != cluster


def foreign_transactions(state: JournalState, cluster: str) -> tuple[PreparedTransaction, ...]:
    """Return the transactions that the last publication lists and that only another Kafka cluster
    can commit.
    """
    return tuple(
        txn
        for txn in state.pending_commits
        if txn.cluster_id != cluster and transaction_system(txn.transactional_id) == KAFKA
    )


def abandon_foreign_transactions(
    journal: ClaimedJournal, *, storage_retry: RetryPolicy = STORAGE_RETRY
) -> Procedure[tuple[PreparedTransaction, ...]]:
    """Record that transactions of another cluster are abandoned, and that this loss is accepted.
    Return these transactions.

    To be called after a claim. Only the operator's `accept_data_loss` lets a claim with such
    transactions pass.
    """
    abandoned = foreign_transactions(journal.state, journal.state.kafka_cluster)
    last = journal.state.publication
    if not abandoned or last is None:
        return ()
    now_ms = yield from wall_clock()
    age_s = max(0, now_ms - last.created_ms) / 1000
    header = yield from header_after(journal.state)
    lost = Lost(
        **header,
        attempt=journal.attempt,
        publication=last.number,
        transactions=abandoned,
        statement=(
            f"Job {journal.job!r} has abandoned {_describe_transactions(abandoned)}, of checkpoint "
            f"{last.checkpoint}, which was published {age_s:.0f} s before. The job continued on "
            f"Kafka cluster {journal.state.kafka_cluster} with --accept-data-loss. The records of "
            "these transactions do not appear."
        ),
    )
    yield from append_entry(journal, lost, storage_retry)
    header = yield from header_after(journal.state)
    accepted = LossAccepted(**header, lost=lost.number, submission_id=journal.submission_id)
    yield from append_entry(journal, accepted, storage_retry)
    return abandoned


def load_manifest_if_readable(point: PublicationRef) -> Procedure[Manifest | None]:
    """Return the manifest of a publication; None if it cannot be read.

    The restore reads it again and reports the error, after the listed transactions are committed.
    """
    try:
        return (yield from load_manifest(point))
    except CorruptCheckpointError:
        return None


def _unsettled_message(
    job: JobName, state: JournalState, foreign: tuple[PreparedTransaction, ...], cluster: str
) -> str:
    checkpoint = state.publication and state.publication.checkpoint
    where = foreign[0].cluster_id
    return (
        f"Checkpoint {checkpoint} of job {job!r} is published, but "
        f"{_describe_transactions(foreign)} may not be committed yet, and kafka.bootstrap_servers "
        f"is Kafka cluster {cluster}. To commit them, start the job once with "
        f"kafka.bootstrap_servers at brokers of {where}, and stop it. If {where} no longer exists, "
        "add --accept-data-loss: the records of these transactions are then lost; --restore ID of "
        "an older checkpoint writes them again."
    )


def _describe_transactions(transactions: tuple[PreparedTransaction, ...]) -> str:
    ids = ", ".join(txn.transactional_id for txn in transactions)
    return (
        f"{len(transactions)} of its transactions on Kafka cluster "
        f"{transactions[0].cluster_id} ({ids})"
    )
