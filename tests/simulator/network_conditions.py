"""The faults of a simulated network: their rates, drawn once per run, and their effect on messages.

Some runs are calm and some are wild, and most runs have some kinds of faults and not others. A
fault that is always present can hide a bug that appears only without it (swarm testing: Groce et
al., 2012).
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Final

from tests.simulator.network import BASE_LATENCY_S, Copies
from tests.simulator.scheduler import SimProcess

FRAME_BREAKS_AT_MOST: Final = 0.0005
"""Largest share of frames that break their connection. A slot sends thousands of frames, and a job
must make progress between two breaks.
"""

PRESENT: Final = 0.5
"""Share of the runs in which a kind of fault occurs at all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkConditions:
    """The fault rates, as shares of messages from 0 to 1, and times in seconds."""

    latency_s: float = BASE_LATENCY_S
    """Mean latency of one way. Each message takes between zero and twice this time."""
    lost: float = 0.0
    """Share of the calls and replies that never arrive."""
    twice: float = 0.0
    """Share of the calls and replies that arrive a second time, up to `late_s_max` later."""
    late: float = 0.0
    """Share of the messages and frames that are delayed by up to `late_s_max`."""
    late_s_max: float = 5.0
    breaks: float = 0.0
    """Share of the frames that break their connection."""

    @classmethod
    def drawn(cls, rng: random.Random) -> NetworkConditions:
        """Draw the rates of a run. Half of all runs lack a kind of fault; in most others it is
        rare.
        """

        def draw_rate(most: float) -> float:
            return most * rng.random() ** 3 if rng.random() < PRESENT else 0.0

        return cls(
            latency_s=BASE_LATENCY_S * 10 ** (2 * rng.random()),
            lost=draw_rate(0.2),
            twice=draw_rate(0.3),
            late=draw_rate(0.2),
            late_s_max=0.1 + 15 * rng.random() ** 2,
            breaks=draw_rate(FRAME_BREAKS_AT_MOST),
        )


class MessageFaults:
    """A `network.Delivery` that draws the copies of each message from the network conditions."""

    __slots__ = ("_rng", "conditions")

    def __init__(self, conditions: NetworkConditions, rng: random.Random) -> None:
        self.conditions, self._rng = conditions, rng

    def __call__(self, _sender: SimProcess, _receiver: SimProcess, kind: str) -> Copies:
        conditions, draw = self.conditions, self._rng.random
        delay_s = 2 * conditions.latency_s * draw()
        if conditions.late and draw() < conditions.late:
            delay_s += conditions.late_s_max * draw()
        if kind == "frame":
            return () if conditions.breaks and draw() < conditions.breaks else (delay_s,)
        if conditions.lost and draw() < conditions.lost:
            return ()
        if conditions.twice and draw() < conditions.twice:
            return (delay_s, delay_s + conditions.late_s_max * draw())
        return (delay_s,)
