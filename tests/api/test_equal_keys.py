"""Keys that Python calls equal have equal bytes, and keys with equal bytes are equal.

Caches and map cells find keys by `==`, stores and key groups by bytes. Where the two disagree, the
records of one key meet the state of another, or two cells write to one row. Method: keys of each
type as user code may give them (other zones, other exponents, subclasses, equal values of other
types); each pair is compared both ways after it was normalised as `key_by` does. A key may also be
refused, which is loud. Then the same through a pipeline and through keyed state.
"""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Iterable, Iterator
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from itertools import product
from pathlib import Path
from typing import Any, Literal
from uuid import UUID
from zoneinfo import ZoneInfo

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, ConfigDict, PrivateAttr

from tests.dataplane.state.job import Step, declare
from tidegate import (
    Context,
    Json,
    KafkaSink,
    KafkaSource,
    KeyedProcess,
    MapState,
    Pipeline,
    PipelineError,
    ValueState,
)
from tidegate.api.records.types import type_info
from tidegate.api.state.keys import key_encoder, key_normaliser
from tidegate.errors import TidegateError
from tidegate.graph.key_groups import key_group
from tidegate.testing import FunctionHarness, PipelineTest

BERLIN, PARIS = ZoneInfo("Europe/Berlin"), ZoneInfo("Europe/Paris")
EAST = timezone(timedelta(hours=2))
FIRST_0230 = datetime(2026, 10, 25, 2, 30, tzinfo=BERLIN)
"""The clock goes from 3:00 back to 2:00: this is 0:30 UTC."""
SECOND_0230 = FIRST_0230.replace(fold=1)
"""The same wall-clock time an hour later: 1:30 UTC."""


class Text(str):
    __slots__ = ()


class Whole(int):
    pass


class Blob(bytes):
    pass


class Level(enum.IntEnum):
    LOW = 1
    HIGH = 2


class Word(enum.StrEnum):
    A = "a"


class Moment(datetime):
    pass


@dataclasses.dataclass(frozen=True)
class Card:
    issuer: str
    number: int
    note: str = dataclasses.field(default="", compare=False)


@dataclasses.dataclass(frozen=True)
class GoldCard(Card):
    limit: int = 0


class Visit(msgspec.Struct, frozen=True):
    at: datetime
    page: str = ""


class LongVisit(Visit, frozen=True):
    pass


class Stay(BaseModel):
    model_config = ConfigDict(frozen=True)
    at: datetime
    nights: tuple[datetime, ...] = ()


minutes = st.integers(0, 4 * 60 * 4)
instants = minutes.map(lambda n: datetime(2026, 10, 24, 22, 0, tzinfo=UTC) + timedelta(minutes=n))
"""Around the repeated hour, so that many of them differ only in their fold."""
zones = st.sampled_from([BERLIN, PARIS, UTC, EAST, ZoneInfo("UTC"), ZoneInfo("America/New_York")])
moments = st.one_of(
    st.builds(lambda at, zone: at.astimezone(zone), instants, zones),
    st.builds(
        lambda at, fold: at.replace(tzinfo=BERLIN, fold=fold), instants, st.sampled_from([0, 1])
    ),
    st.sampled_from([FIRST_0230, SECOND_0230, Moment(2026, 10, 25, 0, 30, tzinfo=UTC)]),
    st.sampled_from(
        [
            datetime(1, 1, 1, tzinfo=EAST),
            datetime(1, 1, 1, 1, tzinfo=timezone(timedelta(hours=3))),
            datetime(9999, 12, 31, 23, tzinfo=timezone(timedelta(hours=-2))),
        ]
    ),
)
numbers: st.SearchStrategy[Any] = st.sampled_from(
    [0, 1, 2, -1, True, False, 1.0, 0.0, -0.0, float("nan"), Decimal(1), Whole(1), Level.LOW]
)
texts: st.SearchStrategy[Any] = st.sampled_from(["", "a", Text("a"), Word.A, "b", b"a", "\ud800"])
decimals = st.sampled_from(["1", "1.0", "1.00", "1E+1", "10", "0", "-0", "0.0", "NaN", "Infinity"])
cards: st.SearchStrategy[Any] = st.one_of(
    st.builds(Card, texts.filter(lambda t: isinstance(t, str)), numbers, st.sampled_from("xy")),
    st.builds(GoldCard, st.just("a"), st.just(1)),
)
KEYS: list[tuple[Any, st.SearchStrategy[Any]]] = [
    (str, texts),
    (bytes, st.sampled_from([b"", b"a", Blob(b"a"), bytearray(b"a"), memoryview(b"a"), "a"])),
    (int, numbers),
    (bool, numbers),
    (Decimal, decimals.map(Decimal) | numbers),
    (date, st.sampled_from([date(2026, 1, 1), date(2026, 1, 2)]) | moments),
    (datetime, moments),
    (UUID, st.sampled_from([UUID(int=0), UUID(int=1), 0, "0"])),
    (Level, st.sampled_from([Level.LOW, 1, True, 1.0, Level.HIGH])),
    (Word, texts),
    (Literal[1, 2], numbers),
    (tuple[int, str], st.tuples(numbers, texts)),
    (tuple[int, ...], st.lists(numbers, max_size=3).map(tuple)),
    (tuple[datetime, int], st.tuples(moments, numbers)),
    (tuple[datetime, ...], st.lists(moments, max_size=2).map(tuple)),
    (Card, cards),
    (Visit, st.builds(Visit, moments) | st.builds(LongVisit, moments)),
    (tuple[Visit, ...], st.builds(Visit, moments).map(lambda one: (one,))),
    (Stay, st.builds(Stay.model_construct, at=moments, nights=st.tuples(moments))),
]


def law(of: Any, keys: st.SearchStrategy[Any]) -> None:
    encode = key_encoder(of)
    normalise = key_normaliser(of) or (lambda key: key)

    def bytes_of(key: Any) -> bytes | None:
        try:
            hash(key)
            return encode(key)
        except (TidegateError, TypeError, AttributeError, KeyError, ValueError):
            return None  # refused

    @given(keys, keys)
    def holds(one: Any, other: Any) -> None:
        one, other = normalise(one), normalise(other)
        first, second = bytes_of(one), bytes_of(other)
        if first is None or second is None:
            return
        assert (first == second) == (one == other), (one, other, first, second)
        if first == second:
            assert hash(one) == hash(other)
            assert key_group(first, 128) == key_group(second, 128)

    holds()


@pytest.mark.parametrize(("of", "keys"), KEYS, ids=[str(of) for of, _ in KEYS])
def test_normalised_keys_have_equal_bytes_exactly_if_python_calls_them_equal(
    of: Any, keys: st.SearchStrategy[Any]
) -> None:
    law(of, keys)


def test_key_normaliser_distinguishes_the_two_instants_of_a_repeated_hour() -> None:
    assert FIRST_0230 == SECOND_0230, "which is why the key that Python sees must be another"
    normalise: Any = key_normaliser(datetime)
    assert normalise(FIRST_0230) == datetime(2026, 10, 25, 0, 30, tzinfo=UTC)
    assert normalise(SECOND_0230) == datetime(2026, 10, 25, 1, 30, tzinfo=UTC)
    assert type(normalise(Moment(2026, 1, 1, tzinfo=EAST))) is datetime
    assert key_normaliser(tuple[str, int]) is None
    assert key_normaliser(Card) is None


@given(moments)
def test_datetime_key_bytes_are_the_microseconds_since_1970(key: datetime) -> None:
    """Stored keys must be found again."""
    normalise: Any = key_normaliser(datetime)
    microseconds = (key - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)
    assert key_encoder(datetime)(normalise(key)) == microseconds.to_bytes(8, "big", signed=True)


def test_keys_of_a_subclass_and_datetimes_as_dates_are_refused() -> None:
    with pytest.raises(PipelineError, match=r"GoldCard.* is a GoldCard, and the declared keys"):
        key_encoder(Card)(GoldCard("a", 1))
    with pytest.raises(PipelineError, match="is a datetime, and the declared keys are date"):
        key_encoder(date)(datetime(2026, 1, 1, tzinfo=UTC))


@dataclasses.dataclass(frozen=True)
class AnyCase:
    name: str

    def __eq__(self, other: object) -> bool:
        return isinstance(other, AnyCase) and self.name.lower() == other.name.lower()

    def __hash__(self) -> int:
        return hash(self.name.lower())


class AnyCaseStruct(msgspec.Struct, frozen=True):
    name: str

    def __eq__(self, other: object) -> bool:
        return isinstance(other, AnyCaseStruct) and self.name.lower() == other.name.lower()

    def __hash__(self) -> int:
        return hash(self.name.lower())


class Extra(BaseModel):
    model_config = ConfigDict(frozen=True, extra="allow")
    name: str


class Private(BaseModel):
    model_config = ConfigDict(frozen=True)
    name: str
    _seen: int = PrivateAttr(default=0)


class AnyCaseModel(BaseModel):
    model_config = ConfigDict(frozen=True)
    name: str

    def __eq__(self, other: object) -> bool:
        return isinstance(other, AnyCaseModel)

    def __hash__(self) -> int:
        return 0


@pytest.mark.parametrize("of", [AnyCase, AnyCaseStruct, AnyCaseModel, Extra, Private])
def test_class_that_does_not_compare_by_its_fields_is_refused_as_a_key(of: Any) -> None:
    with pytest.raises(PipelineError, match="so equal keys could have different bytes"):
        key_encoder(of)


@pytest.mark.parametrize("of", [Card, GoldCard, Visit, LongVisit, Stay])
def test_class_that_compares_by_its_fields_is_accepted_as_a_key(of: Any) -> None:
    assert not type_info(of).why_not_key


# --- through keyed state and a pipeline ---------------------------------------------------------


@pytest.fixture(params=["memory", "rocksdb"])
def step(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Step]:
    step = Step(tmp_path, {}, backend=request.param, cache_entries=100)
    yield step
    step.stop()


def test_map_state_has_two_entries_for_the_two_instants_of_a_repeated_hour(step: Step) -> None:
    step.states = declare(seen=MapState(datetime, int))
    step.start(1)
    seen: Any = step.cells("a")[0]
    seen[FIRST_0230], seen[SECOND_0230] = 1, 2
    again = SECOND_0230.astimezone(EAST)
    assert (seen[FIRST_0230], seen[SECOND_0230], seen[again], again in seen) == (1, 2, 2, True)
    step.start(2, step.snapshot())
    seen = step.cells("a")[0]
    assert (seen[FIRST_0230], seen.get(SECOND_0230), seen.get(again)) == (1, 2, 2)
    assert list(seen.keys()) == [each.astimezone(UTC) for each in (FIRST_0230, SECOND_0230)]
    del seen[again]
    assert (SECOND_0230 in seen, FIRST_0230 in seen) == (False, True)


class Measured(msgspec.Struct, frozen=True):
    at: str
    fold: int
    amount: int


class Sum(msgspec.Struct, frozen=True):
    at: datetime
    total: int


def local(record: Measured) -> datetime:
    return datetime.fromisoformat(record.at).replace(tzinfo=BERLIN, fold=record.fold)


class Sums(KeyedProcess[datetime, Measured, Sum]):
    total = ValueState(int, default=0)
    seen = MapState(datetime, int)

    def process(self, record: Measured, ctx: Context[datetime]) -> Iterable[Sum]:
        assert ctx.key.tzinfo is UTC
        self.total.value += record.amount
        self.seen[local(record)] = self.seen.get(local(record), 0) + record.amount
        assert self.seen[local(record)] == self.total.value
        yield Sum(ctx.key, self.total.value)


class SumsOfMoments(Pipeline, name="sums-of-moments"):
    measured = KafkaSource("measured", value=Json(Measured))
    sums = KafkaSink("sums", value=Json(Sum))

    def define(self) -> None:
        self.measured.key_by(local).process(Sums(), uid="summing").to(self.sums)


def test_pipeline_keeps_separate_state_for_the_two_instants_of_a_repeated_hour() -> None:
    with PipelineTest(SumsOfMoments) as test:
        records = [
            Measured("2026-10-25T02:30:00", fold, amount)
            for fold, amount in product((0, 1), (1, 10))
        ]
        test.source(SumsOfMoments.measured).push(*records)
        found = {(one.at.hour, one.total) for one in test.sink(SumsOfMoments.sums).read()}
    assert found == {(0, 1), (0, 11), (1, 1), (1, 11)}


def test_function_harness_normalises_datetime_keys() -> None:
    with FunctionHarness(Sums()) as harness:
        harness.push(FIRST_0230, Measured("2026-10-25T02:30:00", 0, 1))
        harness.push(SECOND_0230, Measured("2026-10-25T02:30:00", 1, 2))
        assert harness.value(Sums.total, FIRST_0230) == 1
        assert harness.value(Sums.total, SECOND_0230) == 2
        assert harness.entries(Sums.seen, SECOND_0230) == {SECOND_0230.astimezone(UTC): 2}
