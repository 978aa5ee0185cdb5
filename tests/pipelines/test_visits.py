"""Visits: they follow from the times of the clicks, whatever the order of arrival is."""

from __future__ import annotations

import itertools
import random

import pytest

from pipelines.visits import Click, Visit, Visits
from tidegate.testing import PipelineTest, Setup

MINUTE = 60_000
GAP = 30 * MINUTE
BOUND_MS = 5_000
LATER = Click("later", "/", 1_000 * GAP)
"""A click that is later than every visit of the others."""


def run(*clicks: Click, setup: Setup | None = None, crash_after: int = 0) -> list[Visit]:
    """Push the clicks one by one and end their visits. Return the visits by user.

    `crash_after`: number of clicks between two crashes. A checkpoint is taken in the middle of
    them, and the parallelism changes.
    """
    with PipelineTest(Visits, setup or Setup()) as test:
        source = test.source(Visits.clicks)
        for number, click in enumerate(clicks, 1):
            source.push(click)
            if crash_after and number % crash_after == crash_after // 2:
                test.checkpoint()
            if crash_after and number % crash_after == 0:
                test.crash(parallelism=1 + number % 4)
        source.push(LATER)
        return sorted(test.sink(Visits.visits).read(), key=lambda visit: visit.user)


def visits_of(*clicks: Click) -> list[Visit]:
    """Return the visits of a batch over the clicks, by user and time."""
    found: list[Visit] = []
    ordered = sorted(clicks, key=lambda click: (click.user, click.at_ms))
    for user, theirs in itertools.groupby(ordered, key=lambda click: click.user):
        visit: list[Click] = []
        for click in [*theirs, LATER]:
            if visit and click.at_ms > visit[-1].at_ms + GAP:
                end_ms = visit[-1].at_ms + GAP
                found.append(Visit(user, visit[0].at_ms, end_ms, len(visit), visit[0].page))
                visit = []
            visit.append(click)
    return found


def arrivals(seed: int) -> list[Click]:
    """Return clicks of a day. They arrive in the order of their times plus a delay of less than the
    bound.
    """
    rng = random.Random("clicks")
    times = rng.sample(range(24 * 60 * MINUTE), 200)  # no two clicks have one time
    clicks = [Click(f"user-{at_ms % 7}", f"/{at_ms % 11}", at_ms) for at_ms in times]
    order = random.Random(seed)
    return sorted(clicks, key=lambda click: click.at_ms + order.randrange(BOUND_MS))


def test_visit_comes_when_the_watermark_has_passed_its_gap() -> None:
    with PipelineTest(Visits) as test:
        clicks, visits = test.source(Visits.clicks), test.sink(Visits.visits)
        clicks.push(Click("a", "/cart", 4_000), Click("a", "/home", 0), Click("a", "/pay", GAP))
        clicks.push(Click("b", "/home", 2 * GAP + BOUND_MS - 1))
        assert visits.read() == []
        clicks.push(Click("b", "/cart", 2 * GAP + BOUND_MS))
        assert visits.read() == [Visit("a", 0, 2 * GAP, 3, "/home")]


@pytest.mark.parametrize("crash_after", [0, 1, 2])
@pytest.mark.parametrize("order", list(itertools.permutations(range(3))))
def test_click_between_two_visits_makes_them_one(order: tuple[int, ...], crash_after: int) -> None:
    clicks = [Click("a", "/home", 0), Click("a", "/cart", 2_000), Click("a", "/pay", 4_000)]
    visits = run(*(clicks[number] for number in order), crash_after=crash_after)
    assert visits == [Visit("a", 0, 4_000 + GAP, 3, "/home")]


def test_click_after_the_gap_begins_a_new_visit() -> None:
    clicks = [Click("a", "/home", 0), Click("a", "/cart", GAP), Click("a", "/pay", 2 * GAP + 1)]
    assert run(*clicks) == [
        Visit("a", 0, 2 * GAP, 2, "/home"),
        Visit("a", 2 * GAP + 1, 3 * GAP + 1, 1, "/pay"),
    ]


@pytest.mark.parametrize("crash_after", [0, 14])
@pytest.mark.parametrize(
    "setup", [Setup(), Setup(parallelism=3, batch=2, seed=5), Setup(parallelism=4, batch=1, seed=9)]
)
def test_visits_are_those_of_a_batch_for_each_arrival_within_the_bound(
    setup: Setup, crash_after: int
) -> None:
    expected = visits_of(*arrivals(0))
    assert len(expected) > 20
    assert any(visit.clicks > 1 for visit in expected)
    for seed in range(2):
        assert run(*arrivals(seed), setup=setup, crash_after=crash_after) == expected
