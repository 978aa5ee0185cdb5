"""The table of transaction slots: its circle, and what may never happen in it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.dataplane.sinks.id_pool import IdState, TransactionalIdPool
from tidegate.errors import InternalError
from tidegate.ids import Attempt, CheckpointId, TransactionalId
from tidegate.protocol.snapshots import PreparedTransaction


def checkpoint(number: int) -> CheckpointId:
    return CheckpointId(Attempt(1), number)


def transaction(slot: int, epoch: int) -> PreparedTransaction:
    return PreparedTransaction(
        cluster_id="c",
        transactional_id=TransactionalId(f"id-{slot}"),
        producer_id=slot,
        epoch=epoch,
        start_ms=epoch,
    )


def prepared_table(count: int = 2, at: int = 1) -> TransactionalIdPool:
    table = TransactionalIdPool(count)
    assert table.take_free() == 0
    table.warmed(0)
    table.taken(0)
    table.flushing(0)
    table.prepared(0, checkpoint(at), transaction(0, at))
    return table


def test_a_slot_goes_round() -> None:
    table = prepared_table()
    assert table.transactions() == (transaction(0, 1),)
    table.ended(0)
    assert table.transactions() == ()
    assert table.take_free() == 1
    assert table.take_free() is None, "ended is not free: the journal still names it"
    table.freed(0)
    assert table.take_free() == 0


def test_freed_before_ended_is_about_a_transaction_before() -> None:
    table = prepared_table(count=1)
    table.freed(0)
    assert table.state(0) is IdState.PREPARED
    assert table.take_free() is None


def test_a_late_ended_of_an_older_checkpoint_does_not_drop_a_newer_transaction() -> None:
    table = prepared_table(at=7)
    table.ended(0, by=checkpoint(6))
    assert table.transactions() == (transaction(0, 7),)
    table.ended(0, by=checkpoint(7))
    assert table.transactions() == ()


def test_messages_about_slots_that_hold_nothing_change_nothing() -> None:
    table = TransactionalIdPool(1)
    table.ended(0)
    table.freed(0)
    assert table.take_free() == 0
    table.ended(0)
    table.freed(0)
    assert table.state(0) is IdState.WARMING


def test_an_illegal_move_is_our_bug() -> None:
    table = TransactionalIdPool(1)
    with pytest.raises(InternalError, match="from free to current"):
        table.taken(0)


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["warm", "ready", "take", "close", "prepare", "end", "free"]),
        st.integers(0, 5),
    ),
    min_size=100,  # shorter ones hardly ever bring a slot round
    max_size=200,
)


@given(STEPS)
def test_a_slot_is_never_given_out_while_its_transaction_may_be_named(
    steps: list[tuple[str, int]],
) -> None:
    table = TransactionalIdPool(4)
    named: set[int] = set()
    """Slots whose transaction a journal may still name."""
    carried: list[PreparedTransaction] = []
    number = 0
    for step, chosen in steps:
        slot = chosen % 4
        state = table.state(slot)
        if step == "warm":
            free = table.take_free()
            assert free is None or free not in named
        elif step == "ready" and state is IdState.WARMING:
            table.warmed(slot)
        elif step == "take" and state is IdState.WARM:
            table.taken(slot)
        elif step == "close" and state is IdState.CURRENT:
            table.flushing(slot)
        elif step == "prepare" and state is IdState.FLUSHING:
            number += 1
            table.prepared(slot, checkpoint(number), transaction(slot, number))
            named.add(slot)
            carried.append(transaction(slot, number))
        elif step == "end":
            table.ended(slot)
            carried = [each for each in carried if each.producer_id != slot]
        elif step == "free":
            table.freed(slot)
            if all(each.producer_id != slot for each in carried):
                named.discard(slot)
        assert list(table.transactions()) == carried
        assert table.count(*IdState) == 4
