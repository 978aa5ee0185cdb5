"""How much a run has to do at once: bursts of records, user code that takes its time, and limits
so small that a few dozen records reach them.

Without it a simulated source has a record now and then, and nothing ever waits: no channel runs out
of credit, no barrier stands behind records, no sink lacks a producer, and a bug that needs any of
these is never met. Half of the runs have none of it, since what only shows on an idle job must be
found too.

The limits are constants of the product's modules, patched while the run lasts (`patches.py`).
Only their size changes; whatever keeps to them, or does not, is true code.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

LOADED: Final = 0.6
"""Share of the runs that have any load."""
WORKS: Final = 0.6
"""Share of those in which user code takes time."""
BURSTS_MAX: Final = 4
BURST_RECORDS_MAX: Final = 50
BUSY: Final = (0.3, 1.0)
"""What one subtask would need for all records, as a share of the time of faults: so there is nearly
always something that waits, at every barrier and at every kill."""
WORK_S_MAX: Final = 0.1
PATIENT_MS: Final = 10_000
"""The timeout of checkpoints where records take time. Barriers stand behind records that were read
before, and a job whose checkpoints never get through in time has no end."""
CREDITS: Final = 2
HASTY_FAILURES: Final = 20
"""So many may fail in a row where their timeout is short."""

SMALL: Final[Mapping[str, tuple[int, ...]]] = {
    "tidegate.dataplane.sources.kafka.BATCH_RECORDS_MAX": (2, 4, 8),
    "tidegate.dataplane.channels.record_writer.FRAME_RECORDS": (1, 2, 4),
}
"""So small where records take time, as a barrier waits for all that was read and sent before."""
LIMITS: Final[Mapping[str, tuple[int, ...]]] = {
    "tidegate.dataplane.channels.record_writer.CACHED_KEYS": (1, 3),
    "tidegate.dataplane.sinks.kafka.BUFFERED_RECORDS_MAX": (1, 4, 16),
    "tidegate.controlplane.jobmaster.job_plan.SPARE_SLOTS_MAX": (1, 2, 3),
    "tidegate.dataplane.state.pending_rows.ROWS": (1, 3),
}
"""Each is one of these in half of the loaded runs, else as the product has it."""


@dataclass(frozen=True, slots=True)
class Burst:
    """So many records at one moment."""

    at: float
    """As a share of the time in which there is input."""
    records: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """Of one run."""

    bursts: tuple[Burst, ...] = ()
    work_s: float = 0.0
    """What user code takes for a record, on average."""
    limits: Mapping[str, int] = field(default_factory=dict)
    """By qualified name."""
    cache_entries: int | None = None
    """Of the write-back cache; None is the product's."""
    hasty_ms: int | None = None
    """A timeout of checkpoints that is shorter than some requests take."""

    @classmethod
    def drawn(cls, chance: random.Random, *, trickle: int, wild_s: float) -> Load:
        """Of a run with `trickle` records besides and faults for so long."""
        if chance.random() >= LOADED:
            return cls()
        bursts = tuple(
            Burst(chance.random() ** 2, chance.randint(10, BURST_RECORDS_MAX))
            for _ in range(chance.randint(1, BURSTS_MAX))
        )
        works = chance.random() < WORKS
        records = trickle + sum(burst.records for burst in bursts)
        limits = dict(LIMITS) if works else {**SMALL, **LIMITS}
        drawn = {name: chance.choice(of) for name, of in limits.items() if chance.random() < 0.5}
        if works:
            drawn |= {name: chance.choice(of) for name, of in SMALL.items()}
        return cls(
            bursts=bursts,
            work_s=min(WORK_S_MAX, chance.uniform(*BUSY) * wild_s / records) if works else 0.0,
            limits=drawn,
            cache_entries=chance.choice((1, 2, None)),
            hasty_ms=None if works else chance.choice((400, 800, 800, None)),
        )

    def settled(self, settings: dict[str, Any]) -> dict[str, Any]:
        """The settings of a run, as far as its load has a say in them."""
        settings = {name: dict(section) for name, section in settings.items()}
        checkpoint = settings["checkpoint"]
        if self.work_s:
            checkpoint["timeout"] = max(checkpoint["timeout"], PATIENT_MS)
            settings["exchange"]["credits"] = CREDITS
        if self.hasty_ms is not None:
            checkpoint |= {"timeout": self.hasty_ms, "tolerable_failed_checkpoints": HASTY_FAILURES}
        return settings

    def __str__(self) -> str:
        if not self.bursts:
            return "no load"
        limits = {name.rsplit(".", 1)[1]: size for name, size in self.limits.items()}
        return (
            f"bursts of {', '.join(str(each.records) for each in self.bursts)}, "
            f"{self.work_s * 1000:.1f} ms for a record, {limits}"
        )
