"""The index of timers: keys in order of time, in pieces, and nothing is lost between them."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tidegate.dataplane.time.timer_index import TimerIndex
from tidegate.stream_elements import NEVER


def test_empty_index_has_no_next_time() -> None:
    index = TimerIndex()
    assert index.next_ms == NEVER
    assert index.pop_due(NEVER, 10) == []


def test_key_at_one_time_is_found_once_and_a_key_may_be_none() -> None:
    index = TimerIndex()
    index.add(5, None)
    index.add(5, None)
    assert index.pop_due(5, 10) == [(5, [None])]
    assert index.next_ms == NEVER


def test_time_with_more_keys_than_the_limit_is_taken_in_pieces() -> None:
    index = TimerIndex()
    for key in range(5):
        index.add(7, key)
    assert index.pop_due(7, 2) == [(7, [0, 1])]
    assert index.next_ms == 7
    assert index.pop_due(7, 2) == [(7, [2, 3])]
    assert index.pop_due(7, 2) == [(7, [4])]
    assert index.next_ms == NEVER


@given(
    st.lists(st.tuples(st.integers(-50, 50), st.integers(0, 4)), max_size=60),
    st.lists(st.tuples(st.integers(-60, 60), st.integers(1, 9)), max_size=20),
)
def test_pieces_have_every_due_key_in_order_of_time(
    added: list[tuple[int, int]], asked: list[tuple[int, int]]
) -> None:
    index, waiting = TimerIndex(), set(added)
    for at_ms, key in added:
        index.add(at_ms, key)
    for until_ms, limit in asked:
        due = [(at_ms, key) for at_ms, keys in index.pop_due(until_ms, limit) for key in keys]
        assert [at_ms for at_ms, _ in due] == sorted(at_ms for at_ms, _ in due)
        assert all(at_ms <= until_ms for at_ms, _ in due)
        assert len(due) <= limit
        waiting -= set(due)
        assert len(due) == limit or all(at_ms > until_ms for at_ms, _ in waiting)
        assert index.next_ms == min((at_ms for at_ms, _ in waiting), default=NEVER)


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 9), st.integers(0, 3)), max_size=80))
def test_discarded_entry_is_gone_and_others_stay(actions: list[tuple[bool, int, int]]) -> None:
    index, waiting = TimerIndex(), set[tuple[int, int]]()
    for adds, at_ms, key in actions:
        if adds:
            index.add(at_ms, key)
            waiting.add((at_ms, key))
        else:
            index.discard(at_ms, key)
            waiting.discard((at_ms, key))
        assert index.next_ms == min((at for at, _ in waiting), default=NEVER)
    due = [(at_ms, key) for at_ms, keys in index.pop_due(9, 1_000) for key in keys]
    assert sorted(due) == sorted(waiting)
