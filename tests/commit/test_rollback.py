"""Taking a publication back, step by step in a quiet world."""

from __future__ import annotations

from typing import Any

import pytest

from tests.commit.quiet import ProcedureRunner
from tidegate.commit import effects
from tidegate.commit.effects import Effect
from tidegate.commit.journal.claimed import ClaimedJournal
from tidegate.commit.journal.entries import RolledBack
from tidegate.errors import DataLossError, KafkaUnavailableError, TransactionError
from tidegate.ids import TransactionalId
from tidegate.ports.kafka import EndTxnResult, TransactionState
from tidegate.protocol.subtask_snapshot import PreparedTransaction


@pytest.fixture
def quiet() -> ProcedureRunner:
    return ProcedureRunner()


def time_out(quiet: ProcedureRunner, *transactions: PreparedTransaction) -> None:
    """The broker aborts them, as after their timeout."""
    for transaction in transactions:
        found = quiet.world.broker[transaction.transactional_id]
        found.state, found.epoch = TransactionState.COMPLETE_ABORT, found.epoch + 1


def state_of(quiet: ProcedureRunner, transactional_id: TransactionalId) -> TransactionState:
    return quiet.world.broker[transactional_id].state


def published(quiet: ProcedureRunner, journal: ClaimedJournal) -> tuple[PreparedTransaction, ...]:
    """Checkpoint 1 is settled; 2 names two transactions, which are open."""
    quiet.publish(journal, 1, *quiet.prepared(journal, 0))
    quiet.commit(journal)
    named = quiet.prepared(journal, 2, 3)
    quiet.publish(journal, 2, *named)
    return named


def test_recovery_rolls_back_a_publication_without_visible_output(quiet: ProcedureRunner) -> None:
    named = published(quiet, quiet.claim())
    time_out(quiet, named[0])
    slots = named[0].transactional_id.rpartition(".")[0]
    waiting = TransactionalId(f"{slots}.9")  # of a producer that waits for its first record
    quiet.world.init(waiting)
    newer = quiet.claim()
    quiet.asked.clear()
    recovered = quiet.recover(newer)
    assert recovered.fenced == (waiting,)
    assert [str(checkpoint) for checkpoint in recovered.rolled_back] == ["1-2"]
    assert recovered.ended == ()
    sent = [e for e in quiet.asked if isinstance(e, effects.EndTransaction)]
    assert [(e.transaction, e.commit) for e in sent] == [(named[1], False)]
    order = [type(effect).__name__ for effect in quiet.asked]
    assert order.index("EndTransaction") < order.index("CreateEntry") < order.index("Fence")
    entry = quiet.entries()[-1]
    assert isinstance(entry, RolledBack)
    assert entry.aborted == named
    point = newer.restore_point("latest")
    assert point is not None
    assert str(point.checkpoint) == "1-1"
    assert quiet.world.output == {0: 1}


def test_rollback_of_the_first_publication_of_a_job_leaves_no_checkpoint(
    quiet: ProcedureRunner,
) -> None:
    journal = quiet.claim()
    named = quiet.prepared(journal, 0, 1)
    quiet.publish(journal, 1, *named, final=True)
    time_out(quiet, *named)
    assert quiet.claim().final_checkpoint_published
    newer = quiet.claim()
    quiet.recover(newer)
    assert newer.restore_point("latest") is None
    assert not newer.final_checkpoint_published, "its last part is done again"
    again = quiet.prepared(newer, 0, 1)
    quiet.publish(newer, 1, *again)
    quiet.commit(newer)
    assert quiet.world.output == {0: 1, 1: 1}


def test_loss_is_recorded_if_some_output_of_the_publication_is_visible(
    quiet: ProcedureRunner,
) -> None:
    named = published(quiet, quiet.claim())
    time_out(quiet, named[0])
    quiet.world.arrive(named[1], commit=True)
    with pytest.raises(DataLossError, match="checkpoint 1-2"):
        quiet.recover(quiet.claim())
    assert quiet.kinds()[-1] == "Lost"


def test_loss_is_recorded_if_a_late_commit_arrives_before_the_abort(quiet: ProcedureRunner) -> None:
    named = published(quiet, quiet.claim())
    time_out(quiet, named[0])

    def late_commit(effect: Effect) -> Any:
        if isinstance(effect, effects.EndTransaction):
            quiet.world.arrive(named[1], commit=True)
        return NotImplemented

    with pytest.raises(DataLossError, match=named[0].transactional_id):
        quiet.recover(quiet.claim(), late_commit)
    assert quiet.world.output == {0: 1, 3: 1}
    assert quiet.kinds()[-1] == "Lost"


def test_loss_is_recorded_if_a_fence_hides_how_the_transaction_ended(
    quiet: ProcedureRunner,
) -> None:
    named = published(quiet, quiet.claim())
    quiet.world.init(named[0].transactional_id)
    with pytest.raises(DataLossError, match=named[0].transactional_id):
        quiet.recover(quiet.claim())


def test_running_attempt_fails_and_the_next_attempt_rolls_back(quiet: ProcedureRunner) -> None:
    journal = quiet.claim()
    named = published(quiet, journal)
    time_out(quiet, *named)
    with pytest.raises(TransactionError, match="takes the checkpoint back"):
        quiet.commit(journal)
    assert quiet.kinds()[-1] == "Publication"
    assert quiet.recover(quiet.claim()).rolled_back != ()


def test_loss_in_the_publication_before_is_found_after_the_last_one_is_rolled_back(
    quiet: ProcedureRunner,
) -> None:
    journal = quiet.claim()
    first = quiet.prepared(journal, 0, 1)
    quiet.publish(journal, 1, *first)
    quiet.publish(journal, 2, *quiet.prepared(journal, 2))
    time_out(quiet, first[0])
    quiet.world.arrive(first[1], commit=True)
    with pytest.raises(DataLossError, match="checkpoint 1-1"):
        quiet.recover(quiet.claim())
    assert quiet.kinds()[-2:] == ["RolledBack", "Lost"]
    assert quiet.world.output == {1: 1}, "2 is written again and not lost"


def test_abort_that_was_answered_without_effect_is_sent_again(quiet: ProcedureRunner) -> None:
    named = published(quiet, quiet.claim())
    time_out(quiet, named[0])
    answers = [EndTxnResult.ACCEPTED, EndTxnResult.RETRY]

    def without_effect(effect: Effect) -> Any:
        return (
            answers.pop()
            if isinstance(effect, effects.EndTransaction) and answers
            else NotImplemented
        )

    assert quiet.recover(quiet.claim(), without_effect).rolled_back != ()
    assert state_of(quiet, named[1].transactional_id) is not TransactionState.ONGOING


def test_rollback_is_left_to_the_next_attempt_if_an_abort_does_not_succeed_in_time(
    quiet: ProcedureRunner,
) -> None:
    named = published(quiet, quiet.claim())
    time_out(quiet, named[0])

    def useless(effect: Effect) -> Any:
        return EndTxnResult.RETRY if isinstance(effect, effects.EndTransaction) else NotImplemented

    with pytest.raises(KafkaUnavailableError, match=named[1].transactional_id):
        quiet.recover(quiet.claim(), useless)
    assert quiet.kinds()[-1] == "Claim"
    assert quiet.recover(quiet.claim()).rolled_back != ()


def test_next_attempt_rolls_back_after_a_crash_between_abort_and_journal_entry(
    quiet: ProcedureRunner,
) -> None:
    named = published(quiet, quiet.claim())
    time_out(quiet, named[0])
    quiet.world.arrive(named[1], commit=False)
    assert quiet.recover(quiet.claim()).rolled_back != ()


def test_close_rolls_back_a_publication_whose_transactions_timed_out(
    quiet: ProcedureRunner,
) -> None:
    journal = quiet.claim()
    named = published(quiet, journal)
    time_out(quiet, *named)
    quiet.close(journal)
    assert quiet.kinds()[-2:] == ["RolledBack", "Closed"]
    point = quiet.claim("s2").restore_point("latest")
    assert point is not None
    assert str(point.checkpoint) == "1-1"


def test_rollback_in_a_restored_submission_returns_to_the_restored_checkpoint(
    quiet: ProcedureRunner,
) -> None:
    journal = quiet.claim()
    quiet.publish(journal, 1)
    quiet.publish(journal, 2)
    by_hand = quiet.claim("s2", restore="1-1")
    quiet.recover(by_hand)
    named = quiet.prepared(by_hand, 0)
    quiet.publish(by_hand, 1, *named)
    time_out(quiet, *named)
    again = quiet.claim("s2", restore="1-1")
    assert len(quiet.recover(again).rolled_back) == 1
    point = again.restore_point("1-1")
    assert point is not None
    assert str(point.checkpoint) == "1-1"
