"""The check of a column of event times, in a few passes.

The module is pure. The callers look at each record only if the column is not usable as a whole.
"""

from __future__ import annotations

from typing import Any

from tidegate.api.watermarks import TIME_MAX_MS, UnusableTimeError, instant_ms
from tidegate.errors import check_complete


def usable_times(found: list[Any], count: int) -> list[int] | None:
    """Return the `count` instants in `found` as milliseconds; None if one of them is unusable.

    The error of `check_complete` if there are fewer: user code raised StopIteration, which ends a
    `map`.
    """
    check_complete(len(found), count)
    if set(map(type, found)) - {int}:
        try:
            return list(map(instant_ms, found))
        except UnusableTimeError:
            return None
    if found and not (min(found) >= -TIME_MAX_MS and max(found) <= TIME_MAX_MS):
        return None
    return found
