"""Tests of the transactional-id pool: the states of an id, and the moves that are forbidden."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.dataplane.sinks.id_pool import IdState, TransactionalIdPool
from tidegate.errors import InternalError
from tidegate.ids import Attempt, CheckpointId, TransactionalId
from tidegate.protocol.subtask_snapshot import PreparedTransaction


def checkpoint(number: int) -> CheckpointId:
    return CheckpointId(Attempt(1), number)


def transaction(index: int, epoch: int) -> PreparedTransaction:
    return PreparedTransaction(
        cluster_id="c",
        transactional_id=TransactionalId(f"id-{index}"),
        producer_id=index,
        epoch=epoch,
        start_ms=epoch,
    )


def prepared_table(count: int = 2, at: int = 1) -> TransactionalIdPool:
    table = TransactionalIdPool(count)
    assert table.take_free() == 0
    table.initialised(0)
    table.taken(0)
    table.flushing(0)
    table.prepared(0, checkpoint(at), transaction(0, at))
    return table


def test_transactional_id_is_reused_only_after_ended_and_released() -> None:
    table = prepared_table()
    assert table.transactions() == (transaction(0, 1),)
    table.ended(0)
    assert table.transactions() == ()
    assert table.take_free() == 1
    assert table.take_free() is None, "ended is not free: the journal still names it"
    table.freed(0)
    assert table.take_free() == 0


def test_early_release_message_does_not_release_a_prepared_transactional_id() -> None:
    table = prepared_table(count=1)
    table.freed(0)
    assert table.state(0) is IdState.PREPARED
    assert table.take_free() is None


def test_late_ended_message_of_an_older_checkpoint_keeps_the_newer_transaction() -> None:
    table = prepared_table(at=7)
    table.ended(0, by=checkpoint(6))
    assert table.transactions() == (transaction(0, 7),)
    table.ended(0, by=checkpoint(7))
    assert table.transactions() == ()


def test_ended_and_release_messages_for_ids_without_a_transaction_change_nothing() -> None:
    table = TransactionalIdPool(1)
    table.ended(0)
    table.freed(0)
    assert table.take_free() == 0
    table.ended(0)
    table.freed(0)
    assert table.state(0) is IdState.INITIALISING


def test_forbidden_state_change_of_a_transactional_id_raises_internal_error() -> None:
    table = TransactionalIdPool(1)
    with pytest.raises(InternalError, match="from free to current"):
        table.taken(0)


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["warm", "ready", "take", "close", "prepare", "end", "free"]),
        st.integers(0, 5),
    ),
    min_size=100,  # shorter ones hardly ever free an id again
    max_size=200,
)


@given(STEPS)
def test_transactional_id_is_never_reused_while_a_publication_may_list_it(
    steps: list[tuple[str, int]],
) -> None:
    table = TransactionalIdPool(4)
    named: set[int] = set()
    """Slots whose transaction a journal may still name."""
    carried: list[PreparedTransaction] = []
    number = 0
    for step, chosen in steps:
        index = chosen % 4
        state = table.state(index)
        if step == "warm":
            free = table.take_free()
            assert free is None or free not in named
        elif step == "ready" and state is IdState.INITIALISING:
            table.initialised(index)
        elif step == "take" and state is IdState.INITIALISED:
            table.taken(index)
        elif step == "close" and state is IdState.CURRENT:
            table.flushing(index)
        elif step == "prepare" and state is IdState.FLUSHING:
            number += 1
            table.prepared(index, checkpoint(number), transaction(index, number))
            named.add(index)
            carried.append(transaction(index, number))
        elif step == "end":
            table.ended(index)
            carried = [each for each in carried if each.producer_id != index]
        elif step == "free":
            table.freed(index)
            if all(each.producer_id != index for each in carried):
                named.discard(index)
        assert list(table.transactions()) == carried
        assert table.count(*IdState) == 4
