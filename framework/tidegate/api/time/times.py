"""Durations in the form that users write, such as "10 s".

Points in time are integers: milliseconds since the epoch, as in Kafka.
"""

from __future__ import annotations

import re
from datetime import timedelta

from tidegate.errors import PipelineError

Duration = str | timedelta

_UNITS_MS = {"ms": 1, "s": 1_000, "min": 60_000, "h": 3_600_000, "d": 86_400_000}
_PATTERN = re.compile(r"(\d+)\s*(ms|s|min|h|d)")


def to_ms(duration: object, where: str) -> int:
    """Return the milliseconds of `"10 s"` or a timedelta.

    PipelineError if the duration is neither, or is negative. The argument may be any object,
    because users without a type checker write `5`. The error begins with `where`: the location and
    the keyword of the duration.
    """
    if isinstance(duration, timedelta):
        if duration < timedelta(0):
            raise PipelineError(f"{where}: {duration!r} is negative; a duration here goes forward.")
        return duration // timedelta(milliseconds=1)
    match = _PATTERN.fullmatch(duration.strip()) if isinstance(duration, str) else None
    if match is None:
        units = ", ".join(_UNITS_MS)
        raise PipelineError(
            f"{where}: {duration!r} is not a duration; write a whole number and one of {units}: "
            "'10 s'."
        )
    return int(match[1]) * _UNITS_MS[match[2]]


def to_signed_ms(duration: object, where: str) -> int:
    """Return the milliseconds of a duration that may be negative: `"-8 h"`. PipelineError as in
    `to_ms`.
    """
    if isinstance(duration, timedelta):
        return duration // timedelta(milliseconds=1)
    if isinstance(duration, str) and (text := duration.strip()).startswith("-"):
        return -to_ms(text.removeprefix("-"), where)
    return to_ms(duration, where)
