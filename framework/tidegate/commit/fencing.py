"""Fencing: no transaction of a dead attempt stays open, and none that a zombie opens stays open
long.

Exactly-once relies on the claim and the publication. Fencing frees the readers of the output, which
wait behind an open transaction; for exactly-once it is a second protection. To fence an id means to
initialise it: that aborts its open transaction and locks out older producers. So an id that a
publication lists is never fenced, nor an id of a newer attempt (`decisions.may_fence`).

Ids with a complete transaction are not even listed. A producer writes one transaction, so no
transaction follows under such an id. A backfill of a thousand waves leaves hundreds of thousands of
them, and the brokers keep them for a week. All ids are listed if another journal, or an earlier
copy of this journal, has used the name. Then nothing is known of their producers. The claim id does
not parse, so it is never fenced here.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from tidegate.commit.decisions import may_fence
from tidegate.commit.effects import Procedure, fence, gather, list_transactions
from tidegate.commit.journal.claimed import ClaimedJournal
from tidegate.commit.retry import FENCE_RETRY, RetryPolicy, retry_request
from tidegate.commit.transactional_ids import job_prefix, parse_transactional_id
from tidegate.ids import Attempt, TransactionalId
from tidegate.ports.kafka import TransactionState

TransactionStates = dict[TransactionalId, TransactionState]


def fence_older_attempts(
    journal: ClaimedJournal,
    *,
    retry_policy: RetryPolicy = FENCE_RETRY,
    include_current_attempt: bool = False,
) -> Procedure[tuple[TransactionalId, ...]]:
    """Fence every id of older attempts except the complete ones, before the sources start. Return
    the fenced ids.

    With `include_current_attempt`, at the job's end, ids of this attempt are fenced too. A request
    that fails is repeated until the time of `retry_policy` is over.
    """
    state = journal.state
    taken_over = state.fences_other_journals and state.publication is None
    lists_complete_ids = taken_over or state.lost_attempt > 0
    listed = yield from _list_transactional_ids(
        journal, retry_policy, unfinished=not lists_complete_ids
    )
    to_fence = _fenceable(
        journal,
        listed,
        fenced_before=journal.fenced_before(),
        include_current_attempt=include_current_attempt,
    )
    if taken_over:
        to_fence += _ids_of_other_journals(journal, listed)
    to_fence += _ids_of_lost_attempts(journal, listed)
    yield from _fence_all(to_fence, retry_policy)
    return tuple(to_fence)


def fence_zombies(
    journal: ClaimedJournal, *, retry_policy: RetryPolicy = FENCE_RETRY
) -> Procedure[tuple[TransactionalId, ...]]:
    """Fence ids of older attempts that are open again, and return them. This does not write to the
    journal.

    To be repeated as long as the attempt lives, because a zombie may open an id that was not known
    before. It cannot commit anything.
    """
    listed = yield from _list_transactional_ids(journal, retry_policy, unfinished=True)
    fenced = _fenceable(
        journal, listed, fenced_before=journal.attempt, include_current_attempt=False
    )
    yield from _fence_all(fenced, retry_policy)
    return tuple(fenced)


def _list_transactional_ids(
    journal: ClaimedJournal, retry_policy: RetryPolicy, *, unfinished: bool
) -> Procedure[TransactionStates]:
    prefix = job_prefix(journal.job)
    asked = partial(list_transactions, prefix, unfinished=unfinished)
    return (yield from retry_request(asked, retry_policy))


def _fence_all(ids: Sequence[TransactionalId], retry_policy: RetryPolicy) -> Procedure[None]:
    yield from gather([retry_request(partial(fence, each), retry_policy) for each in ids])


def _fenceable(
    journal: ClaimedJournal,
    listed: TransactionStates,
    *,
    fenced_before: Attempt,
    include_current_attempt: bool,
) -> list[TransactionalId]:
    return [
        transactional_id
        for transactional_id, state in sorted(listed.items())
        if may_fence(
            parse_transactional_id(transactional_id),
            state,
            job=journal.job,
            journal_id=journal.journal_id,
            attempt=journal.attempt,
            pending=journal.pending_ids(),
            fenced_before=fenced_before,
            include_current_attempt=include_current_attempt,
        )
    ]


def _ids_of_lost_attempts(
    journal: ClaimedJournal, listed: TransactionStates
) -> list[TransactionalId]:
    """Return the ids of attempts whose entries the journal has lost. The journal will use their
    attempt numbers again, and may have used one for this attempt, which has not opened an id yet.
    """
    found = []
    for transactional_id in sorted(listed):
        parts = parse_transactional_id(transactional_id)
        if (
            parts is not None
            and (parts.job, parts.journal_id) == (journal.job, journal.journal_id)
            and journal.attempt <= parts.attempt <= journal.state.lost_attempt
            and transactional_id not in journal.pending_ids()
        ):
            found.append(transactional_id)
    return found


def _ids_of_other_journals(
    journal: ClaimedJournal, listed: TransactionStates
) -> list[TransactionalId]:
    """Return the ids of other journals under the job's name, which the operator has taken over.
    They are fenced until the first publication.
    """
    parsed = [(tid, parse_transactional_id(tid)) for tid in sorted(listed)]
    return [
        transactional_id
        for transactional_id, parts in parsed
        if parts is not None and parts.job == journal.job and parts.journal_id != journal.journal_id
    ]
