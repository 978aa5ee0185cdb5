"""The load of a run: bursts of records, slow user code, and small limits.

The limits are so small that a few dozen records reach them. Without load, a simulated source has a
record now and then, and no record ever waits. No channel runs out of credit, no barrier queues
after records, and no sink lacks a producer. A bug that needs any of these would never be found. The
other runs have no load (see `LOADED`), so that bugs of an idle job are found too.

The limits are constants of the product's modules, patched during the run (`patches.py`). Only their
size changes. The code that obeys them is the real code.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

LOADED: Final = 0.6
"""Share of the runs that have any load."""
WORKS: Final = 0.6
"""Share of the loaded runs in which user code takes time."""
BURSTS_MAX: Final = 4
BURST_RECORDS_MAX: Final = 50
BUSY: Final = (0.3, 1.0)
"""Range of the time that one subtask would need for all records, as a share of the time of faults.
With these values some records nearly always wait, at every barrier and at every kill.
"""
WORK_S_MAX: Final = 0.1
LONG_TIMEOUT_MS: Final = 10_000
"""Checkpoint timeout in ms if records take time. Barriers queue after records that were read
before, and a job whose checkpoints always time out never ends.
"""
CREDITS: Final = 2
SHORT_TIMEOUT_FAILURES: Final = 20
"""Number of checkpoints that may fail in a row if their timeout is short."""

SMALL: Final[Mapping[str, tuple[int, ...]]] = {
    "tidegate.dataplane.sources.kafka.BATCH_RECORDS_MAX": (2, 4, 8),
    "tidegate.dataplane.channels.record_writer.FRAME_RECORDS": (1, 2, 4),
}
"""Limits that are always small if records take time, because a barrier waits for all records that
were read and sent before it.
"""
LIMITS: Final[Mapping[str, tuple[int, ...]]] = {
    "tidegate.dataplane.channels.record_writer.MAX_ENCODED_BATCHES": (1, 3),
    "tidegate.dataplane.sinks.kafka.BUFFERED_RECORDS_MAX": (1, 4, 16),
    "tidegate.controlplane.journal.job_plan.SPARE_IDS_MAX": (1, 2, 3),
    "tidegate.dataplane.state.pending_rows.ROWS": (1, 3),
}
"""Small values of limits. Each limit has one of them in half of the loaded runs, and else the value
of the product.
"""


@dataclass(frozen=True, slots=True)
class Burst:
    """A number of records that arrive at one time."""

    at: float
    """Time of the burst, as a share of the time in which there is input."""
    records: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """The load of one run."""

    bursts: tuple[Burst, ...] = ()
    work_s: float = 0.0
    """Average time that user code takes for a record, in seconds."""
    limits: Mapping[str, int] = field(default_factory=dict)
    """The patched limits, by qualified name."""
    cache_entries: int | None = None
    """Number of entries of the write-back cache. None means the value of the product."""
    short_timeout_ms: int | None = None
    """Checkpoint timeout in ms that is shorter than some requests. None means no such timeout."""

    @classmethod
    def drawn(cls, rng: random.Random, *, trickle: int, fault_period_s: float) -> Load:
        """Draw the load of a run.

        The run has `trickle` records in addition to the bursts, and faults for `fault_period_s`
        seconds.
        """
        if rng.random() >= LOADED:
            return cls()
        bursts = tuple(
            Burst(rng.random() ** 2, rng.randint(10, BURST_RECORDS_MAX))
            for _ in range(rng.randint(1, BURSTS_MAX))
        )
        works = rng.random() < WORKS
        records = trickle + sum(burst.records for burst in bursts)
        limits = dict(LIMITS) if works else {**SMALL, **LIMITS}
        drawn = {name: rng.choice(of) for name, of in limits.items() if rng.random() < 0.5}
        if works:
            drawn |= {name: rng.choice(of) for name, of in SMALL.items()}
        return cls(
            bursts=bursts,
            work_s=min(WORK_S_MAX, rng.uniform(*BUSY) * fault_period_s / records) if works else 0.0,
            limits=drawn,
            cache_entries=rng.choice((1, 2, None)),
            short_timeout_ms=None if works else rng.choice((400, 800, 800, None)),
        )

    def adjust_settings(self, settings: dict[str, Any]) -> dict[str, Any]:
        """Return the settings of a run with the changes that its load needs."""
        settings = {name: dict(section) for name, section in settings.items()}
        checkpoint = settings["checkpoint"]
        if self.work_s:
            checkpoint["timeout"] = max(checkpoint["timeout"], LONG_TIMEOUT_MS)
            settings["exchange"]["credits"] = CREDITS
        if self.short_timeout_ms is not None:
            checkpoint |= {
                "timeout": self.short_timeout_ms,
                "tolerable_failed_checkpoints": SHORT_TIMEOUT_FAILURES,
            }
        return settings

    def __str__(self) -> str:
        if not self.bursts:
            return "no load"
        limits = {name.rsplit(".", 1)[1]: size for name, size in self.limits.items()}
        return (
            f"bursts of {', '.join(str(each.records) for each in self.bursts)}, "
            f"{self.work_s * 1000:.1f} ms for a record, {limits}"
        )
