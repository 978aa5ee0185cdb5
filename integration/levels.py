"""Whether a figure stays level over time, or grows: samples, their trend, a verdict.

A figure that only ever grows is a leak, whatever its size; one that is high for a while is not. So
the verdict is by trend: the median slope between all pairs of samples (Theil and Sen's estimator:
a few outliers do not move it), over the time that was watched, against what the figure is and what
it may be off by. The first samples are left out: caches fill, pools warm up.

Pure: what is measured, and when, is the caller's matter.
"""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

WARM_UP = 0.25
"""Of all samples: left out."""
SAMPLES_MIN = 8
"""After the warm-up; with less nothing can be said."""
GROWTH_MAX = 0.15
"""Of the median, over the time that was watched."""


@dataclass(frozen=True, slots=True)
class Level:
    """What became of one figure."""

    name: str
    first: float
    """Median of the first third of what counts."""
    last: float
    """Median of the last third."""
    highest: float
    growth: float
    """By the trend, over the time that was watched."""
    allowed: float
    judged: bool = True
    """False where there are too few samples."""

    @property
    def level(self) -> bool:
        """It does not grow: both by its trend and by what it was at the end."""
        return min(self.growth, self.last - self.first) <= self.allowed


def judge(
    samples: Sequence[tuple[float, Mapping[str, float]]], slack: Mapping[str, float]
) -> list[Level]:
    """A verdict on every figure that a sample has; samples are (seconds, figures), in order.

    `slack`: how much a figure may grow at least, however small it is, in its own unit; by default
    nothing but GROWTH_MAX.
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
    """The median slope between all pairs of points; 0 where there is no pair."""
    slopes = [
        (later - earlier) / (at_later - at_earlier)
        for (at_earlier, earlier), (at_later, later) in itertools.combinations(points, 2)
        if at_later > at_earlier
    ]
    return statistics.median(slopes) if slopes else 0.0
