"""Publishing a checkpoint: the manifest, a last look at its transactions, and the journal entry.

Creating the entry is the commit point of the whole job. Before it, nothing is decided and any
failure only fails the checkpoint; after it, every transaction that it names will be committed.

A publication names what the last one named and was not seen ended, and everything prepared since: a
transaction is in every publication from its first until it is ended. One that was seen ended is
never named again, whatever an acknowledgement still says: its id may be in use for another
transaction.

Run under the caller's mutex of journal-writing procedures.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from tidegate.checkpoint.effects import (
    Procedure,
    describe,
    gather,
    read_object,
    write_object,
)
from tidegate.checkpoint.journal import Publication
from tidegate.checkpoint.journal_state import PublicationRef
from tidegate.checkpoint.manifest import (
    Manifest,
    decode_manifest,
    encode_manifest,
    file_digest,
    manifest_path,
)
from tidegate.checkpoint.procedures.claimed_journal import (
    ClaimedJournal,
    append_entry,
    header_after,
)
from tidegate.checkpoint.procedures.retry import (
    DESCRIBE_RETRY,
    STORAGE_RETRY,
    RetryPolicy,
    never,
    retry_kafka,
)
from tidegate.checkpoint.procedures.topics import ask_topic_ids, check_topics
from tidegate.checkpoint.recovery import is_as_prepared
from tidegate.errors import TransactionError, check
from tidegate.ids import CheckpointId, JournalNumber
from tidegate.protocol.snapshots import PreparedTransaction, SourceSplit


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedCheckpoint:
    """A checkpoint that stands in the journal."""

    number: JournalNumber
    checkpoint: CheckpointId
    named: tuple[PreparedTransaction, ...]
    """To be ended by `commit`."""
    freed: tuple[PreparedTransaction, ...]
    """Named before and not any more: their ids may be used again."""


def publish(
    journal: ClaimedJournal,
    manifest: Manifest,
    transactions: Sequence[PreparedTransaction],
    *,
    stopped: bool = False,
    checking: RetryPolicy = DESCRIBE_RETRY,
    storing: RetryPolicy = STORAGE_RETRY,
    given_up: Callable[[], bool] = never,
) -> Procedure[PublishedCheckpoint]:
    """Publish. `transactions` are all that subtasks prepared and were not told are ended;
    `stopped`: it is the final checkpoint that a user's stop asked for. `given_up` says whether the
    attempt is over: then a question that Kafka does not answer is not asked again, and the
    checkpoint has failed. The next recovery waits behind it, perhaps for the same answer.

    StorageError, KafkaError: nothing was published, the checkpoint has failed. TransactionError: a
    prepared transaction is gone; the attempt must end, and loses nothing. SourceChangedError: a
    topic is not the one that was read; nothing was published, and the job must end.
    OutcomeUnknownError: the attempt must end and leave its transactions alone. FencedError: the
    process must exit.
    """
    check(manifest.checkpoint.attempt == journal.attempt, "a checkpoint of another attempt")
    path, data = manifest_path(journal.job, manifest.checkpoint), encode_manifest(manifest)
    yield from write_object(path, data)
    before = journal.state.named
    named = names(journal, transactions)
    first_named = tuple(txn for txn in named if txn not in before)
    yield from _check_prepared(first_named, manifest.splits, checking, given_up)
    header = yield from header_after(journal.state)
    entry = Publication(
        **header,
        attempt=journal.attempt,
        checkpoint=manifest.checkpoint,
        submission=journal.submission,
        manifest=path,
        sha256=file_digest(data),
        transactions=named,
        final=manifest.final,
        stopped=stopped,
    )
    yield from append_entry(journal, entry, storing)
    # Once an acknowledgement comes without it, a subtask knows that it is ended and names it no
    # more.
    journal.ended &= set(transactions)
    return PublishedCheckpoint(
        number=entry.number,
        checkpoint=manifest.checkpoint,
        named=named,
        freed=tuple(txn for txn in before if txn not in named),
    )


def names(
    journal: ClaimedJournal, transactions: Sequence[PreparedTransaction]
) -> tuple[PreparedTransaction, ...]:
    """What the next publication names, oldest first."""
    both = dict.fromkeys((*journal.uncommitted, *transactions))
    return tuple(txn for txn in both if txn not in journal.ended)


def load_manifest(ref: PublicationRef | Publication) -> Procedure[Manifest]:
    """The manifest of a publication; CorruptCheckpointError if it is not the recorded file."""
    data = yield from read_object(ref.manifest)
    return decode_manifest(data, ref.manifest, ref.sha256)


def _check_prepared(
    transactions: Sequence[PreparedTransaction],
    splits: Sequence[SourceSplit],
    patience: RetryPolicy,
    given_up: Callable[[], bool],
) -> Procedure[None]:
    """Every transaction that is named for the first time must be open as it was prepared, and every
    topic must be the one that was read. Both are asked for at the same time.
    """
    asked: list[Procedure[Any]] = [
        retry_kafka(partial(describe, transaction), patience, given_up)
        for transaction in transactions
    ]
    facts: list[Any] = yield from gather([*asked, ask_topic_ids(splits, patience, given_up)])
    yield from check_topics(splits, facts.pop(), patience)
    for transaction, said in zip(transactions, facts, strict=True):
        if not is_as_prepared(transaction, said):
            state = "it does not know the id" if said is None else f"it says {said}"
            message = (
                f"transaction {transaction.transactional_id} (producer {transaction.producer_id}, "
                f"epoch {transaction.epoch}) was prepared, but is not open any more at Kafka: "
                f"{state}. Nothing is lost: the job restarts from its last published checkpoint"
            )
            raise TransactionError(message)
