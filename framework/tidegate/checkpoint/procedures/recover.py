"""What an attempt does between its claim and its deployment, and what a job does at its end.

Recovery, in this order: read everything that the broker says of the named transactions, decide for
all of them together, end them, write it down, and only then fence what is not named. The order is
the protocol's: fencing first would abort what is published.
"""

from __future__ import annotations

from dataclasses import dataclass

from tidegate.checkpoint.effects import Procedure
from tidegate.checkpoint.journal import Closed
from tidegate.checkpoint.procedures.ending import Ended, end_transactions, examine
from tidegate.checkpoint.procedures.fencing import fence_older
from tidegate.checkpoint.procedures.own_journal import OwnJournal, append, header_after
from tidegate.checkpoint.procedures.patience import ENDING, FENCING, STORING, Patience
from tidegate.checkpoint.procedures.settle import settle
from tidegate.checkpoint.recovery import decide, is_complete
from tidegate.errors import DataLossError, OutcomeUnknownError
from tidegate.ids import TransactionalId
from tidegate.protocol.snapshots import PreparedTransaction


@dataclass(frozen=True, slots=True, kw_only=True)
class Recovered:
    """What recovery did; for the log."""

    ended: tuple[PreparedTransaction, ...]
    fenced: tuple[TransactionalId, ...]


def recover(
    journal: OwnJournal,
    *,
    ending: Patience = ENDING,
    fencing: Patience = FENCING,
    storing: Patience = STORING,
) -> Procedure[Recovered]:
    """Settle the last publication and fence what older attempts left. Then the job may be deployed.

    `ending` bounds the time for which Kafka may be away: the transaction timeout. DataLossError if
    the broker has aborted something that is named, KafkaError if it can not be asked in time.
    """
    try:
        ended = yield from _settle_last(journal, ending, storing)
    except DataLossError:
        # The job stays failed, perhaps for long: readers must not stand still behind what died.
        yield from fence_older(journal, patience=fencing)
        raise
    fenced = yield from fence_older(journal, patience=fencing)
    return Recovered(ended=ended, fenced=fenced)


def close(
    journal: OwnJournal,
    outcome: str,
    *,
    ending: Patience = ENDING,
    fencing: Patience = FENCING,
    storing: Patience = STORING,
) -> Procedure[None]:
    """End the job for good: settle, fence all ids, this attempt's too, and close the journal.

    `outcome` is `finished`, `canceled` or `failed`. To be called when no task of the attempt runs
    any more. What was prepared and never published is aborted by it. After a loss was stated it
    only fences and closes; the loss remains to be accepted. OutcomeUnknownError, with nothing done,
    for a journal that is in doubt: what it does not know to be published it would abort.
    """
    if journal.in_doubt:
        message = (
            f"it is not known what the last entry of job {journal.job!r} is; it must be claimed "
            "anew before it can be closed"
        )
        raise OutcomeUnknownError(message)
    if journal.state.lost is None:
        yield from _settle_last(journal, ending, storing)
    yield from fence_older(journal, patience=fencing, own_too=True)
    header = yield from header_after(journal.state)
    entry = Closed(**header, attempt=journal.attempt, outcome=outcome)
    yield from append(journal, entry, storing)


def _settle_last(
    journal: OwnJournal, ending: Patience, storing: Patience
) -> Procedure[tuple[PreparedTransaction, ...]]:
    named = journal.unended
    facts = yield from examine(named, ending)
    decision = decide(named, settled=journal.state.settled, facts=facts)
    complete = tuple(txn for txn in decision.done if is_complete(txn, facts[txn]))
    open_ = tuple(txn for txn in named if txn not in complete and txn not in decision.lost)
    result = yield from end_transactions(open_, settled=False, patience=ending)
    ended = (*complete, *result.ended)
    lost = (*decision.lost, *result.lost)
    yield from settle(journal, Ended(ended=ended, lost=lost), ending=ending, storing=storing)
    return ended
