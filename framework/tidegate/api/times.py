"""Durations as people write them.

Points in time are integers: milliseconds since the epoch, Kafka's own unit.
"""

from __future__ import annotations

import re
from datetime import timedelta

from tidegate.errors import PipelineError

Duration = str | timedelta

_UNITS_MS = {"ms": 1, "s": 1_000, "min": 60_000, "h": 3_600_000, "d": 86_400_000}
_PATTERN = re.compile(r"(\d+)\s*(ms|s|min|h|d)")


def to_ms(duration: object, where: str) -> int:
    """Milliseconds of `"10 s"` or a timedelta; PipelineError if it is neither, or negative.

    It takes any object, for users without a type checker write `5`. `where` begins the error: the
    place and the keyword that it was given for.
    """
    if isinstance(duration, timedelta):
        if duration < timedelta(0):
            raise PipelineError(f"{where}: {duration!r} is negative; a duration here goes forward")
        return duration // timedelta(milliseconds=1)
    match = _PATTERN.fullmatch(duration.strip()) if isinstance(duration, str) else None
    if match is None:
        units = ", ".join(_UNITS_MS)
        raise PipelineError(
            f"{where}: {duration!r} is not a duration; write a whole number and one of {units}: "
            "'10 s'"
        )
    return int(match[1]) * _UNITS_MS[match[2]]
