"""Reasons why a cell of the matrix takes longer than `SLOW_S`: what the job waits for, and the
purpose of that wait.

The page shows every slower cell with its reason. A cell without a reason is shown as not known. A
developer writes a reason here by hand after finding it in the logs. It holds for the cells that its
pattern names, in every run.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Mapping
from typing import Final

SLOW_S: Final = 20.0
"""Seconds above which a cell needs a reason. A failover of Kafka and the recovery after it take
less.
"""
UNKNOWN: Final = "**not known**: the logs of this cell are to be read"

REASONS: Final[Mapping[str, str]] = {
    "network/*/jobmaster-to-kafka/half-open": (
        "Nobody tells the JobMaster that its connections are gone: a request finds it out that has "
        "no answer within 10 s. A shorter time would take a busy coordinator for a dead one."
    ),
    "backfill/*/SIGSTOP/slot.*/executor": (
        "Spark gives an executor up that is silent for `spark.network.timeout` (12 s here, two "
        "minutes by default), and then runs its task on the other one. Readers wait for the claim "
        "of the next wave, which aborts what the frozen task has left open."
    ),
}
"""Reasons by the pattern of a cell. The first pattern that matches counts."""


def reason(cell: str) -> str:
    """Return the reason of a slow cell."""
    return next(
        (why for pattern, why in REASONS.items() if fnmatch.fnmatch(cell, pattern)), UNKNOWN
    )
