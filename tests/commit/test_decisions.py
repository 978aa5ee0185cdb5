"""The decision table of recovery, row by row, and who may be fenced."""

from __future__ import annotations

from typing import Any

import pytest

from tests.checkpoint.examples import described, txn
from tidegate.commit.decisions import (
    decide,
    is_as_prepared,
    is_complete,
    may_fence,
    may_roll_back,
    was_aborted,
)
from tidegate.commit.transactional_ids import TransactionalIdParts
from tidegate.ids import Attempt, JobName, SubtaskIndex, TransactionalId, Uid
from tidegate.ports.kafka import TransactionDescription, TransactionState
from tidegate.protocol.subtask_snapshot import PreparedTransaction

S = TransactionState
T = txn(1)
OTHERS = [S.EMPTY, S.PREPARE_ABORT, S.COMPLETE_ABORT, S.DEAD, S.PREPARE_EPOCH_FENCE]

ROWS: list[tuple[str, TransactionDescription | None, str, str]] = [
    # what the broker says; then the decision without and with `settled`
    ("open", described(T, S.ONGOING), "end", "end"),
    ("committing", described(T, S.PREPARE_COMMIT), "done", "done"),
    ("committed", described(T, S.COMPLETE_COMMIT), "done", "done"),
    ("committed, start time gone", described(T, S.COMPLETE_COMMIT, start_ms=-1), "done", "done"),
    ("open with another start", described(T, S.ONGOING, start_ms=9), "lost", "done"),
    ("open with another epoch", described(T, S.ONGOING, epoch=1), "lost", "done"),
    ("open with another producer", described(T, S.ONGOING, producer_id=9), "lost", "done"),
    ("committed with another epoch", described(T, S.COMPLETE_COMMIT, epoch=1), "lost", "done"),
    (
        "committed by another producer",
        described(T, S.COMPLETE_COMMIT, producer_id=9),
        "lost",
        "done",
    ),
    ("not known", None, "lost", "done"),
    *[(state.value, described(T, state), "lost", "done") for state in OTHERS],
]


@pytest.mark.parametrize(("description", "unsettled", "settled"), [row[1:] for row in ROWS])
def test_recovery_decides_each_transaction_by_its_broker_description(
    description: TransactionDescription | None, unsettled: str, settled: str
) -> None:
    for known, expected in ((False, unsettled), (True, settled)):
        decision = decide([T], settled=known, descriptions={T: description})
        for name in ("end", "done", "lost"):
            assert getattr(decision, name) == ((T,) if name == expected else ())


def test_decision_table_covers_every_transaction_state() -> None:
    description = {row[1].state for row in ROWS if row[1] is not None}
    assert description == set(TransactionState)


def test_decision_keeps_the_order_of_the_pending_transactions() -> None:
    pending = [txn(n) for n in range(6)]
    states = [S.ONGOING, S.COMPLETE_ABORT, S.COMPLETE_COMMIT] * 2
    description = {one: described(one, state) for one, state in zip(pending, states, strict=True)}
    decision = decide(pending, settled=False, descriptions=description)
    assert decision.end == (pending[0], pending[3])
    assert decision.lost == (pending[1], pending[4])
    assert decision.done == (pending[2], pending[5])


PROOFS: list[tuple[str, TransactionDescription | None, bool]] = [
    ("ended by abort", described(T, S.COMPLETE_ABORT), True),
    ("aborting", described(T, S.PREPARE_ABORT), True),
    ("timed out, or fenced by half", described(T, S.COMPLETE_ABORT, epoch=T.epoch + 1), True),
    ("timing out", described(T, S.PREPARE_ABORT, epoch=T.epoch + 1), True),
    (
        "a later transaction of the id was aborted",
        described(T, S.COMPLETE_ABORT, start_ms=9),
        False,
    ),
    ("two epochs on", described(T, S.COMPLETE_ABORT, epoch=T.epoch + 2), False),
    ("another producer", described(T, S.COMPLETE_ABORT, producer_id=9), False),
    ("fenced: committed before, or not", described(T, S.EMPTY, epoch=2, start_ms=-1), False),
    ("committed", described(T, S.COMPLETE_COMMIT), False),
    ("open", described(T, S.ONGOING), False),
    ("not known", None, False),
]


@pytest.mark.parametrize(("description", "proven"), [row[1:] for row in PROOFS])
def test_abort_is_proven_only_by_an_aborted_state_of_the_same_transaction(
    description: TransactionDescription | None, proven: bool
) -> None:
    assert was_aborted(T, description) is proven


def test_publication_is_rolled_back_only_if_its_own_transactions_are_open_or_aborted() -> None:
    open_, gone, committed, fenced = (txn(n) for n in range(4))
    description = {
        open_: described(open_, S.ONGOING),
        gone: described(gone, S.COMPLETE_ABORT, epoch=1),
        committed: described(committed, S.COMPLETE_COMMIT),
        fenced: described(fenced, S.EMPTY, epoch=2),
    }

    def ask(*introduced: PreparedTransaction, **known: Any) -> bool:
        known = {"lost": True, "irrevocable": False, "ended": (), **known}
        return may_roll_back(introduced, descriptions=description, **known)

    assert ask(open_, gone)
    assert ask(), "what is lost is of the publication before"
    assert not ask(open_, gone, lost=False)
    assert not ask(open_, gone, irrevocable=True)
    assert not ask(open_, gone, ended=(gone,)), "the attempt has seen it committed"
    assert not ask(open_, gone, committed)
    assert not ask(open_, gone, fenced)


def test_decision_raises_key_error_for_a_transaction_without_a_description() -> None:
    with pytest.raises(KeyError):
        decide([T, txn(2)], settled=True, descriptions={T: None})


def test_transaction_is_complete_only_if_described_as_complete_commit() -> None:
    assert is_complete(T, described(T, S.COMPLETE_COMMIT))
    assert not is_complete(T, described(T, S.PREPARE_COMMIT))
    assert not is_complete(T, described(T, S.COMPLETE_COMMIT, epoch=1))
    assert not is_complete(T, None)


def test_transaction_is_as_prepared_only_if_state_and_identity_all_match() -> None:
    assert is_as_prepared(T, described(T, S.ONGOING))
    for description in (
        None,
        described(T, S.PREPARE_COMMIT),
        described(T, S.ONGOING, epoch=1),
        described(T, S.ONGOING, start_ms=1),
        described(T, S.ONGOING, producer_id=1),
    ):
        assert not is_as_prepared(T, description)


def parts(*, job: str = "job", journal_id: str = "j1", attempt: int = 3) -> TransactionalIdParts:
    return TransactionalIdParts(
        job=JobName(job),
        journal_id=journal_id,
        sink=Uid("totals"),
        attempt=Attempt(attempt),
        subtask=SubtaskIndex(0),
        index=0,
    )


def fenced(
    of: TransactionalIdParts | None,
    state: TransactionState = S.ONGOING,
    *,
    pending: tuple[str, ...] = (),
    fenced_before: int = 0,
    include_current_attempt: bool = False,
) -> bool:
    return may_fence(
        of,
        state,
        job=JobName("job"),
        journal_id="j1",
        attempt=Attempt(5),
        pending=[TransactionalId(name) for name in pending],
        fenced_before=Attempt(fenced_before),
        include_current_attempt=include_current_attempt,
    )


def test_ids_of_older_attempts_are_fenced_in_any_transaction_state() -> None:
    assert all(fenced(parts(), state) for state in TransactionState)


def test_ids_of_other_jobs_other_journals_or_not_older_attempts_are_not_fenced() -> None:
    assert not fenced(None)
    assert not fenced(parts(job="other"))
    assert not fenced(parts(journal_id="j2"))
    assert not fenced(parts(attempt=5))
    assert not fenced(parts(attempt=6))
    assert not fenced(parts(attempt=6), include_current_attempt=True)


def test_own_ids_are_fenced_if_include_own_is_set() -> None:
    assert fenced(parts(attempt=5), include_current_attempt=True)


def test_id_of_a_pending_transaction_is_not_fenced() -> None:
    assert not fenced(parts(), pending=(str(parts()),))
    assert not fenced(
        parts(attempt=5), pending=(str(parts(attempt=5)),), include_current_attempt=True
    )


def test_ids_of_attempts_fenced_before_are_fenced_again_only_if_open() -> None:
    assert not fenced(parts(attempt=3), S.EMPTY, fenced_before=4)
    assert not fenced(parts(attempt=3), S.COMPLETE_ABORT, fenced_before=4)
    assert fenced(parts(attempt=3), S.ONGOING, fenced_before=4)
    assert fenced(parts(attempt=4), S.EMPTY, fenced_before=4)
