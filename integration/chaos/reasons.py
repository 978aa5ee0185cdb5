"""Why a cell of the matrix takes longer than `SLOW_S`: what is waited for, and what it is good for.

The page shows every cell that is slower, with its reason; one without is shown as a question. A
reason is written here by hand, once somebody has found it in the logs. It holds for the cells that
its pattern names, whichever run they were measured in.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Mapping
from typing import Final

SLOW_S: Final = 20.0
"""Longer than what a failover of Kafka and a recovery behind it come to."""
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
"""By pattern of a cell; the first that matches counts."""


def reason(cell: str) -> str:
    """Of a slow cell."""
    return next(
        (why for pattern, why in REASONS.items() if fnmatch.fnmatch(cell, pattern)), UNKNOWN
    )
