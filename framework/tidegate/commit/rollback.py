"""The rollback of a publication that cannot be completed, while none of its output is visible.

The broker has aborted a transaction that the last publication lists. If every transaction that this
publication was the first to list is open or proven to be aborted, no reader has seen any of their
records. Then the open ones are aborted and a `RolledBack` entry is written. The job continues from
the publication before it and writes the output after it again. Otherwise the loss is stated
(`settle.py`).

EndTxn aborts the transactions, never a fence. EndTxn(abort) cannot change a transaction that a late
EndTxn(commit) has committed meanwhile, and the broker still shows which of the two it was. A fence
would hide it. So the check is repeated after each round, and if a commit was faster, the loss is
stated.

Only `recover` and `close` run this. An attempt with tasks does not roll back its own publication:
it ends, and the next attempt decides. Procedures that write to the journal run one at a time; the
caller guarantees this.
"""

from __future__ import annotations

from tidegate.commit.committer import (
    Descriptions,
    describe_all,
    not_completed,
    send_end_txn,
)
from tidegate.commit.decisions import decide, is_as_prepared, may_roll_back
from tidegate.commit.effects import Procedure
from tidegate.commit.journal.claimed import (
    ClaimedJournal,
    append_entry,
    header_after,
)
from tidegate.commit.journal.entries import RolledBack
from tidegate.commit.retry import RetryLoop, RetryPolicy
from tidegate.ids import CheckpointId
from tidegate.message_text import counted


def roll_back(
    journal: ClaimedJournal, *, commit_retry: RetryPolicy, storage_retry: RetryPolicy
) -> Procedure[tuple[CheckpointId, ...]]:
    """Roll back the last publication, then the one before it, and so on, while one of the listed
    transactions is lost and a rollback is allowed. Return their checkpoints, newest first.

    TransactionSystemError if a coordinator does not answer in time. FencedError, StorageError and
    OutcomeUnknownError as for any procedure that writes to the journal.
    """
    rolled_back: list[CheckpointId] = []
    while (last := journal.state.publication) is not None:
        if not (yield from _abort_introduced(journal, commit_retry)):
            break
        header = yield from header_after(journal.state)
        entry = RolledBack(
            **header,
            attempt=journal.attempt,
            publication=last.number,
            aborted=journal.state.introduced,
        )
        yield from append_entry(journal, entry, storage_retry)
        rolled_back.append(last.checkpoint)
    return tuple(rolled_back)


def can_still_roll_back(journal: ClaimedJournal) -> bool:
    """Return whether the next attempt may find that the last publication can be rolled back. This
    is so while none of the transactions that it was the first to list is known to be committed.
    """
    state = journal.state
    return not state.irrevocable and not any(txn in journal.ended for txn in state.introduced)


def _abort_introduced(journal: ClaimedJournal, retry_policy: RetryPolicy) -> Procedure[bool]:
    """Abort the transactions that the last publication was the first to list.

    Return False if the publication stays: no transaction is lost, or not all of these transactions
    are certain to be aborted.
    """
    introduced, waiting = journal.state.introduced, RetryLoop(retry_policy)
    while True:
        descriptions = yield from describe_all(journal.state.pending_commits, retry_policy)
        if not _is_rollback_allowed(journal, descriptions):
            return False
        open_ = [txn for txn in introduced if is_as_prepared(txn, descriptions[txn])]
        if not open_:
            return True
        failure = yield from send_end_txn(open_, commit=False)
        if not (yield from waiting.wait()):
            message = (
                f"The coordinators did not abort {counted(len(open_), 'transaction')} of a "
                f"checkpoint that is to be rolled back in {retry_policy.timeout_s:g} s, among them "
                f"{open_[0].transactional_id}; the job restarts and retries."
            )
            raise failure or not_completed(open_, message)


def _is_rollback_allowed(journal: ClaimedJournal, descriptions: Descriptions) -> bool:
    state = journal.state
    decision = decide(state.pending_commits, settled=state.settled, descriptions=descriptions)
    return may_roll_back(
        state.introduced,
        lost=any(txn not in journal.ended for txn in decision.lost),
        irrevocable=state.irrevocable,
        ended=journal.ended,
        descriptions=descriptions,
    )
