"""The decision table of recovery, row by row, and who may be fenced."""

from __future__ import annotations

from typing import Any

import pytest

from tests.checkpoint.examples import facts, txn
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
from tidegate.protocol.snapshots import PreparedTransaction

S = TransactionState
T = txn(1)
OTHERS = [S.EMPTY, S.PREPARE_ABORT, S.COMPLETE_ABORT, S.DEAD, S.PREPARE_EPOCH_FENCE]

ROWS: list[tuple[str, TransactionDescription | None, str, str]] = [
    # what the broker says; then the decision without and with `settled`
    ("open", facts(T, S.ONGOING), "end", "end"),
    ("committing", facts(T, S.PREPARE_COMMIT), "done", "done"),
    ("committed", facts(T, S.COMPLETE_COMMIT), "done", "done"),
    ("committed, start time gone", facts(T, S.COMPLETE_COMMIT, start_ms=-1), "done", "done"),
    ("open with another start", facts(T, S.ONGOING, start_ms=9), "lost", "done"),
    ("open with another epoch", facts(T, S.ONGOING, epoch=1), "lost", "done"),
    ("open with another producer", facts(T, S.ONGOING, producer_id=9), "lost", "done"),
    ("committed with another epoch", facts(T, S.COMPLETE_COMMIT, epoch=1), "lost", "done"),
    ("committed by another producer", facts(T, S.COMPLETE_COMMIT, producer_id=9), "lost", "done"),
    ("not known", None, "lost", "done"),
    *[(state.value, facts(T, state), "lost", "done") for state in OTHERS],
]


@pytest.mark.parametrize(("said", "unsettled", "settled"), [row[1:] for row in ROWS])
def test_each_row(said: TransactionDescription | None, unsettled: str, settled: str) -> None:
    for known, expected in ((False, unsettled), (True, settled)):
        decision = decide([T], settled=known, facts={T: said})
        for name in ("end", "done", "lost"):
            assert getattr(decision, name) == ((T,) if name == expected else ())


def test_every_state_is_in_a_row() -> None:
    said = {row[1].state for row in ROWS if row[1] is not None}
    assert said == set(TransactionState)


def test_all_are_decided_together_in_the_order_of_the_names() -> None:
    named = [txn(n) for n in range(6)]
    states = [S.ONGOING, S.COMPLETE_ABORT, S.COMPLETE_COMMIT] * 2
    said = {one: facts(one, state) for one, state in zip(named, states, strict=True)}
    decision = decide(named, settled=False, facts=said)
    assert decision.end == (named[0], named[3])
    assert decision.lost == (named[1], named[4])
    assert decision.done == (named[2], named[5])


PROOFS: list[tuple[str, TransactionDescription | None, bool]] = [
    ("ended by abort", facts(T, S.COMPLETE_ABORT), True),
    ("aborting", facts(T, S.PREPARE_ABORT), True),
    ("timed out, or fenced by half", facts(T, S.COMPLETE_ABORT, epoch=T.epoch + 1), True),
    ("timing out", facts(T, S.PREPARE_ABORT, epoch=T.epoch + 1), True),
    ("a later transaction of the id was aborted", facts(T, S.COMPLETE_ABORT, start_ms=9), False),
    ("two epochs on", facts(T, S.COMPLETE_ABORT, epoch=T.epoch + 2), False),
    ("another producer", facts(T, S.COMPLETE_ABORT, producer_id=9), False),
    ("fenced: committed before, or not", facts(T, S.EMPTY, epoch=2, start_ms=-1), False),
    ("committed", facts(T, S.COMPLETE_COMMIT), False),
    ("open", facts(T, S.ONGOING), False),
    ("not known", None, False),
]


@pytest.mark.parametrize(("said", "proven"), [row[1:] for row in PROOFS])
def test_what_proves_an_abort(said: TransactionDescription | None, proven: bool) -> None:
    assert was_aborted(T, said) is proven


def test_a_publication_is_taken_back_only_if_all_that_is_its_own_is_open_or_aborted() -> None:
    open_, gone, committed, fenced = (txn(n) for n in range(4))
    said = {
        open_: facts(open_, S.ONGOING),
        gone: facts(gone, S.COMPLETE_ABORT, epoch=1),
        committed: facts(committed, S.COMPLETE_COMMIT),
        fenced: facts(fenced, S.EMPTY, epoch=2),
    }

    def ask(*own: PreparedTransaction, **known: Any) -> bool:
        known = {"lost": True, "firm": False, "ended": (), **known}
        return may_roll_back(own, facts=said, **known)

    assert ask(open_, gone)
    assert ask(), "what is lost is of the publication before"
    assert not ask(open_, gone, lost=False)
    assert not ask(open_, gone, firm=True)
    assert not ask(open_, gone, ended=(gone,)), "the attempt has seen it committed"
    assert not ask(open_, gone, committed)
    assert not ask(open_, gone, fenced)


def test_one_that_was_not_asked_is_never_left_out() -> None:
    with pytest.raises(KeyError):
        decide([T, txn(2)], settled=True, facts={T: None})


def test_complete_means_seen_complete_commit() -> None:
    assert is_complete(T, facts(T, S.COMPLETE_COMMIT))
    assert not is_complete(T, facts(T, S.PREPARE_COMMIT))
    assert not is_complete(T, facts(T, S.COMPLETE_COMMIT, epoch=1))
    assert not is_complete(T, None)


def test_as_prepared_means_all_of_it() -> None:
    assert is_as_prepared(T, facts(T, S.ONGOING))
    for said in (
        None,
        facts(T, S.PREPARE_COMMIT),
        facts(T, S.ONGOING, epoch=1),
        facts(T, S.ONGOING, start_ms=1),
        facts(T, S.ONGOING, producer_id=1),
    ):
        assert not is_as_prepared(T, said)


def parts(*, job: str = "job", journal: str = "j1", attempt: int = 3) -> TransactionalIdParts:
    return TransactionalIdParts(
        job=JobName(job),
        journal=journal,
        sink=Uid("totals"),
        attempt=Attempt(attempt),
        subtask=SubtaskIndex(0),
        slot=0,
    )


def fenced(
    of: TransactionalIdParts | None,
    state: TransactionState = S.ONGOING,
    *,
    named: tuple[str, ...] = (),
    swept: int = 0,
    own_too: bool = False,
) -> bool:
    return may_fence(
        of,
        state,
        job=JobName("job"),
        journal="j1",
        attempt=Attempt(5),
        named=[TransactionalId(name) for name in named],
        swept=Attempt(swept),
        own_too=own_too,
    )


def test_older_attempts_are_fenced_in_any_state() -> None:
    assert all(fenced(parts(), state) for state in TransactionState)


def test_what_is_not_ours_or_not_older_is_never_fenced() -> None:
    assert not fenced(None)
    assert not fenced(parts(job="other"))
    assert not fenced(parts(journal="j2"))
    assert not fenced(parts(attempt=5))
    assert not fenced(parts(attempt=6))
    assert not fenced(parts(attempt=6), own_too=True)


def test_own_ids_are_fenced_at_the_end() -> None:
    assert fenced(parts(attempt=5), own_too=True)


def test_a_named_id_is_not_fenced() -> None:
    assert not fenced(parts(), named=(str(parts()),))
    assert not fenced(parts(attempt=5), named=(str(parts(attempt=5)),), own_too=True)


def test_attempts_that_were_swept_once_are_fenced_only_if_open() -> None:
    assert not fenced(parts(attempt=3), S.EMPTY, swept=4)
    assert not fenced(parts(attempt=3), S.COMPLETE_ABORT, swept=4)
    assert fenced(parts(attempt=3), S.ONGOING, swept=4)
    assert fenced(parts(attempt=4), S.EMPTY, swept=4)
