"""How long an idle slot waits: short after records and messages, long after long silence."""

from __future__ import annotations

import pytest

from tidegate.slot.idle_wait import LONGEST_S, SHORTEST_S, UNNOTICEABLE_S, IdleWait


@pytest.mark.parametrize(
    ("silence_s", "wait_s"),
    [(0.1, SHORTEST_S), (0.5, 0.01), (1.0, 0.02), (6.0, 0.12), (60.0, LONGEST_S)],
)
def test_idle_wait_is_a_share_of_the_time_since_the_last_record(
    silence_s: float, wait_s: float
) -> None:
    idling = IdleWait(interval_s=3600, when_idle_s=0, now_s=50)
    idling.record_turn(100, 1, woken=False)
    assert idling.wait_s(100 + silence_s, has_remote_inputs=True) == pytest.approx(wait_s)


@pytest.mark.parametrize(
    ("interval_s", "wait_s"), [(0.1, UNNOTICEABLE_S), (1, 0.05), (2, 0.1), (10, LONGEST_S)]
)
def test_idle_wait_is_at_most_a_share_of_the_checkpoint_interval(
    interval_s: float, wait_s: float
) -> None:
    assert IdleWait(interval_s, 0, 100).wait_s(1000, has_remote_inputs=True) == pytest.approx(
        wait_s
    )


def longest_s(interval_s: float, when_idle_s: float, since_barrier_s: float) -> float:
    idling = IdleWait(interval_s, when_idle_s, 100)
    idling.record_barrier(1_000 - since_barrier_s)
    return idling.wait_s(1_000, has_remote_inputs=True)


def test_waits_are_longer_if_checkpoints_are_rare_because_the_job_is_idle() -> None:
    assert longest_s(0.1, 1, since_barrier_s=0.15) == pytest.approx(UNNOTICEABLE_S)
    assert longest_s(0.1, 1, since_barrier_s=0.25) == pytest.approx(0.05)
    assert longest_s(0.5, 2, since_barrier_s=1.5) == pytest.approx(0.1)


def test_waits_in_an_idle_job_are_at_most_half_of_the_checkpoint_interval() -> None:
    assert longest_s(0.1, 60, since_barrier_s=50) == pytest.approx(0.05)


def test_waits_in_an_idle_job_are_not_shorter_than_others() -> None:
    for when_idle_s in (0, 1):
        assert longest_s(2, when_idle_s, since_barrier_s=50) == pytest.approx(0.1)
        assert longest_s(0.03, when_idle_s, since_barrier_s=50) == pytest.approx(UNNOTICEABLE_S)


def test_idle_wait_stays_below_15_ms_with_a_record_every_700_ms() -> None:
    """Each goes to one slot of two: a hundredth of them come after 0.7 s without one."""
    idling, now_s, longest_s = IdleWait(10, 0, 0), 0.0, 0.0
    for record in range(1, 100):
        while now_s < record * 0.7:
            longest_s = max(longest_s, wait_s := idling.wait_s(now_s, has_remote_inputs=True))
            now_s += wait_s
        idling.record_turn(now_s, record, woken=False)
    assert longest_s < 0.015


def test_idle_waits_start_short_again_after_a_message_and_then_grow() -> None:
    idling = IdleWait(10, 0, 100)
    idling.record_turn(200, 0, woken=True)
    waits, now_s = list[float](), 200.0
    for _ in range(6):
        idling.record_turn(now_s, 0, woken=False)
        waits.append(idling.wait_s(now_s, has_remote_inputs=True))
        now_s += waits[-1]
    assert waits == pytest.approx([0.02, 0.02, 0.04, 0.08, 0.16, LONGEST_S])
    idling.record_turn(300, 1, woken=True)
    assert idling.wait_s(300, has_remote_inputs=True) == SHORTEST_S


def test_slot_without_remote_inputs_waits_as_long_as_it_was_without_records() -> None:
    idling = IdleWait(10, 0, 100)
    idling.record_turn(200, 1, woken=False)
    waits, now_s = list[float](), 200.0
    for _ in range(8):
        waits.append(idling.wait_s(now_s, has_remote_inputs=False))
        now_s += waits[-1]
    assert waits == pytest.approx([0.004, 0.004, 0.008, 0.016, 0.032, 0.064, 0.128, LONGEST_S])
