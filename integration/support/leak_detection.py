"""Decides from samples whether a figure stays level over time, or grows.

A figure that grows all the time is a leak, whatever its size. A figure that is high for a while is
not a leak. The verdict therefore uses the trend: the median slope between all pairs of samples
(Theil and Sen's estimator, which a few outliers do not change). The trend over the whole time is
compared with a share of the figure's median and with a fixed slack. The first samples do not
count, because caches fill and pools warm up.

The module is pure: the caller measures, and chooses what and when.
"""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

WARM_UP = 0.25
"""The share of the samples, from the start, that does not count."""
SAMPLES_MIN = 8
"""The number of samples after the warm-up that a verdict needs."""
GROWTH_MAX = 0.15
"""The growth that is always allowed, as a share of the figure's median."""


@dataclass(frozen=True, slots=True)
class Level:
    """The development of one figure, and the verdict on it."""

    name: str
    first: float
    """Median of the first third of the samples that count."""
    last: float
    """Median of the last third."""
    highest: float
    growth: float
    """Growth by the trend, from the first sample that counts to the last."""
    allowed: float
    judged: bool = True
    """Whether there are enough samples for a verdict."""

    @property
    def level(self) -> bool:
        """Whether the figure does not grow. A figure grows if its trend and the difference from
        `first` to `last` are both greater than `allowed`.
        """
        return min(self.growth, self.last - self.first) <= self.allowed


def judge(
    samples: Sequence[tuple[float, Mapping[str, float]]], slack: Mapping[str, float]
) -> list[Level]:
    """Judge every figure in the samples. Samples are pairs (seconds, figures by name), in order.

    `slack` holds for some figures the growth that is allowed even if the figure is small, in its
    own unit. Without slack, only `GROWTH_MAX` applies.
    """
    names = dict.fromkeys(itertools.chain.from_iterable(figures for _, figures in samples))
    return [
        _judge_one(
            name,
            [(at, figures[name]) for at, figures in samples if name in figures],
            slack.get(name, 0.0),
        )
        for name in names
    ]


def _judge_one(name: str, points: Sequence[tuple[float, float]], slack: float) -> Level:
    highest = max(value for _, value in points)
    counted = points[int(len(points) * WARM_UP) :]
    third = max(1, len(counted) // 3)
    first = statistics.median(value for _, value in counted[:third])
    last = statistics.median(value for _, value in counted[-third:])
    middle = statistics.median(value for _, value in counted)
    growth = slope(counted) * (counted[-1][0] - counted[0][0])
    allowed = max(slack, GROWTH_MAX * middle)
    judged = len(counted) >= SAMPLES_MIN
    return Level(name, first, last, highest, growth, allowed, judged)


def slope(points: Sequence[tuple[float, float]]) -> float:
    """Return the median slope between all pairs of points; 0 if there is no pair."""
    slopes = [
        (later - earlier) / (at_later - at_earlier)
        for (at_earlier, earlier), (at_later, later) in itertools.combinations(points, 2)
        if at_later > at_earlier
    ]
    return statistics.median(slopes) if slopes else 0.0
