"""A leak must be seen through noise, and noise, peaks and a warm-up must not be taken for one."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from integration.support.leak_detection import Level, judge

COUNT = 60


def level_of(figure: Callable[[int], float], *, slack: float = 0.0, count: int = COUNT) -> Level:
    samples = [(10.0 * number, {"figure": figure(number)}) for number in range(count)]
    (level,) = judge(samples, {"figure": slack})
    return level


def noise(number: int) -> float:
    return random.Random(number).uniform(-20, 20)


@pytest.mark.parametrize(
    "figure",
    [
        pytest.param(lambda _: 100.0, id="constant"),
        pytest.param(lambda n: 100 + noise(n), id="noise"),
        pytest.param(lambda n: 100 + 900 * (n % 17 == 0), id="peaks"),
        pytest.param(lambda n: 100 + 20 * (n % 10), id="a saw: it is cleared up again and again"),
        pytest.param(lambda n: 100 * min(1.0, n / 12), id="a warm-up"),
        pytest.param(lambda n: 200 - n, id="it shrinks"),
        pytest.param(lambda _: 0.0, id="nothing"),
        pytest.param(lambda n: 500.0 if n == COUNT - 1 else 100.0, id="one peak at the end"),
    ],
)
def test_stable_figure_is_not_reported_as_a_leak(figure: Callable[[int], float]) -> None:
    assert level_of(figure).level


@pytest.mark.parametrize(
    "figure",
    [
        pytest.param(lambda n: 100 + n, id="slowly"),
        pytest.param(lambda n: 100 + 2 * n + noise(n), id="under noise"),
        pytest.param(lambda n: 20 * (n // 10), id="in steps"),
        pytest.param(lambda n: 100 + 2 * n + 30 * (n % 5), id="under a saw"),
    ],
)
def test_growing_figure_is_reported_as_a_leak(figure: Callable[[int], float]) -> None:
    level = level_of(figure)
    assert not level.level
    assert level.last > level.first


def test_growth_within_the_slack_is_not_reported_as_a_leak() -> None:
    assert not level_of(lambda n: 1 + n / 10).level
    assert level_of(lambda n: 1 + n / 10, slack=10).level


def test_leak_detection_gives_no_verdict_for_too_few_samples() -> None:
    assert not level_of(lambda n: 100 + n, count=5).judged
    assert level_of(lambda n: 100 + n).judged
