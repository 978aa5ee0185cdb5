"""User code that raises StopIteration, which ends `map`, `zip` and `list` without an error.

`next(c for c in order.parts if ...)` raises it where nothing fits. Method: each place that calls
user code gets a batch in which one record (the first, a middle one, the last) raises it. No record
may be lost: the error names the record, or the policy of the place refuses that one and no other.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Self, cast

import msgspec
import pytest

from tests.dataplane.sinks.test_refused import Kept, batch
from tests.dataplane.slots import RunningSlots
from tidegate import (
    Context,
    Json,
    KafkaSink,
    KafkaSource,
    KeyedProcess,
    Pipeline,
    Raw,
    Utf8,
    ValueState,
)
from tidegate.api.records.copying import copy_value, copy_values
from tidegate.dataplane.counters import Counters
from tidegate.dataplane.sinks.encoding import BatchEncoder
from tidegate.dataplane.sources.decoding import BatchDecoder
from tidegate.errors import BadRecordError, UserCodeError
from tidegate.ids import Uid
from tidegate.stream_elements import TopicPartition
from tidegate.testing import PipelineTest
from tidegate.testing.pushed_records import PushedRecord

TOPIC_PARTITION = TopicPartition("words", 0)
BATCHES = (("none", "b1", "c2", "d3"), ("a0", "b0", "none", "d3"), ("a0", "b1", "c2", "none"))


def digit(word: str) -> str:
    """The first digit; StopIteration for a word without one."""
    return next(letter for letter in word if letter.isdigit())


class Passed(KeyedProcess[str, str, str]):
    def process(self, word: str, ctx: Context[str]) -> Sequence[str]:
        return (word,)


class Keyed(Pipeline, name="keyed"):
    words = KafkaSource("words", value=Utf8())
    out = KafkaSink("out", value=Utf8())

    def define(self) -> None:
        self.words.key_by(digit).process(Passed(), uid="passed").to(self.out)


class Tolerant(Pipeline, name="tolerant"):
    words = KafkaSource("words", value=Utf8())
    out = KafkaSink("out", value=Utf8())

    def define(self) -> None:
        keyed = self.words.key_by(digit, on_error="dead_letter", dead_letter_topic="dead")
        keyed.process(Passed(), uid="passed").to(self.out)


@pytest.mark.parametrize("words", BATCHES)
@pytest.mark.parametrize("parallelism", [1, 2, 4])
def test_key_function_that_raises_stop_iteration_ends_the_attempt(
    parallelism: int, words: tuple[str, ...]
) -> None:
    slots = RunningSlots(Keyed, parallelism)
    with pytest.raises(UserCodeError) as raised:
        slots.push(0, "words", words, first=70)
    assert "StopIteration" in str(raised.value)
    offset = 70 + words.index("none")
    assert f"at offset {offset}" in str(raised.value) or f"@{offset}:" in str(raised.value)
    assert not slots.written["out"]


@pytest.mark.parametrize("words", BATCHES)
@pytest.mark.parametrize("parallelism", [1, 2, 4])
def test_policy_of_key_by_refuses_only_records_that_raise_stop_iteration(
    parallelism: int, words: tuple[str, ...]
) -> None:
    slots = RunningSlots(Tolerant, parallelism)
    slots.push(0, "words", words)
    (letters,) = [name for name in slots.written if name != "out"]
    assert slots.written[letters] == [b"none"]
    written = [value.decode() for value in slots.written["out"] if value is not None]
    assert sorted(written) == [word for word in words if word != "none"]


@pytest.mark.parametrize("words", BATCHES)
def test_pipeline_test_treats_stop_iteration_of_a_key_function_like_slots(
    words: tuple[str, ...],
) -> None:
    with PipelineTest(Keyed) as test, pytest.raises(UserCodeError, match="StopIteration"):
        test.source(Keyed.words).push(*words)
    with PipelineTest(Tolerant) as test:
        test.source(Tolerant.words).push(*words)
        assert test.sink(Tolerant.out).read() == [word for word in words if word != "none"]
        assert [letter.value for letter in test.dead_letters("dead")] == [b"none"]


def stopped(value: object) -> Any:
    """A format's function that ends on "none"."""
    text = value.decode() if isinstance(value, bytes) else str(value)
    return value if text != "none" else next(iter(()))


class Stopping(Utf8):
    """A format of a user, whose code raises StopIteration."""

    def encoder(self) -> Callable[[str], bytes]:
        return lambda text: cast("str", stopped(text)).encode()

    def decoder(self) -> Callable[[bytes | memoryview], str]:
        return lambda data: cast("bytes", stopped(bytes(data))).decode()


SINKS: dict[str, Any] = {
    "key_by": KafkaSink("out", value=Utf8(), record_key=digit),
    "key": KafkaSink("out", value=Utf8(), key=Stopping(), record_key=str),
    "value": KafkaSink("out", value=Stopping()),
}


@pytest.mark.parametrize("words", BATCHES)
@pytest.mark.parametrize("location", SINKS)
def test_sink_loses_no_record_when_encoding_raises_stop_iteration(
    location: str, words: tuple[str, ...]
) -> None:
    encoder = BatchEncoder(SINKS[location], Uid("out"))
    with pytest.raises(UserCodeError, match=f"StopIteration.*offset {10 + words.index('none')}"):
        encoder.encode(batch(*words))
    kept = Kept()
    encoded = BatchEncoder(SINKS[location], Uid("out"), kept.refusals).encode(batch(*words))
    assert encoded.values == [word.encode() for word in words if word != "none"]
    assert encoded.keys is None or len(encoded.keys) == 3
    assert kept.offsets() == [10 + words.index("none")]


def messages(words: Iterable[str]) -> list[PushedRecord]:
    return [
        PushedRecord(
            topic_partition=TOPIC_PARTITION,
            of_value=word.encode(),
            of_key=b"key",
            of_headers=(),
            at_offset=10 + index,
            timestamp_ms=0,
        )
        for index, word in enumerate(words)
    ]


SOURCES: dict[str, Callable[..., Any]] = {
    "value": lambda **policy: KafkaSource("words", value=Stopping(), **policy),
    "record": lambda **policy: KafkaSource.records("words", key=Raw(), value=Stopping(), **policy),
}


@pytest.mark.parametrize("words", BATCHES)
@pytest.mark.parametrize("kind", SOURCES)
def test_source_loses_no_record_when_decoding_raises_stop_iteration(
    kind: str, words: tuple[str, ...]
) -> None:
    source = SOURCES[kind]()
    decoder = BatchDecoder(source, Uid("words"), Counters(), keep_keys=False)
    index = words.index("none")
    with pytest.raises(BadRecordError, match=f"offset {10 + index} .*StopIteration"):
        decoder.decode(TOPIC_PARTITION, messages(words))
    counters = Counters()
    tolerant = SOURCES[kind](on_bad_record="skip")
    decoder = BatchDecoder(tolerant, Uid("words"), counters, keep_keys=True)
    decoded = decoder.decode(TOPIC_PARTITION, messages(words))
    assert [*decoded.offsets] == [10 + n for n in range(4) if n != index]
    assert len(decoded.values) == len(decoded.keys or ()) == 3
    assert counters.skipped == 1


def test_pipeline_test_push_raises_the_stop_iteration_of_an_encoder() -> None:
    class Written(Pipeline, name="written"):
        words = KafkaSource("words", value=Stopping())
        out = KafkaSink("out", value=Utf8())

        def define(self) -> None:
            self.words.to(self.out)

    with PipelineTest(Written) as test, pytest.raises(StopIteration):
        test.source(Written.words).push("a0", "none", "b1")


class Uncopied:
    """An object whose copy needs an item that is not there."""

    def __init__(self, items: Sequence[int]) -> None:
        self.items = items

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        next(iter(self.items))
        return type(self)(copy.copy(self.items))


def test_copy_that_raises_stop_iteration_does_not_shorten_the_list_of_copies() -> None:
    for values in ([Uncopied(()), Uncopied((1,))], [Uncopied((1,)), [Uncopied(())], 5]):
        with pytest.raises(RuntimeError, match="StopIteration"):
            copy_values(values)
        with pytest.raises(RuntimeError, match="StopIteration"):
            copy_value(values)
    assert len(copy_values([Uncopied((1,)), Uncopied((2,))])) == 2


class Order(msgspec.Struct):
    customer: str
    parts: list[int]


class Sums(KeyedProcess[str, Order, int]):
    total = ValueState(int, default=0)

    def process(self, order: Order, ctx: Context[str]) -> Iterable[int]:
        self.total.value += next(iter(order.parts))
        yield self.total.value


class Returning(Sums):
    def process(self, order: Order, ctx: Context[str]) -> Iterable[int]:
        self.total.value += next(iter(order.parts))
        return (self.total.value,)


@pytest.mark.parametrize("function", [Sums, Returning])
def test_process_function_that_raises_stop_iteration_does_not_end_the_batch(
    function: type[Sums],
) -> None:
    class Summed(Pipeline, name="summed"):
        orders = KafkaSource("orders", value=Json(Order))
        out = KafkaSink("out", value=Json(int))

        def define(self) -> None:
            keyed = self.orders.key_by(lambda order: order.customer, returns=str)
            keyed.process(function(), uid="sums", on_error="skip").to(self.out)

    orders = [Order("ann", [1]), Order("ann", []), Order("ann", [2])]
    with PipelineTest(Summed) as test:
        test.source(Summed.orders).push(*orders)
        assert test.sink(Summed.out).read() == [1, 3]
        assert test.counters.skipped == 1


def first_part(order: Order) -> int:
    return next(iter(order.parts))


@pytest.mark.parametrize("kind", ["map", "flat_map", "filter"])
def test_stateless_step_that_raises_stop_iteration_does_not_end_the_batch(kind: str) -> None:
    class Stateless(Pipeline, name="stateless"):
        orders = KafkaSource("orders", value=Json(Order))
        out = KafkaSink("out", value=Json(int))

        def define(self) -> None:
            if kind == "map":
                numbers = self.orders.map(first_part, on_error="skip")
            elif kind == "flat_map":
                numbers = self.orders.flat_map(
                    lambda order: [first_part(order)], returns=int, on_error="skip"
                )
            else:
                kept = self.orders.filter(lambda order: first_part(order) > 0, on_error="skip")
                numbers = kept.map(lambda order: order.parts[0], returns=int)
            numbers.to(self.out)

    with PipelineTest(Stateless) as test:
        test.source(Stateless.orders).push(Order("a", [1]), Order("a", []), Order("a", [2]))
        assert test.sink(Stateless.out).read() == [1, 2]
        assert test.counters.skipped == 1
