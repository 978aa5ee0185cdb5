"""How long an idle slot waits: short after records and messages, long after long silence."""

from __future__ import annotations

import pytest

from tidegate.slot.idling import ALWAYS_S, LONGEST_S, SHORTEST_S, Idling


@pytest.mark.parametrize(
    ("silence_s", "wait_s"),
    [(0.01, SHORTEST_S), (0.1, 0.005), (1.0, 0.05), (3.0, 0.15), (60.0, LONGEST_S)],
)
def test_a_wait_is_a_share_of_the_silence(silence_s: float, wait_s: float) -> None:
    idling = Idling(interval_s=3600, now_s=50)
    idling.turned(100, 1, stirred=False)
    assert idling.wait_s(100 + silence_s) == pytest.approx(wait_s)


@pytest.mark.parametrize(
    ("interval_s", "wait_s"), [(0.1, ALWAYS_S), (1, 0.05), (2, 0.1), (10, LONGEST_S)]
)
def test_a_barrier_waits_for_a_share_of_the_interval(interval_s: float, wait_s: float) -> None:
    assert Idling(interval_s, 100).wait_s(1000) == pytest.approx(wait_s)


def test_who_gets_ten_records_a_second_from_another_slot_has_them_within_milliseconds() -> None:
    idling, now_s, longest_s = Idling(10, 0), 0.0, 0.0
    for record in range(1, 100):
        while now_s < record / 10:
            longest_s = max(longest_s, wait_s := idling.wait_s(now_s))
            now_s += wait_s
        idling.turned(now_s, record, stirred=False)
    assert longest_s < 0.006


def test_the_wait_behind_a_message_is_short_and_the_next_what_it_was() -> None:
    idling = Idling(10, 100)
    idling.turned(200, 0, stirred=True)
    idling.turned(200, 0, stirred=False)
    assert idling.wait_s(200) == ALWAYS_S
    idling.turned(201, 0, stirred=False)
    assert idling.wait_s(201) == LONGEST_S
    idling.turned(300, 1, stirred=True)
    assert idling.wait_s(300) == SHORTEST_S
