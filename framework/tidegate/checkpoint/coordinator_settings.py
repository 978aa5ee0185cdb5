"""The times by which the checkpoint coordinator works: those of the settings, and its own.

Pure, and no decision: `coordinator.py` says which of these times counts in which phase.
"""

from __future__ import annotations

import math
from typing import Final

import msgspec

from tidegate.config import CheckpointSettings

FIRST_S: Final = 0.2
"""From the start of an attempt to its first checkpoint, where the interval is not shorter: its
sources have begun to read by then."""

FINAL_RETRY_S: Final = 0.5
FINAL_RETRY_S_MAX: Final = 4.0
"""From a failed final checkpoint to the next try, doubled with each failure in a row up to the
maximum: what declined it may pass (a broker, a full disk), and without a pause all tries are over
within 60 ms."""

_DOUBLINGS_MAX: Final = 10
"""More reach the maximum anyway, and very many do not fit into a float."""


class CoordinatorSettings(msgspec.Struct, frozen=True, kw_only=True):
    """When checkpoints are taken, in seconds."""

    interval_s: float
    interval_during_backlog_s: float = 0.0
    timeout_s: float
    first_s: float = math.inf
    """The first one of an attempt comes so long after its start, if that is sooner."""
    min_pause_s: float = 0.0
    tolerable_failed_checkpoints: int = 0
    tolerated_outage_s: float = math.inf
    """The attempt fails if the checkpoint storage is gone for longer."""

    @classmethod
    def of(cls, settings: CheckpointSettings) -> CoordinatorSettings:
        """From the configuration's milliseconds."""
        return cls(
            interval_s=settings.interval / 1000,
            interval_during_backlog_s=settings.interval_during_backlog / 1000,
            timeout_s=settings.timeout / 1000,
            first_s=FIRST_S,
            min_pause_s=settings.min_pause / 1000,
            tolerable_failed_checkpoints=settings.tolerable_failed_checkpoints,
            tolerated_outage_s=settings.tolerated_outage / 1000,
        )


def final_retry_s(failed_in_a_row: int) -> float:
    """Seconds from a failed final checkpoint to the next try."""
    doublings = min(failed_in_a_row - 1, _DOUBLINGS_MAX)
    return min(FINAL_RETRY_S * 2.0**doublings, FINAL_RETRY_S_MAX)
