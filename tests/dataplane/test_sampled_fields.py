"""Which records of a step are checked down to their last field on the cluster.

Method: a map makes records that are right, but those that the test names; it runs in slots, with
the real chain and formats.
"""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from tests.dataplane.slots import RunningSlots
from tidegate import Avro, Json, KafkaSink, KafkaSource, Pipeline, PipelineError
from tidegate.api.state.field_check import CALL_COST, CONTAINER_COST, FieldCheck
from tidegate.api.state.wire import column_codec
from tidegate.dataplane.channels.frames import FrameCodec, data_frame
from tidegate.dataplane.operators.sampling import (
    BATCH_BUDGET,
    BUDGET,
    FIRST,
    SIZE_MAX,
    SLICE,
    SampledFields,
    sampled,
)
from tidegate.errors import UserCodeError
from tidegate.stream_elements import RecordBatch, TopicPartition

BATCH = 250
FIELDS = 4


class Click(msgspec.Struct, frozen=True):
    user: str
    page: str
    ms: int
    cost: float


CLICK = Click("ann", "/", 1, 0.5)
WRONG = msgspec.structs.replace(CLICK, ms="1")


def click(number: int) -> Click:
    return WRONG if number < 0 else CLICK


def is_there(_: Click) -> bool:
    return True


class Sampled(Pipeline, name="sampled"):
    numbers = KafkaSource("numbers", value=Json(int))
    out = KafkaSink("out", value=Json(Click))

    def define(self) -> None:
        self.numbers.map(click).to(self.out)


class All(Pipeline, name="all"):
    numbers = KafkaSource("numbers", value=Json(int))
    out = KafkaSink("out", value=Json(Click, validate="all"))

    def define(self) -> None:
        self.numbers.map(click).to(self.out)


class BehindFilter(Pipeline, name="behind-filter"):
    """The filter is a chain's step of its own, because two steps read the map."""

    numbers = KafkaSource("numbers", value=Json(int))
    out = KafkaSink("out", value=Json(Click, validate="all"))
    other = KafkaSink("other", value=Json(Click))

    def define(self) -> None:
        clicks = self.numbers.map(click)
        clicks.to(self.other)
        clicks.filter(is_there).to(self.out)


class Loose(Pipeline, name="loose"):
    """The step declares another type than the sink takes."""

    numbers = KafkaSource("numbers", value=Json(int))
    out = KafkaSink("out", value=Json(Click, validate="all"))

    def define(self) -> None:
        either: Any = Click | None
        self.numbers.map(click, returns=either).filter(bool).to(self.out)


class Refusing(Pipeline, name="refusing"):
    numbers = KafkaSource("numbers", value=Json(int))
    out = KafkaSink("out", value=Json(Click))

    def define(self) -> None:
        self.numbers.map(click, on_error="dead_letter", dead_letter_topic="dead").to(self.out)


def started(pipeline: type[Pipeline]) -> RunningSlots:
    """Slots that have had more right records than are all checked."""
    slots = RunningSlots(pipeline, 1)
    for first in range(0, FIRST + BATCH, BATCH):
        slots.push(0, "numbers", list(range(BATCH)), first)
    return slots


@pytest.mark.parametrize("at", [0, 1, FIRST - 1])
def test_wrong_field_in_one_of_the_first_records_is_found(at: int) -> None:
    slots = RunningSlots(Sampled, 1)
    numbers = list(range(FIRST))
    numbers[at] = -1
    for first in range(0, at - BATCH + 1, BATCH):
        slots.push(0, "numbers", numbers[first : first + BATCH], first)
    first = at // BATCH * BATCH
    with pytest.raises(UserCodeError) as raised:
        slots.push(0, "numbers", numbers[first : first + BATCH], first)
    said = str(raised.value)
    assert "Sampled: step 'map-1' (" in said
    assert "gave a Click in which .ms is a str, not an int, and declares a Click" in said
    assert f"numbers-0 at offset {at}." in said


def test_repeated_wrong_field_is_found_after_the_first_records() -> None:
    slots = started(Sampled)

    def make_mistakes() -> None:
        for _ in range(60):
            slots.push(0, "numbers", [-1] * BATCH)

    with pytest.raises(UserCodeError, match=r"\.ms is a str"):
        make_mistakes()


@pytest.mark.parametrize("pipeline", [All, BehindFilter, Loose])
def test_sink_with_validate_all_checks_every_record(pipeline: Any) -> None:
    slots = started(pipeline)
    with pytest.raises(UserCodeError, match=r"Click in which \.ms is a str, not an int"):
        slots.push(0, "numbers", [*range(BATCH), -1])


def test_step_with_a_policy_refuses_every_record_with_a_wrong_field() -> None:
    slots = started(Refusing)
    written = len(slots.written["out"])
    for _ in range(40):
        slots.push(0, "numbers", [1, -1, 2])
    assert len(slots.written["out"]) == written + 80
    assert len(slots.written["map-1-dead-letters"]) == 40


def test_field_check_samples_about_one_record_in_eleven() -> None:
    fields, turns = FieldCheck(Click), 20_000
    drawn = SampledFields(fields)
    values = [CLICK] * BATCH
    for _ in range(FIRST // BATCH + 1):
        drawn.first_wrong(values)
    before = fields.cost
    for _ in range(turns):
        drawn.first_wrong(values)
    looked_at = fields.cost - before
    of_a_record = FIELDS + 1 + (CALL_COST + CONTAINER_COST) / SLICE
    share = looked_at / of_a_record / (turns * BATCH)
    assert 1 / 12 < share < 1 / 10
    allowed = turns * (BATCH_BUDGET + BUDGET * BATCH)
    assert 0.95 * allowed < looked_at < 1.01 * allowed


@pytest.mark.parametrize("size", [1, 7, BATCH, 1000])
def test_field_check_samples_every_position_of_a_batch(size: int) -> None:
    first_wrong = sampled(Click)
    for _ in range(FIRST // size + 1):
        first_wrong([CLICK] * size)
    places = {0, size // 2, size - 1}
    for _ in range(20_000):
        for location in list(places):
            values = [CLICK] * size
            values[location] = WRONG
            if first_wrong(values) == location:
                places.remove(location)
        if not places:
            return
    raise AssertionError(places)


def test_classes_are_checked_of_every_record() -> None:
    for first_wrong in (sampled(Click), FieldCheck(Click).first_wrong):
        for _ in range(20):
            assert first_wrong([CLICK] * BATCH) is None
            assert first_wrong([CLICK, {}]) == 1


class Small(msgspec.Struct, frozen=True):
    name: str


@pytest.mark.parametrize("of", [int, str | None, Small])
def test_every_field_of_small_records_is_checked(of: Any) -> None:
    size = FieldCheck(of).size
    assert size is not None
    assert size <= SIZE_MAX
    assert getattr(sampled(of), "__self__", None).__class__ is FieldCheck


@pytest.mark.parametrize("of", [Click, list[int], dict[str, int], SampledFields])
def test_fields_of_large_records_are_sampled(of: Any) -> None:
    assert getattr(sampled(of), "__self__", None).__class__ is SampledFields


@pytest.mark.parametrize("kind", [Json, Avro])
def test_unknown_value_of_validate_is_refused(kind: Any) -> None:
    with pytest.raises(PipelineError, match="validate='every' is unknown"):
        kind(Click, validate="every")


@pytest.mark.parametrize(
    ("of", "values", "what"),
    [
        (
            Click,
            [CLICK, WRONG],
            "the field 'ms' of the value is not of its declared type (Expected",
        ),
        (int, [1, "x"], "of which the value is not of its declared type (Expected `int`, got"),
    ],
)
def test_decode_error_on_an_edge_names_the_unreadable_field(
    of: Any, values: list[Any], what: str
) -> None:
    codec = FrameCodec("a -> b", "a", column_codec(of))
    batch = RecordBatch(values, [5, 6], TopicPartition("t", 3))
    with pytest.raises(UserCodeError) as raised:
        codec.decode(b"".join(data_frame(codec.encode(batch))))
    said = str(raised.value)
    assert said.startswith("Step 'a' gave a record of which ")
    assert what in said
    assert "It came from t-3 at offset 6 and was read on the edge a -> b" in said


class Pair(msgspec.Struct, frozen=True):
    left: int
    either: Click | int


def test_decode_error_inside_a_union_names_no_field() -> None:
    codec = FrameCodec("a -> b", "a", column_codec(Pair))
    batch = RecordBatch([Pair(1, 2), Pair(1, WRONG)], [5, 6], TopicPartition("t", 3))
    with pytest.raises(UserCodeError, match=r"Expected `int`, got `str`") as raised:
        codec.decode(b"".join(data_frame(codec.encode(batch))))
    assert "the field" not in str(raised.value)
    assert "It came from t-3 and was read" in str(raised.value)
