"""Record classes with everything that a record can hold, objects of them, and what code sees.

The initialisers change their record each time they run, so a second run shows.
"""

from __future__ import annotations

import dataclasses
import enum
import functools
from collections.abc import Sequence
from datetime import UTC, date, datetime, time, timedelta, timezone, tzinfo
from decimal import Decimal
from typing import Any, Generic, TypedDict, TypeVar
from uuid import UUID
from zoneinfo import ZoneInfo

import msgspec
import pydantic

V = TypeVar("V")

BERLIN = ZoneInfo("Europe/Berlin")
REPEATED = datetime(2025, 10, 26, 2, 30)  # noqa: DTZ001  # an hour that the clock has twice
PYDANTIC = pydantic.TypeAdapter(datetime).validate_json('"2026-06-01T00:30:00+02:00"').tzinfo
PYDANTIC_UTC = pydantic.TypeAdapter(datetime).validate_json('"2026-06-01T00:30:00Z"').tzinfo
ZONES = [
    None,
    UTC,
    ZoneInfo("UTC"),
    BERLIN,
    PYDANTIC,
    PYDANTIC_UTC,
    timezone(timedelta(hours=2)),
    timezone(timedelta(0), "GMT"),
    timezone(timedelta(hours=-23, minutes=-59)),
    timezone(timedelta(seconds=3208)),
    timezone(timedelta(microseconds=-1)),
]
MOMENTS = [
    moment.replace(tzinfo=zone, fold=fold)
    for moment in (datetime.min, datetime.max, REPEATED)  # noqa: DTZ901
    for zone in ZONES
    for fold in (0, 1)
]


class Rule(tzinfo):
    """A zone whose rules are code."""

    def utcoffset(self, _: datetime | None) -> timedelta:
        return timedelta(hours=1)

    def dst(self, _: datetime | None) -> None:
        return None

    def tzname(self, _: datetime | None) -> None:
        return None


class Word(enum.StrEnum):
    A = "a"


class Colour(enum.Enum):
    RED = "r"


class Doubled(msgspec.Struct):
    """A Struct whose initialiser changes it."""

    amount: int
    at: datetime = REPEATED

    def __post_init__(self) -> None:
        self.amount *= 100


class Tag(msgspec.Struct, frozen=True, kw_only=True, rename="camel", tag="t"):
    first_name: str
    counts: Sequence[int] = ()
    ratio: float = 0

    def __post_init__(self) -> None:
        msgspec.structs.force_setattr(self, "first_name", f"{self.first_name}!")


class Named(msgspec.Struct, kw_only=True):
    """A Struct that takes its fields by name, and has nothing besides them."""

    at: datetime
    number: int = 0
    counts: Sequence[int] = ()


class Loose(msgspec.Struct, dict=True):
    number: int


class Compact(msgspec.Struct, array_like=True):
    ratio: float
    pairs: list[tuple[float, str]] = []


@dataclasses.dataclass
class Line:
    """A dataclass that computes fields, and keeps an attribute that no annotation names."""

    quantity: int
    price: Decimal = Decimal("1.50")
    total: Decimal = dataclasses.field(init=False)
    parts: list[Doubled] = dataclasses.field(init=False, default_factory=list)
    offset: dataclasses.InitVar[int] = 1

    def __post_init__(self, offset: int) -> None:
        self.quantity += offset
        self.total = self.price * self.quantity
        self.note = ("noted", self.quantity)

    @functools.cached_property
    def half(self) -> Decimal:
        return self.total / 2


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Slotted:
    name: str
    length: int = dataclasses.field(init=False, default=0)

    def __post_init__(self) -> None:
        object.__setattr__(self, "name", f"{self.name}!")
        object.__setattr__(self, "length", len(self.name))


@dataclasses.dataclass(frozen=True)
class Plain:
    number: int
    ratio: float = 0

    @functools.cached_property
    def twice(self) -> int:
        return self.number * 2


@dataclasses.dataclass
class Handmade:
    """A dataclass with an `__init__` of its own."""

    number: int
    name: str

    def __init__(self, number: int) -> None:
        self.number, self.name = number + 1, str(number)


@dataclasses.dataclass(frozen=True)
class Basket:
    """A frozen dataclass without an initialiser, whose list is no argument of the constructor."""

    name: str
    items: list[int] = dataclasses.field(init=False, default_factory=list)


@dataclasses.dataclass
class Counted:
    """A dataclass without an initialiser that has a slot besides its fields."""

    __slots__ = ("number", "seen")

    number: int


class Swapped(pydantic.BaseModel):
    """A model whose aliases are the names of the other fields."""

    model_config = pydantic.ConfigDict(populate_by_name=True)

    left: int = pydantic.Field(alias="right", default=1)
    right: int = pydantic.Field(alias="left", default=2)


class Open(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(extra="allow")

    user: str
    at: datetime | None = None
    _seen: int = pydantic.PrivateAttr(default=0)
    _lines: list[Line] = pydantic.PrivateAttr(default_factory=list)

    @pydantic.field_validator("user")
    @classmethod
    def _shout(cls, user: str) -> str:
        return f"{user}!"

    def model_post_init(self, context: object) -> None:
        del context
        self._seen += 100

    @functools.cached_property
    def length(self) -> int:
        return len(self.user)


class TypedExtra(pydantic.BaseModel):
    __pydantic_extra__: dict[str, Plain] = pydantic.Field(init=False)
    model_config = pydantic.ConfigDict(extra="allow")
    number: int = 0


class Box(pydantic.BaseModel, Generic[V]):
    model_config = pydantic.ConfigDict(arbitrary_types_allowed=True)

    content: V
    others: dict[str, V] = {}


class Root(pydantic.RootModel[list[int]]):
    pass


class Pair(msgspec.Struct, Generic[V], frozen=True):
    left: V
    right: V | None


class Session(TypedDict):
    user: str
    pages: list[str]


@dataclasses.dataclass
class Everything:
    """A record of all of these."""

    at: datetime
    union: Doubled | Line | Open | int | datetime | None
    free: Any
    tags: dict[str, list[Tag]]
    sessions: tuple[Session, ...] = ()
    by_number: dict[int, Open] = dataclasses.field(default_factory=dict)
    day: date = date.min


def opened(**values: Any) -> Open:
    found = Open(**values)
    found._lines.append(Line(3))
    return found


def noted(line: Any) -> Any:
    line.remark = {"at": REPEATED.replace(tzinfo=BERLIN, fold=1)}
    return line


def loose() -> Loose:
    found = Loose(1)
    found.more = (1, "x")  # type: ignore[attr-defined]
    return found


def cached() -> Plain:
    found = Plain(4)
    assert found.twice == 8
    return found


def filled() -> Basket:
    found = Basket("a")
    found.items.append(1)
    return found


def counted() -> Counted:
    found = Counted(1)
    found.seen = (1, "x")  # type: ignore[attr-defined]
    return found


def computed(line: Line) -> Line:
    line.parts.append(Doubled(2))
    assert line.half
    return line


FREE: list[Any] = [
    (1, [2, {"a": {3}}]),
    {1: "a", (1, 2): "b", "c": None},
    [Decimal("1.0"), UUID(int=4), date.max, timedelta(-1, 2, 3), frozenset([1]), bytearray(b"x")],
    {"a": time(1, 2, 3, 4, tzinfo=BERLIN, fold=1), "b": time(1)},
    [2**80, -(2**80), True, 1, 1.0, -0.0, float("nan"), float("inf"), b"x", "x", None],
    [{"at": moment} for moment in MOMENTS[-22:]],
]
OBJECTS: list[tuple[Any, Any]] = [
    *((datetime, moment) for moment in MOMENTS),
    *((Any, value) for value in FREE),
    (float, 5),
    (float, 2**80),
    (float, -0.0),
    (int, 2**80),
    (float | str, 5),
    (Sequence[Doubled], (Doubled(1), Doubled(2))),
    (Sequence[int], ()),
    (Sequence[int], [1]),
    (list[Sequence[datetime]], [(REPEATED,), [REPEATED.replace(tzinfo=BERLIN)]]),
    (Decimal, Decimal("-0E+5")),
    (Decimal, Decimal("sNaN")),
    (Decimal, Decimal("-Infinity")),
    (Doubled, Doubled(1)),
    (Tag, Tag(first_name="ann")),
    (Tag, Tag(first_name="ann", counts=[1], ratio=0.5)),
    (Named, Named(at=REPEATED.replace(tzinfo=BERLIN))),
    (Named, Named(at=REPEATED, number=2**80, counts=[1, 2**80])),
    (dict[datetime, int], dict.fromkeys(MOMENTS[-11:], 1)),
    (dict[datetime, int], {moment: 2**80 for moment in MOMENTS if moment.tzinfo is UTC}),
    (dict[float, str], {1: "a", 2.5: "b", 2**80: "c"}),
    (dict[int, datetime], {1: REPEATED.replace(tzinfo=BERLIN), -(2**80): MOMENTS[0]}),
    (Loose, Loose(1)),
    (Loose, loose()),
    (Compact, Compact(1, [(2, "x"), (2.0, "y")])),
    (Line, Line(1)),
    (Line, computed(Line(1, Decimal("2.0")))),
    (Line, noted(Line(1))),
    (Slotted, Slotted(name="x")),
    (Plain, Plain(1)),
    (Plain, cached()),
    (Basket, filled()),
    (Counted, Counted(1)),
    (Counted, counted()),
    (Handmade, Handmade(1)),
    (Handmade, noted(Handmade(1))),
    (Swapped, Swapped(left=3, right=4)),
    (Swapped, Swapped(left=3)),
    (Swapped, Swapped()),
    (Open, opened(user="ann")),
    (Open, opened(user="ann", at=MOMENTS[-1], page="/", more=[1, {"x": None}])),
    (TypedExtra, TypedExtra(one=Plain(1), two=Plain(2))),  # type: ignore[call-arg]
    (Box[int], Box[int](content=1)),
    (Box[Doubled], Box[Doubled](content=Doubled(1), others={"a": Doubled(2)})),
    (Root, Root([1, 2])),
    (Pair[datetime], Pair(REPEATED, REPEATED.replace(tzinfo=PYDANTIC, fold=1))),
    (Pair[Doubled | Line], Pair(Line(2), Doubled(3))),
    (Session, {"user": "ann", "pages": []}),
    (Session, {"pages": ["/"], "user": "ann"}),
    (Session, {"zone": BERLIN.key, "pages": ["/"], "user": "ann", "at": (1, 2)}),
    *(
        (
            Everything,
            Everything(
                moment,
                union,
                free,
                {"a": [Tag(first_name="x")], "": []},
                ({"user": "ann", "pages": ["/"]},),
                {1: opened(user="a", extra=1)},
            ),
        )
        for moment, union, free in zip(
            MOMENTS[-7:],
            [Doubled(1), Line(1), opened(user="b"), 2**80, MOMENTS[-9], None, 5],
            [*FREE, None],
            strict=True,
        )
    ),
]


def facts(value: Any) -> Any:
    """Return everything that code can see of a value, without identities, in a form that `==`
    compares exactly.
    """
    kind = type(value)
    if issubclass(kind, datetime | time):
        bare = repr(value.replace(tzinfo=None, fold=0))
        return kind, bare, value.fold, type(value.tzinfo), repr(value.tzinfo)
    if issubclass(kind, dict):
        return kind, [(facts(key), facts(inner)) for key, inner in value.items()]
    if issubclass(kind, set | frozenset):
        return kind, sorted(map(repr, map(facts, value)))
    if issubclass(kind, list | tuple):
        return kind, list(map(facts, value))
    if isinstance(value, msgspec.Struct):
        fields = [(name, facts(getattr(value, name))) for name in kind.__struct_fields__]
        return kind, fields, facts(getattr(value, "__dict__", None))
    if isinstance(value, pydantic.BaseModel):
        parts = (value.__dict__, value.__pydantic_extra__, value.__pydantic_private__)
        return kind, list(map(facts, parts)), sorted(value.__pydantic_fields_set__)
    if dataclasses.is_dataclass(value):
        names = {*getattr(value, "__dict__", ()), *(f.name for f in dataclasses.fields(value))}
        names.update(*(vars(base).get("__slots__", ()) for base in kind.__mro__))
        return kind, [(name, facts(getattr(value, name, "not set"))) for name in sorted(names)]
    return kind, repr(value)
