"""The form in which a datetime keeps its zone and its `fold` between slots and in state.

msgpack has timestamps, which are read back in UTC. So a datetime in `timezone.utc` is a timestamp,
as in earlier versions, and costs nothing more. Other datetimes have one of two forms:

- text in RFC 3339, for a zone of whole minutes without a name, and for a datetime without a zone;
- a msgpack extension of type 2 for all others: the clock's time, `fold`, the kind of the zone, and
  what makes the zone.

These zones are carried: `datetime.timezone`, `zoneinfo.ZoneInfo` with a key, and the zones that
pydantic gives to the datetimes it reads. A zone of another class is refused, because its rules are
code. The clock's time is stored, and not the instant, so a `ZoneInfo` gives the same arithmetic.
"""

from __future__ import annotations

import sys
from datetime import UTC, datetime, timedelta, timezone, tzinfo
from typing import Any, Final
from zoneinfo import ZoneInfo

import msgspec

from tidegate.user_exceptions import repr_of

MOMENT: Final = 2
"""The type of the msgpack extension."""

_NAIVE, _FIXED, _REGION, _PYDANTIC = 0, 1, 2, 3
"""Kinds of zones. They are stored, so their numbers never change."""

_MICROSECOND: Final = timedelta(microseconds=1)

_Stored = tuple[datetime, int, int, list[int | str]]
_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(_Stored).decode


def pack_moment(value: Any) -> Any:
    """Return a datetime in a form that msgpack can encode and that keeps its zone.

    TypeError for a datetime whose zone is not carried, and for a value of another class.
    """
    if value.__class__ is not datetime:
        raise TypeError(f"{repr_of(value)} is of the class {type(value).__name__}, not datetime")
    zone = value.tzinfo
    if not value.fold:
        if zone is None or zone is UTC:
            return value
        if type(zone) is timezone and _is_plain(zone):
            return value.isoformat()
    kind, arguments = stored_zone(zone)
    wall = value.replace(tzinfo=None, fold=0)
    return msgspec.msgpack.Ext(MOMENT, _encode((wall, value.fold, kind, arguments)))


def pack_key(value: Any) -> Any:
    """Return the same for a key of a dict; OverflowError for an extension, which cannot be one."""
    packed = pack_moment(value)
    if isinstance(packed, msgspec.msgpack.Ext):
        raise OverflowError(f"{value!r} has no narrow form")
    return packed


def unpack_moment(data: bytes | memoryview) -> datetime:
    """Return the datetime that the data of an extension of type `MOMENT` describe."""
    wall, fold, kind, arguments = _decode(data)
    moment: datetime = wall.replace(tzinfo=read_zone(kind, arguments), fold=fold)
    return moment


def as_moment(plain: Any) -> datetime:
    """Return the datetime of a value that msgpack has decoded as a datetime or an extension."""
    if not isinstance(plain, msgspec.msgpack.Ext):
        moment: datetime = plain
        return moment
    if plain.code != MOMENT:
        raise ValueError(f"an extension of type {plain.code} is no datetime")
    return unpack_moment(bytes(plain.data))


def zone_is_carried(value: datetime) -> bool:
    """Check whether a datetime keeps its zone between slots and in state."""
    zone = value.tzinfo
    return zone is None or type(zone) is timezone or not why_not_carried(zone)


def why_not_carried(zone: tzinfo) -> str:
    """Return why a zone cannot be carried; empty if it can."""
    try:
        stored_zone(zone)
    except TypeError as error:
        return str(error)
    return ""


def stored_zone(zone: tzinfo | None) -> tuple[int, list[int | str]]:
    """Return the kind of a zone and what makes it; TypeError if it is not carried."""
    if zone is None:
        return _NAIVE, []
    if type(zone) is timezone:
        offset, *name = zone.__getinitargs__()  # type: ignore[attr-defined]  # not in the stubs
        return _FIXED, [offset // _MICROSECOND, *name]
    if type(zone) is ZoneInfo and zone.key is not None:
        return _REGION, [zone.key]
    if type(zone) is _pydantic_zone():
        return _PYDANTIC, [zone.__reduce__()[1][0]]  # the offset in seconds
    raise TypeError(
        f"the time zone {repr_of(zone)} is of the class {type(zone).__module__}."
        f"{type(zone).__qualname__}, which is not kept; use datetime.timezone or "
        "zoneinfo.ZoneInfo"
    )


def read_zone(kind: int, arguments: list[Any]) -> tzinfo | None:
    """Return the zone that `stored_zone` has described."""
    if kind == _NAIVE:
        return None
    if kind == _FIXED:
        return timezone(timedelta(microseconds=arguments[0]), *arguments[1:])
    if kind == _REGION:
        return ZoneInfo(arguments[0])
    if kind == _PYDANTIC:
        from pydantic_core import TzInfo  # no datetime has this zone before pydantic is imported

        return TzInfo(arguments[0])
    raise ValueError(f"{kind} is no kind of a time zone")


def _is_plain(zone: timezone) -> bool:
    """Check whether a zone is only its offset, in whole minutes."""
    arguments = zone.__getinitargs__()  # type: ignore[attr-defined]  # not in the stubs
    if len(arguments) > 1:
        return False
    offset: timedelta = arguments[0]
    return not offset.seconds % 60 and not offset.microseconds


def _pydantic_zone() -> object:
    return getattr(sys.modules.get("pydantic_core"), "TzInfo", None)
