"""The publication of a checkpoint: the manifest, a check of its transactions, and the journal
entry.

The creation of the entry is the commit point of the whole job. Before it, nothing is decided, and a
failure only fails the checkpoint. After it, every transaction that the entry lists will be
committed.

A publication lists the transactions of the last one that were not seen committed, and every
transaction that was prepared since. So a transaction is in every publication from its first one
until it is committed. A transaction that was seen committed is never listed again, even if an
acknowledgement still contains it: its id may be in use for another transaction.

Procedures that write to the journal run one at a time; the caller guarantees this.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from tidegate.checkpoint.manifest import (
    Manifest,
    decode_manifest,
    encode_manifest,
    file_digest,
    manifest_path,
)
from tidegate.checkpoint.source_changes import find_topic_change
from tidegate.commit.confirmation import RENEW_CLIENT_S, Confirmation
from tidegate.commit.decisions import is_as_prepared
from tidegate.commit.effects import (
    Procedure,
    describe,
    gather,
    now,
    pause,
    read_object,
    topic_ids,
    write_object,
)
from tidegate.commit.journal.claimed import (
    ClaimedJournal,
    append_entry,
    header_after,
)
from tidegate.commit.journal.entries import Publication
from tidegate.commit.journal.state import PublicationRef
from tidegate.commit.retry import (
    DESCRIBE_RETRY,
    STORAGE_RETRY,
    RetryPolicy,
    never_canceled,
    retry_request,
)
from tidegate.errors import TransactionError, check
from tidegate.ids import CheckpointId, JournalNumber
from tidegate.protocol.subtask_snapshot import PreparedTransaction, SourceSplit


def ask_topic_ids(
    splits: Sequence[SourceSplit],
    retry_policy: RetryPolicy,
    is_canceled: Callable[[], bool] = never_canceled,
) -> Procedure[dict[str, str]]:
    """Return the present ids of those topics whose ids were stored."""
    topics = frozenset(split.topic for split in splits if split.topic_id)
    return (yield from retry_request(partial(topic_ids, topics), retry_policy, is_canceled))


def check_topics(
    splits: Sequence[SourceSplit], now_have: Mapping[str, str], retry_policy: RetryPolicy
) -> Procedure[None]:
    """Compare stored ids with present ones. SourceChangedError for a difference that the brokers
    repeat for ten seconds.

    A topic may be created again while the job runs, and grow beyond the old positions before a
    reader learns of it. The reader then continues in the middle of another log, and nothing fails.
    Kafka never uses a topic id twice. So the check runs when all subtasks have acknowledged. If
    Kafka still has the id with which the job began, everything up to the barrier was read from that
    topic.
    """
    confirmation = Confirmation()
    while (change := find_topic_change(splits, now_have)) is not None:
        now_s = yield from now()
        if confirmation.observe(change.finding, now_s):
            raise change
        yield from pause(RENEW_CLIENT_S)
        now_have = yield from ask_topic_ids(splits, retry_policy)


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedCheckpoint:
    """A checkpoint that is in the journal."""

    number: JournalNumber
    checkpoint: CheckpointId
    pending: tuple[PreparedTransaction, ...]
    """The listed transactions, which `commit` has to end."""
    reusable: tuple[PreparedTransaction, ...]
    """Transactions that the publication before listed and this one does not: their ids may be used
    again.
    """


def publish(
    journal: ClaimedJournal,
    manifest: Manifest,
    transactions: Sequence[PreparedTransaction],
    *,
    stopped: bool = False,
    describe_retry: RetryPolicy = DESCRIBE_RETRY,
    storage_retry: RetryPolicy = STORAGE_RETRY,
    is_canceled: Callable[[], bool] = never_canceled,
) -> Procedure[PublishedCheckpoint]:
    """Publish a checkpoint. `transactions` are all transactions that subtasks have prepared and
    that were not reported to them as committed. `stopped` tells that a user's stop asked for this
    final checkpoint. `is_canceled` tells whether the attempt is over. A request that Kafka does not
    answer is then not repeated, and the checkpoint fails. The next recovery waits until this call
    returns, perhaps for the same answer.

    StorageError, TransactionSystemError: nothing was published, and the checkpoint has failed.
    TransactionError: a prepared transaction is gone; the attempt must end, and loses nothing.
    SourceChangedError: a topic is not the one that was read; nothing was published, and the job
    must end. OutcomeUnknownError: the attempt must end and must not touch its transactions.
    FencedError: the process must exit.
    """
    check(manifest.checkpoint.attempt == journal.attempt, "a checkpoint of another attempt")
    path, data = manifest_path(journal.job, manifest.checkpoint), encode_manifest(manifest)
    yield from write_object(path, data)
    before = journal.state.pending_commits
    pending = list_transactions(journal, transactions)
    introduced = tuple(txn for txn in pending if txn not in before)
    yield from _check_prepared(introduced, manifest.splits, describe_retry, is_canceled)
    header = yield from header_after(journal.state)
    entry = Publication(
        **header,
        attempt=journal.attempt,
        checkpoint=manifest.checkpoint,
        submission_id=journal.submission_id,
        manifest=path,
        sha256=file_digest(data),
        transactions=pending,
        final=manifest.final,
        stopped=stopped,
    )
    yield from append_entry(journal, entry, storage_retry)
    # A subtask that acknowledges without a transaction knows that it is committed, and never
    # acknowledges it again.
    journal.ended &= set(transactions)
    return PublishedCheckpoint(
        number=entry.number,
        checkpoint=manifest.checkpoint,
        pending=pending,
        reusable=tuple(txn for txn in before if txn not in pending),
    )


def list_transactions(
    journal: ClaimedJournal, transactions: Sequence[PreparedTransaction]
) -> tuple[PreparedTransaction, ...]:
    """Return the transactions that the next publication lists, those of earlier
    publications first.
    """
    both = dict.fromkeys((*journal.uncommitted, *transactions))
    return tuple(txn for txn in both if txn not in journal.ended)


def load_manifest(ref: PublicationRef | Publication) -> Procedure[Manifest]:
    """Return the manifest of a publication; CorruptCheckpointError if it is not the
    recorded file.
    """
    data = yield from read_object(ref.manifest)
    return decode_manifest(data, ref.manifest, ref.sha256)


def _check_prepared(
    transactions: Sequence[PreparedTransaction],
    splits: Sequence[SourceSplit],
    retry_policy: RetryPolicy,
    is_canceled: Callable[[], bool],
) -> Procedure[None]:
    """Check that every transaction that is listed for the first time is open as it was prepared,
    and that every topic is the one that was read. Both requests go out at the same time.
    """
    asked: list[Procedure[Any]] = [
        retry_request(partial(describe, transaction), retry_policy, is_canceled)
        for transaction in transactions
    ]
    descriptions: list[Any] = yield from gather(
        [*asked, ask_topic_ids(splits, retry_policy, is_canceled)]
    )
    yield from check_topics(splits, descriptions.pop(), retry_policy)
    for transaction, description in zip(transactions, descriptions, strict=True):
        if not is_as_prepared(transaction, description):
            state = "it does not know the id" if description is None else f"it says {description}"
            message = (
                f"Transaction {transaction.transactional_id} (producer {transaction.producer_id}, "
                f"epoch {transaction.epoch}) was prepared, but is not open any more at its "
                f"coordinator: {state}. Nothing is lost: the job restarts from its last published "
                "checkpoint."
            )
            raise TransactionError(message)
