"""How bad a simulated network is: weights of its faults, drawn once per run, and the fates they
give.

Some runs are calm and some are wild, and most have some kinds of faults and not others: what is
always a little wrong hides what goes wrong only when everything else is well (swarm testing: Groce
et al., 2012).
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Final

from tidegate.testing.sim.network import CALM_S, Copies
from tidegate.testing.sim.scheduler import SimProcess

FRAME_BREAKS_AT_MOST: Final = 0.0005
"""A slot sends thousands of frames; a job must get somewhere between two breaks."""

PRESENT: Final = 0.5
"""Share of the runs that know a kind of fault at all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkConditions:
    """Shares of messages, from 0 to 1, and seconds."""

    latency_s: float = CALM_S
    """Of one way; each message takes between none and twice of it."""
    lost: float = 0.0
    """Calls and replies that never arrive."""
    twice: float = 0.0
    """Calls and replies that arrive again, `late_s_max` later at most."""
    late: float = 0.0
    """Messages and frames that take up to `late_s_max`."""
    late_s_max: float = 5.0
    breaks: float = 0.0
    """Frames under which their connection breaks."""

    @classmethod
    def drawn(cls, chance: random.Random) -> NetworkConditions:
        """Each kind of fault is absent in half of all runs, and rare in most others."""

        def weight(most: float) -> float:
            return most * chance.random() ** 3 if chance.random() < PRESENT else 0.0

        return cls(
            latency_s=CALM_S * 10 ** (2 * chance.random()),
            lost=weight(0.2),
            twice=weight(0.3),
            late=weight(0.2),
            late_s_max=0.1 + 15 * chance.random() ** 2,
            breaks=weight(FRAME_BREAKS_AT_MOST),
        )


class MessageFaults:
    """`network.Fate` by a weather."""

    __slots__ = ("_chance", "weather")

    def __init__(self, weather: NetworkConditions, chance: random.Random) -> None:
        self.weather, self._chance = weather, chance

    def __call__(self, _sender: SimProcess, _receiver: SimProcess, kind: str) -> Copies:
        weather, draw = self.weather, self._chance.random
        delay_s = 2 * weather.latency_s * draw()
        if weather.late and draw() < weather.late:
            delay_s += weather.late_s_max * draw()
        if kind == "frame":
            return () if weather.breaks and draw() < weather.breaks else (delay_s,)
        if weather.lost and draw() < weather.lost:
            return ()
        if weather.twice and draw() < weather.twice:
            return (delay_s, delay_s + weather.late_s_max * draw())
        return (delay_s,)
