"""The check of a column of event times, in a few passes in C.

The module is pure. The callers look at each record only if the column is not usable as a whole.
"""

from __future__ import annotations

from typing import Any

from tidegate.api.watermarks import TIME_MAX_MS
from tidegate.errors import check_complete


def usable_times(found: list[Any], count: int) -> list[int] | None:
    """Return `found` if it has `count` integers in range; None if it may hold anything else.

    InternalError or the error of `check_complete` if it is shorter: user code raised StopIteration,
    which ends a `map`.
    """
    check_complete(len(found), count)
    if set(map(type, found)) - {int}:
        return None
    if found and not (min(found) >= -TIME_MAX_MS and max(found) <= TIME_MAX_MS):
        return None
    return found
