"""Windows: the groups of records by time that a step makes for each key.

An assigner says which windows a record is in. The declarations here are data.
`dataplane/windows` assigns records to windows, keeps them in state, and fires.
`api/steps/windowed_streams.py` has the methods that add a step.

Example:
    by_shop.window(Tumbling("1 h"), allowed_lateness="2 h")
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Sequence
from importlib import resources
from typing import Any, ClassVar, Final, Generic, Literal, TypeVar, cast, overload
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import msgspec
import tzdata  # type: ignore[import-untyped]

from tidegate.api.declarations.declaration_checks import check_choice
from tidegate.api.declarations.location import user_location
from tidegate.api.functions import Function, ProcessContext
from tidegate.api.time.times import Duration, to_signed_ms
from tidegate.api.windows.triggers import TIME_DOMAINS, TimeDomain, positive_ms
from tidegate.errors import PipelineError

W = TypeVar("W")
In = TypeVar("In")
Out = TypeVar("Out")
T_contra = TypeVar("T_contra", contravariant=True)

Unit = Literal["hour", "day", "week", "month", "year"]
UNITS: Final = ("hour", "day", "week", "month", "year")
PANES_MAX: Final = 100_000
"""Largest number of panes of a sliding window: more is probably a wrong unit."""


class Window(msgspec.Struct, Generic[W], frozen=True):
    """A window of a key, as its result shows it.

    `key` is None behind `window_all`. The end is exclusive. `firing` says whether the result comes
    before the end of the window, when the watermark passes it, or later. `number` counts the
    results of this window, from 0.
    """

    key: W
    start_ms: int
    end_ms: int
    firing: Literal["early", "on_time", "late"]
    number: int


class WindowContext(ProcessContext, Generic[W]):
    """The context of a firing. `timestamp_ms` is the time of its results: the end minus 1 ms."""

    __slots__ = ("window",)
    window: Window[W]


class WindowProcess(Function, Generic[W, In, Out]):
    """A function of all records of a window. Its declared states are per key and window.

    The records come by event time; of equal times, in the order of arrival. All of them are state,
    and each checkpoint in which the window changed stores them again. Prefer an aggregate.
    """

    def process(self, records: Sequence[In], ctx: WindowContext[W], /) -> Iterable[Out]:
        """Process the records of one firing and return its results."""
        raise NotImplementedError


class Assigner(Generic[T_contra]):
    """The rule that says which windows a record is in. This version has no assigners of users."""

    kind: ClassVar[str]
    time: TimeDomain = "event"

    def fixed(self) -> dict[str, str]:
        """Return what cannot change while open windows exist, for a checkpoint."""
        return {"windows": self.kind, "time": self.time}

    def describe(self) -> dict[str, object]:
        """Return the assigner as JSON, for the fingerprint of a pipeline."""
        return dict(self.fixed())


class Tumbling(Assigner[object]):
    """Windows of one size, one after the other. A record is in exactly one.

    A window begins at a multiple of `size` since the Unix epoch, plus `offset`, which may be
    negative: `Tumbling("1 d", offset="-8 h")` has the days of UTC+8. With `time="processing"`, the
    clock of the slot counts when a record arrives, so results cannot be repeated. PipelineError for
    a duration that is malformed, or a size of 0.
    """

    kind = "tumbling"

    def __init__(
        self, size: Duration, *, offset: Duration = "0 s", time: TimeDomain = "event"
    ) -> None:
        where = f"{user_location()}: Tumbling"
        self.size_ms = positive_ms(size, f"{where}, size")
        self.offset_ms = to_signed_ms(offset, f"{where}, offset") % self.size_ms
        check_choice(where, "time", time, TIME_DOMAINS)
        self.time = time

    def describe(self) -> dict[str, object]:
        """Return the kind, the size and the offset."""
        return {**self.fixed(), "size_ms": self.size_ms, "offset_ms": self.offset_ms}


class Sliding(Assigner[object]):
    """Windows of one size that begin every `every`. A record is in `size / every` of them.

    State is by pane, the part that neighbouring windows have in common, so a short `every` costs
    results, and state does not grow. `offset` and `time` are as in `Tumbling`. PipelineError if
    `every` is longer than `size`.
    """

    kind = "sliding"

    def __init__(
        self,
        size: Duration,
        every: Duration,
        *,
        offset: Duration = "0 s",
        time: TimeDomain = "event",
    ) -> None:
        where = f"{user_location()}: Sliding"
        self.size_ms = positive_ms(size, f"{where}, size")
        self.every_ms = positive_ms(every, f"{where}, every")
        if self.every_ms > self.size_ms:
            raise PipelineError(
                f"{where}({size!r}, {every!r}): records between two windows would be in none. Give "
                "a size of at least `every`, or use Tumbling."
            )
        self.offset_ms = to_signed_ms(offset, f"{where}, offset") % self.every_ms
        check_choice(where, "time", time, TIME_DOMAINS)
        self.time = time
        panes = self.size_ms // self.pane_ms
        if panes > PANES_MAX:
            raise PipelineError(
                f"{where}({size!r}, {every!r}) has {panes:,} panes, and {PANES_MAX:,} are allowed. "
                "Give an `every` that divides the size, or a longer one."
            )

    @property
    def pane_ms(self) -> int:
        """Length of a pane: the greatest one that divides `size` and `every`."""
        import math

        return math.gcd(self.size_ms, self.every_ms)

    def fixed(self) -> dict[str, str]:
        """Return the kind, and the sizes on which the panes depend."""
        sizes = {"size_ms": self.size_ms, "every_ms": self.every_ms, "offset_ms": self.offset_ms}
        return super().fixed() | {name: str(size) for name, size in sizes.items()}


class Session(Assigner[T_contra]):
    """Windows of records that are at most `gap` apart. A window ends `gap` after its last record.

    `gap` is a duration, or a function from a record to one. Two sessions that a record joins become
    one. PipelineError for a duration that is malformed or 0.
    """

    kind = "session"

    @overload
    def __init__(self: Session[object], gap: Duration, *, time: TimeDomain = "event") -> None: ...
    @overload
    def __init__(
        self, gap: Callable[[T_contra], Duration], *, time: TimeDomain = "event"
    ) -> None: ...
    def __init__(
        self, gap: Duration | Callable[[Any], Duration], *, time: TimeDomain = "event"
    ) -> None:
        self.location = user_location()
        where = f"{self.location}: Session"
        self.gap_ms: int | None = None
        self.gap_of: Callable[[Any], Duration] | None = None
        if callable(gap):
            self.gap_of = gap
        else:
            self.gap_ms = positive_ms(gap, f"{where}, gap")
        check_choice(where, "time", time, TIME_DOMAINS)
        self.time = time

    def describe(self) -> dict[str, object]:
        """Return the kind and the gap."""
        return {**self.fixed(), "gap_ms": self.gap_ms}


class Calendar(Assigner[object]):
    """Windows of one calendar unit in a time zone: local days of 23 to 25 hours, for example.

    A week begins on Monday. Zones come from the `tzdata` package, not from the host. PipelineError
    for another unit or an unknown zone.
    """

    kind = "calendar"

    def __init__(self, unit: Unit, *, zone: str) -> None:
        where = f"{user_location()}: Calendar"
        check_choice(where, "unit", unit, UNITS)
        self.unit: Unit = unit
        try:
            self.zone = load_zone(zone)
        except (ZoneInfoNotFoundError, ValueError):
            raise PipelineError(
                f"{where}: zone={zone!r} is not a name of the tz database, such as 'Europe/Berlin' "
                "or 'UTC'."
            ) from None
        self.zone_name = zone

    def describe(self) -> dict[str, object]:
        """Return the kind, the unit and the zone."""
        return {**self.fixed(), "unit": self.unit, "zone": self.zone_name}


class Global(Assigner[object]):
    """One window of all records of a key. It never ends, so it needs `trigger=Repeatedly(...)`."""

    kind = "global"


TZ_DATABASE: Final[str] = tzdata.IANA_VERSION
"""The version of the tz database in the `tzdata` package, for example 2026f."""


@functools.lru_cache(maxsize=100)
def load_zone(name: str) -> ZoneInfo:
    """Return a time zone of the `tzdata` package. ZoneInfoNotFoundError if it has none of this
    name.

    The data of the host is not used: two hosts could have different versions of it.
    """
    parts = name.split("/") if isinstance(cast("object", name), str) else []
    if not parts or not all(part and part.strip(".") == part for part in parts):
        raise ZoneInfoNotFoundError(name)
    try:
        with resources.files("tzdata.zoneinfo").joinpath(*parts).open("rb") as file:
            return ZoneInfo.from_file(file, key=name)
    except (OSError, ValueError):
        raise ZoneInfoNotFoundError(name) from None
