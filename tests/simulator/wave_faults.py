"""The faults of the tasks in the waves of a simulated backfill, as shares of the task runs.

An engine such as Spark runs a task again if its process died, if its output is lost, or if a copy
may be faster. The engine does not report which of these runs a later task has read. `tears` goes
beyond the known behavior of any engine: a task reads rows of two runs of one sender, or misses a
row.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Final

CORES_MAX: Final = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class WaveFaults:
    """The task faults of one simulator run."""

    cores: int
    """Number of tasks that run at a time."""
    dies: float
    """Share of task runs whose process is killed after a random time. The task then runs again."""
    speculates: float
    """Share of task runs for which a copy is started if they have not ended after some time."""
    loses: float
    """Share of tasks before which one of their inputs is lost. Another run makes it again."""
    tears: float
    """Share of tasks that get a mixture of two runs of a sender, or miss one row."""
    lingers: float
    """Share of task runs that continue although their wave no longer needs them."""
    second_driver: float
    """Share of backfills in which a second driver is started."""

    @classmethod
    def drawn(cls, rng: random.Random) -> WaveFaults:
        """Draw the shares. Each fault but `lingers` is absent in a third of the runs."""

        def share(most: float) -> float:
            return most * rng.random() if rng.random() < 2 / 3 else 0.0

        return cls(
            cores=rng.randint(1, CORES_MAX),
            dies=share(0.3),
            speculates=share(0.5),
            loses=share(0.6),
            tears=share(0.5),
            lingers=rng.random(),
            second_driver=share(0.6),
        )
