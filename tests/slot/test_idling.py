"""How long an idle slot waits: short after records and messages, long after long silence."""

from __future__ import annotations

import pytest

from tidegate.slot.idle_wait import LONGEST_S, SHORTEST_S, UNNOTICEABLE_S, IdleWait


@pytest.mark.parametrize(
    ("silence_s", "wait_s"),
    [(0.1, SHORTEST_S), (0.5, 0.01), (1.0, 0.02), (6.0, 0.12), (60.0, LONGEST_S)],
)
def test_a_wait_is_a_share_of_the_silence(silence_s: float, wait_s: float) -> None:
    idling = IdleWait(interval_s=3600, now_s=50)
    idling.record_turn(100, 1, woken=False)
    assert idling.wait_s(100 + silence_s, has_remote_inputs=True) == pytest.approx(wait_s)


@pytest.mark.parametrize(
    ("interval_s", "wait_s"), [(0.1, UNNOTICEABLE_S), (1, 0.05), (2, 0.1), (10, LONGEST_S)]
)
def test_a_barrier_waits_for_a_share_of_the_interval(interval_s: float, wait_s: float) -> None:
    assert IdleWait(interval_s, 100).wait_s(1000, has_remote_inputs=True) == pytest.approx(wait_s)


def test_who_gets_some_of_ten_records_a_second_has_them_within_milliseconds() -> None:
    """Each goes to one slot of two: a hundredth of them come after 0.7 s without one."""
    idling, now_s, longest_s = IdleWait(10, 0), 0.0, 0.0
    for record in range(1, 100):
        while now_s < record * 0.7:
            longest_s = max(longest_s, wait_s := idling.wait_s(now_s, has_remote_inputs=True))
            now_s += wait_s
        idling.record_turn(now_s, record, woken=False)
    assert longest_s < 0.015


def test_behind_a_message_waits_begin_short_again_and_grow() -> None:
    idling = IdleWait(10, 100)
    idling.record_turn(200, 0, woken=True)
    waits, now_s = list[float](), 200.0
    for _ in range(6):
        idling.record_turn(now_s, 0, woken=False)
        waits.append(idling.wait_s(now_s, has_remote_inputs=True))
        now_s += waits[-1]
    assert waits == pytest.approx([0.02, 0.02, 0.04, 0.08, 0.16, LONGEST_S])
    idling.record_turn(300, 1, woken=True)
    assert idling.wait_s(300, has_remote_inputs=True) == SHORTEST_S


def test_who_gets_no_records_from_others_waits_as_long_as_it_was_silent() -> None:
    idling = IdleWait(10, 100)
    idling.record_turn(200, 1, woken=False)
    waits, now_s = list[float](), 200.0
    for _ in range(8):
        waits.append(idling.wait_s(now_s, has_remote_inputs=False))
        now_s += waits[-1]
    assert waits == pytest.approx([0.004, 0.004, 0.008, 0.016, 0.032, 0.064, 0.128, LONGEST_S])
