"""Hand-overs between backfills and a live run. A seed draws them.

The job begins as a backfill, whose driver is killed in a wave. The next driver continues at another
parallelism, up to an offset in the middle of each partition. A live run with kills continues in the
windows that are open there. A second backfill continues the live run up to the ends. The offsets in
the middle are drawn for each partition, so that the partitions end at different event times.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Final

from integration.agreement.inputs import PARTITIONS
from integration.faults.kill_points.kill_points import Trap

PARALLELISM_MAX: Final = 4
KILLS: Final = (
    Trap("slot.uploaded", nth=2),
    Trap("jobmaster.manifest", nth=2),
    Trap("jobmaster.published", nth=2),
)
"""The kills of a driver: in the snapshot of the first wave, and before and after the publication of
the second one. A pipeline that writes nothing reaches them too.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class HandOver:
    """The settings of the runs."""

    shares: tuple[float, ...]
    """The share of each partition that the first backfill reads."""
    waves: int
    """Approximate number of waves of the first backfill, and of the second one."""
    kill: Trap
    """The place at which the first driver is killed."""
    parallelisms: tuple[int, int, int, int]
    """The parallelisms of the two drivers, the live run and the second backfill. Each differs from
    the one before.
    """

    def __str__(self) -> str:
        shares = ", ".join(f"{share:.2f}" for share in self.shares)
        return f"({shares}) in {self.waves} waves at {self.parallelisms}, {self.kill.point}"


def hand_over_of(seed: int) -> HandOver:
    """Return the hand-over of a seed."""
    rng = random.Random(f"drawn hand-over {seed}")
    parallelisms = [rng.randint(1, PARALLELISM_MAX)]
    while len(parallelisms) < 4:
        others = set(range(1, PARALLELISM_MAX + 1)) - {parallelisms[-1]}
        parallelisms.append(rng.choice(sorted(others)))
    first, second, live, last = parallelisms
    return HandOver(
        shares=tuple(rng.uniform(0.2, 0.7) for _ in range(PARTITIONS)),
        waves=rng.randint(3, 6),
        kill=rng.choice(KILLS),
        parallelisms=(first, second, live, last),
    )
