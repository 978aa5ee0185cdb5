"""The times that the checkpoint coordinator uses: those of the settings, and constants of its own.

This module is pure and makes no decision. `coordinator.py` chooses which time counts in which
phase.
"""

from __future__ import annotations

import math
from typing import Final

import msgspec

from tidegate.config import CheckpointSettings

FIRST_S: Final = 0.2
"""Seconds from the start of an attempt to its first checkpoint, unless the interval is shorter. The
sources have begun to read by then.
"""

FINAL_RETRY_S: Final = 0.5
FINAL_RETRY_S_MAX: Final = 4.0
"""The first and the longest pause in seconds between a failed final checkpoint and the next try.
The pause doubles with each successive failure. The cause of a decline may pass (a broker, a full
disk), and without a pause all tries would be over within 60 ms.
"""

_DOUBLINGS_MAX: Final = 10
"""The most doublings that are computed. More doublings exceed the maximum anyway, and very many do
not fit into a float.
"""


class CoordinatorSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The times at which checkpoints are taken, in seconds."""

    interval_s: float
    interval_during_backlog_s: float = 0.0
    interval_when_idle_s: float = 0.0
    timeout_s: float
    first_s: float = math.inf
    """The time from the start of an attempt to its first checkpoint. `min_pause_s` can make it
    longer, and `interval_s` can make it shorter.
    """
    min_pause_s: float = 0.0
    tolerable_failed_checkpoints: int = 0
    tolerated_outage_s: float = math.inf
    """The longest outage of the checkpoint storage; the attempt fails if the storage is gone for
    longer.
    """

    @classmethod
    def of(cls, settings: CheckpointSettings) -> CoordinatorSettings:
        """Return the settings of the configuration, converted from milliseconds to seconds."""
        return cls(
            interval_s=settings.interval / 1000,
            interval_during_backlog_s=settings.interval_during_backlog / 1000,
            interval_when_idle_s=settings.interval_when_idle / 1000,
            timeout_s=settings.timeout / 1000,
            first_s=FIRST_S,
            min_pause_s=settings.min_pause / 1000,
            tolerable_failed_checkpoints=settings.tolerable_failed_checkpoints,
            tolerated_outage_s=settings.tolerated_outage / 1000,
        )


def final_retry_s(failed_in_a_row: int) -> float:
    """Return the seconds from a failed final checkpoint to the next try."""
    doublings = min(failed_in_a_row - 1, _DOUBLINGS_MAX)
    return min(FINAL_RETRY_S * 2.0**doublings, FINAL_RETRY_S_MAX)
