"""Lists reasons why a cell of the matrix takes longer than `SLOW_S`.

A reason names the event for which the job waits, and the purpose of the wait. The page shows every
slower cell with its reason. A cell without a reason is shown as not known. A developer writes a
reason here by hand after finding it in the logs. It holds for the cells that its pattern names, in
every run.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Mapping
from typing import Final

SLOW_S: Final = 20.0
"""Seconds above which a cell needs a reason. A failover of Kafka and the recovery after it take
less.
"""
UNKNOWN: Final = "**The reason is not known.** Read the logs of this cell."

REASONS: Final[Mapping[str, str]] = {
    "network/*/jobmaster-to-kafka/half-open": (
        "The JobMaster gets no signal that its connections were reset. It detects this when a "
        "request has no answer within 10 s. With a shorter time, a busy coordinator would count as "
        "dead."
    ),
    "backfill/*/SIGSTOP/slot.*/executor": (
        "Spark drops an executor that is silent for `spark.network.timeout` (12 s here, two "
        "minutes by default), and then runs its task on the other executor. Readers wait for the "
        "claim of the next wave, which aborts the open transaction of the frozen task."
    ),
}
"""Reasons by the pattern of a cell. The first pattern that matches counts."""


def reason(cell: str) -> str:
    """Return the reason of a slow cell."""
    return next(
        (why for pattern, why in REASONS.items() if fnmatch.fnmatch(cell, pattern)), UNKNOWN
    )
