"""The claim id: a short proof that no attempt is newer than the journal's newest claim.

A journal that was restored from a backup lacks its newest claims (`lost_tail.py`). A list of all
transactional ids of the job shows them, but takes seconds if a backfill has left hundreds of
thousands of ids. So each journal has one more id, the claim id. A claim initialises it before it is
written, and contains the producer id and the epoch that the id has then: the claim's producer. If
Kafka still has the producer of the newest claim, no later claim of an attempt that opens ids was
made, and the list is not needed.

This holds only for a producer that `proves`, which is the invariant of this module. No other
process has initialised the id between the claim before and this one. And the claim before proves
too, or this process has listed all ids since. So a claim proves nothing if the journal was put back
to an older copy before it or meanwhile. After such a claim, the next one lists, and proves again.

No process writes a transaction under the claim id. It expires as other ids do, and an unknown id
proves nothing. Neither the order in which ids expire nor any clock matters.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Final

import msgspec

from tidegate.commit.effects import Procedure, cluster_id, describe, fence, list_transactions
from tidegate.commit.journal.entries import ClaimProducer
from tidegate.commit.journal.reading import read_journal
from tidegate.commit.journal.state import JournalState
from tidegate.commit.retry import FENCE_RETRY, retry_request
from tidegate.commit.transactional_ids import claim_id, job_prefix
from tidegate.errors import KafkaNotAuthorisedError
from tidegate.ids import JobName, TransactionalId
from tidegate.ports.kafka import TransactionDescription
from tidegate.protocol.subtask_snapshot import PreparedTransaction

NO_TRANSACTION: Final = -1
"""The start time of an id without a transaction."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownAttempts:
    """The answer of Kafka about a journal's attempts, before a claim."""

    cluster: str
    """The Kafka cluster that answered."""
    newest_proven: int = 0
    """The journal's newest attempt, if the claim id proves that no newer one has opened ids. Else
    0.
    """
    listed: tuple[TransactionalId, ...] = ()
    """All ids under the job's prefix, if the claim id proves nothing."""
    listed_after: ClaimProducer | None = None
    """The producer of the newest claim before the list was made."""


def read_with_attempts(
    job: JobName, *, asks_kafka: bool
) -> Procedure[tuple[KnownAttempts, JournalState]]:
    """Read the journal, and ask Kafka which of its attempts it knows. Without `asks_kafka`, only
    the cluster's id is asked for.

    If the claim id proves nothing, all ids are listed, and the journal is read again after that. An
    attempt whose claim is written in between would otherwise look like one of another journal, or
    like one whose entries are lost.
    """
    cluster = yield from retry_request(cluster_id, FENCE_RETRY)
    state = yield from read_journal(job)
    if not asks_kafka:
        return KnownAttempts(cluster=cluster), state
    producer = state.producer
    if producer is not None and producer.proves:
        found = yield from _describe(job, state.journal_id, cluster)
        if _is_current(producer, cluster, found):
            return KnownAttempts(cluster=cluster, newest_proven=state.attempt), state
    listed = yield from retry_request(partial(list_transactions, job_prefix(job)), FENCE_RETRY)
    known = KnownAttempts(cluster=cluster, listed=tuple(listed), listed_after=producer)
    return known, (yield from read_journal(job))


def initialise(
    job: JobName, journal_id: str, state: JournalState, known: KnownAttempts
) -> Procedure[ClaimProducer | None]:
    """Initialise the claim id, and return the producer of the claim that follows `state`.

    To be called after the entry before the claim was read, and again for each try to write the
    claim. A request that is sent again counts as one of another process: the next claim then lists.
    """
    yield from retry_request(partial(fence, claim_id(job, journal_id)), FENCE_RETRY)
    now, before = (yield from _describe(job, journal_id, known.cluster)), state.producer
    if now is None:
        return None
    if before is None:
        proves = not state.number and now.epoch == 0
    else:
        following = msgspec.structs.replace(before, epoch=before.epoch + 1)
        sure = before.proves or before == known.listed_after
        proves = sure and _is_current(following, known.cluster, now)
    return ClaimProducer(
        cluster_id=known.cluster, producer_id=now.producer_id, epoch=now.epoch, proves=proves
    )


def _is_current(
    producer: ClaimProducer, cluster: str, found: TransactionDescription | None
) -> bool:
    """Return whether Kafka has this producer."""
    return found is not None and (cluster, found.producer_id, found.epoch) == (
        producer.cluster_id,
        producer.producer_id,
        producer.epoch,
    )


def _describe(
    job: JobName, journal_id: str, cluster: str
) -> Procedure[TransactionDescription | None]:
    """Return the answer of Kafka about the claim id. None if Kafka does not know it, or if this
    principal may not describe it.
    """
    asked = PreparedTransaction(
        cluster_id=cluster,
        transactional_id=claim_id(job, journal_id),
        producer_id=0,
        epoch=0,
        start_ms=NO_TRANSACTION,
    )

    def once() -> Procedure[TransactionDescription | None]:
        try:
            return (yield from describe(asked))
        except KafkaNotAuthorisedError:
            return None

    return (yield from retry_request(once, FENCE_RETRY))
