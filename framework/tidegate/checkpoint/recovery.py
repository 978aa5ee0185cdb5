"""What becomes of a named transaction, and which transactional ids may be fenced.

The decision table of the commit protocol, as pure functions of facts: everything is read first,
then one call decides for all named transactions together, then the procedures carry it out. The
same table serves the normal case (after a publication) and recovery (after a claim). Nothing here
asks Kafka.

Keeps invariant 2 (every named transaction is committed, or the job fails loudly) and the fencing
half of invariant 3 (nobody fences an id of a newer attempt, or one that an unsettled publication
names).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from tidegate.checkpoint.transactional_ids import TransactionalIdParts
from tidegate.ids import Attempt, JobName, TransactionalId
from tidegate.ports.kafka import TransactionDescription, TransactionState
from tidegate.protocol.snapshots import PreparedTransaction

COMMITTED: Final = frozenset({TransactionState.PREPARE_COMMIT, TransactionState.COMPLETE_COMMIT})
"""The coordinator has written the decision to commit; it completes by itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """Every named transaction, in exactly one of the three lists, each in the order of the
    names.
    """

    end: tuple[PreparedTransaction, ...]
    """Open: send EndTxn(commit)."""
    done: tuple[PreparedTransaction, ...]
    """Committed, or certain to be."""
    lost: tuple[PreparedTransaction, ...]
    """Aborted by the broker, or by an intruder."""


def decide(
    named: Sequence[PreparedTransaction],
    *,
    settled: bool,
    facts: Mapping[PreparedTransaction, TransactionDescription | None],
) -> Decision:
    """Decide for all named transactions of the last publication together.

    `settled`: the journal says that this publication is. `facts` holds one answer of the broker per
    named transaction, None where it does not know the id; a transaction whose broker could not be
    asked must be asked again, never left out.
    """
    end: list[PreparedTransaction] = []
    done: list[PreparedTransaction] = []
    lost: list[PreparedTransaction] = []
    for transaction in named:
        said = facts[transaction]
        if said is not None and _same_producer(transaction, said):
            if said.state is TransactionState.ONGOING and said.start_ms == transaction.start_ms:
                end.append(transaction)
                continue
            if said.state in COMMITTED:
                done.append(transaction)
                continue
        (done if settled else lost).append(transaction)
    return Decision(end=tuple(end), done=tuple(done), lost=tuple(lost))


ABORTED: Final = frozenset({TransactionState.PREPARE_ABORT, TransactionState.COMPLETE_ABORT})
"""The coordinator has written the decision to abort; it completes by itself."""


def may_roll_back(
    own: Sequence[PreparedTransaction],
    *,
    lost: bool,
    firm: bool,
    ended: Collection[PreparedTransaction],
    facts: Mapping[PreparedTransaction, TransactionDescription | None],
) -> bool:
    """Whether a publication with a loss may be taken back instead of stating the loss.

    `own` is what it was the first to name: each must be open, or proven to have been aborted.
    `firm` and `ended` (seen CompleteCommit): what the journal and the attempt know to be committed.
    """
    if not lost or firm or any(txn in ended for txn in own):
        return False
    return all(is_as_prepared(txn, facts[txn]) or was_aborted(txn, facts[txn]) for txn in own)


def was_aborted(transaction: PreparedTransaction, said: TransactionDescription | None) -> bool:
    """Proof that the transaction was never committed.

    An abort leaves the start time in place; the epoch stays (EndTxn) or grows by one (a timeout, or
    the first half of a fence). A fence that was carried through leaves Empty, a higher epoch and no
    start time, and two of them leave the same of a committed transaction: that is no proof, nor is
    an id that the broker does not know any more.
    """
    return (
        said is not None
        and said.state in ABORTED
        and said.producer_id == transaction.producer_id
        and said.epoch in (transaction.epoch, transaction.epoch + 1)
        and said.start_ms == transaction.start_ms
    )


def is_complete(transaction: PreparedTransaction, said: TransactionDescription | None) -> bool:
    """The transaction was seen CompleteCommit, which is what settles it."""
    return (
        said is not None
        and _same_producer(transaction, said)
        and said.state is TransactionState.COMPLETE_COMMIT
    )


def is_as_prepared(transaction: PreparedTransaction, said: TransactionDescription | None) -> bool:
    """The transaction is open exactly as it was recorded at the barrier."""
    return (
        said is not None
        and _same_producer(transaction, said)
        and said.state is TransactionState.ONGOING
        and said.start_ms == transaction.start_ms
    )


def may_fence(
    parts: TransactionalIdParts | None,
    state: TransactionState,
    *,
    job: JobName,
    journal: str,
    attempt: Attempt,
    named: Collection[TransactionalId],
    swept: Attempt,
    own_too: bool = False,
) -> bool:
    """Whether an attempt may fence a listed transactional id (`parts` is None if it did not parse).

    Only ids of this job and journal, only of strictly older attempts (`own_too`: at the job's end
    also of this one), never one in `named`, which an unsettled publication names. Ids of attempts
    older than `swept` were fenced once in any state; they are fenced again only if open, or the
    broker could never expire them.
    """
    if parts is None or parts.job != job or parts.journal != journal:
        return False
    if parts.attempt > attempt or (parts.attempt == attempt and not own_too):
        return False
    if str(parts) in named:
        return False
    return parts.attempt >= swept or state is TransactionState.ONGOING


def _same_producer(transaction: PreparedTransaction, said: TransactionDescription) -> bool:
    return (said.producer_id, said.epoch) == (transaction.producer_id, transaction.epoch)
