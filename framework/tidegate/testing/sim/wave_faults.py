"""What befalls the tasks of a simulated backfill's waves, as shares of them.

An engine such as Spark runs a task again where its process has died, where its output is lost, and
where a copy may be faster; it does not tell whose rows a later task has read. `tears` is more than
any engine is known to do: rows of two runs of a sender in one task, or not all rows of one.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Final

CORES_MAX: Final = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class WaveFaults:
    """Of one run of the simulator."""

    cores: int
    """Tasks that run at a time."""
    dies: float
    """Runs whose process is killed half-way; the task runs again."""
    speculates: float
    """Runs beside which a copy is started."""
    loses: float
    """Runs before which an output that they read is lost, and made again by another run."""
    tears: float
    """Runs that are given a mixture of two runs of a sender, or not all of its rows."""
    lingers: float
    """Runs that go on after nobody waits for them any more."""
    second_driver: float
    """Lives with a second driver."""

    @classmethod
    def drawn(cls, chance: random.Random) -> WaveFaults:
        """Each is missing in a third of the runs."""

        def share(most: float) -> float:
            return most * chance.random() if chance.random() < 2 / 3 else 0.0

        return cls(
            cores=chance.randint(1, CORES_MAX),
            dies=share(0.3),
            speculates=share(0.5),
            loses=share(0.6),
            tears=share(0.5),
            lingers=chance.random(),
            second_driver=share(0.6),
        )
