"""Triggers: when a window gives its result.

The declarations here are data, and `dataplane/windows` carries them out. A window gives a result
only if it has records that no result of it contained before, so a trigger that fires often makes no
repeated results. `on_time="always"` is the exception: the result at the end comes in any case. The
last result of a window, when it is removed, contains everything that is left.

Example:
    AfterWatermark(early=Every("10 s"), late=EveryCount(100))
"""

from __future__ import annotations

from typing import Any, Generic, Literal, TypeVar

from tidegate.api.declarations.declaration_checks import check_choice
from tidegate.api.declarations.location import user_location
from tidegate.api.time.times import Duration, to_ms
from tidegate.errors import PipelineError

T_contra = TypeVar("T_contra", contravariant=True)

TimeDomain = Literal["event", "processing"]
"""The clock that counts: the event times of records, or the clock of the slot."""

TIME_DOMAINS = ("event", "processing")


class EveryCount:
    """Fire after this many records that no result contained. PipelineError if it is below 1."""

    def __init__(self, records: int) -> None:
        if not is_positive_int(records):
            raise PipelineError(
                f"{user_location()}: EveryCount({records!r}): give a whole number of at least 1."
            )
        self.records = records

    def describe(self) -> object:
        """Return the trigger as JSON."""
        return {"records": self.records}


class Every:
    """Fire at the multiples of a period at which there are records that no result contained.

    `time`: the clock that counts. "processing" (the default) is the clock of the slot. With
    "event", a multiple has come when the watermark has passed it. PipelineError for a duration that
    is malformed or not above 0.
    """

    def __init__(self, period: Duration, *, time: TimeDomain = "processing") -> None:
        where = f"{user_location()}: Every"
        self.period_ms = positive_ms(period, f"{where}, period")
        check_choice(where, "time", time, TIME_DOMAINS)
        self.time = time

    def describe(self) -> object:
        """Return the trigger as JSON."""
        return {"period_ms": self.period_ms, "time": self.time}


Repeat = EveryCount | Every
"""The times at which a window fires before or after its end."""


class Trigger(Generic[T_contra]):
    """The base of the triggers. This version has no triggers of users."""

    early: Repeat | None
    """The firings before the end of the window."""
    on_time: bool
    """Whether the window fires when the watermark passes its end."""
    always_on_time: bool = False
    """Whether it does so also if every record was in an earlier result."""
    late: Repeat | None
    """The firings after the end. None: the window fires only when it is removed."""
    accumulate: bool

    def describe(self) -> dict[str, object]:
        """Return the trigger as JSON, for the fingerprint of a pipeline."""
        return {
            "early": None if self.early is None else self.early.describe(),
            "on_time": "always" if self.always_on_time else self.on_time,
            "late": None if self.late is None else self.late.describe(),
            "accumulate": self.accumulate,
        }


class AfterWatermark(Trigger[object]):
    """Fire when the watermark passes the end of the window. It is the default.

    `early`: fire before the end too. `late`: the firings for records that come after the end and
    within the allowed lateness; None is `EveryCount(1)`. With `accumulate=False` a result contains
    only the records that no result before contained.

    `on_time`: with "if_new" (the default), a window fires at its end if it has records that no
    result contained. With "always", it fires at its end in any case, so each window that has had a
    record before its end has exactly one result whose `firing` is "on_time".
    """

    def __init__(
        self,
        *,
        early: Repeat | None = None,
        late: Repeat | None = None,
        accumulate: bool = True,
        on_time: Literal["if_new", "always"] = "if_new",
    ) -> None:
        where = f"{user_location()}: AfterWatermark"
        check_choice(where, "on_time", on_time, ("if_new", "always"))
        for name, repeat in (("early", early), ("late", late)):
            if repeat is not None:
                _check_repeat(repeat, f"{where}, {name}")
        self.early, self.late = early, EveryCount(1) if late is None else late
        self.on_time, self.accumulate = True, accumulate
        self.always_on_time = on_time == "always"


class Repeatedly(Trigger[object]):
    """Fire again and again, whatever the watermark is, and when the window is removed."""

    def __init__(self, when: Repeat, *, accumulate: bool = True) -> None:
        _check_repeat(when, f"{user_location()}: Repeatedly, when")
        self.early = self.late = when
        self.on_time, self.accumulate = False, accumulate


def positive_ms(duration: object, where: str) -> int:
    """Return the milliseconds of a duration. PipelineError if it is malformed or not above 0."""
    found = to_ms(duration, where)
    if found <= 0:
        raise PipelineError(f"{where}: {duration!r} must be at least 1 ms.")
    return found


def is_positive_int(number: object) -> bool:
    """Return whether a number is an int of at least 1, and no bool."""
    return isinstance(number, int) and not isinstance(number, bool) and number >= 1


def _check_repeat(repeat: Any, where: str) -> None:
    if not isinstance(repeat, EveryCount | Every):
        raise PipelineError(
            f"{where}: {repeat!r} is not EveryCount(...) or Every(...), as in Every('10 s')."
        )
