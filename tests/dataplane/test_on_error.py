"""`on_error` of steps, edges by key and sinks: what continues, what is refused, and what is undone.

Method: whole pipelines run in `PipelineTest`, which runs the operators of a slot, with batches of
several records. A refused record must leave no result, no side output and no state. The records
before and behind it in the batch must come through. `integration/connectors/test_on_error.py` does
the same over Kafka with kills.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest

from tests.dataplane.slots import RunningSlots
from tidegate import (
    Context,
    Json,
    KafkaSink,
    KafkaSource,
    KeyedProcess,
    ListState,
    MapState,
    Pipeline,
    PipelineError,
    Process,
    ProcessContext,
    ProducerRecord,
    SideOutput,
    ValueState,
    build,
)
from tidegate.dataplane.channels.frames import FrameCodec
from tidegate.dataplane.refusals import Refusals
from tidegate.errors import StorageError, UserCodeError
from tidegate.graph.stream_graph import DEAD_LETTERS
from tidegate.stream_elements import RecordBatch, TopicPartition
from tidegate.testing import FunctionHarness, PipelineTest


class Order(msgspec.Struct, frozen=True):
    customer: str
    amount: int


def orders(*amounts: int) -> list[Order]:
    return [Order("ann", amount) for amount in amounts]


def positive(order: Order) -> Order:
    if order.amount < 0:
        raise ValueError(f"{order.amount} is negative")
    return order


def countdown(order: Order) -> Iterable[int]:
    """Yields before it raises."""
    yield from range(order.amount)
    if order.amount == 3:
        raise ValueError("three")


class Mapped(Pipeline, name="mapped"):
    source = KafkaSource("orders", value=Json(Order))
    out = KafkaSink("out", value=Json(Order))

    def define(self) -> None:
        self.source.map(positive, on_error="dead_letter", dead_letter_topic="dead").filter(
            lambda order: 100 // order.amount > 0, on_error="skip"
        ).to(self.out)


def headers(letter: ProducerRecord[bytes, bytes]) -> dict[str, str]:
    return {name: (value or b"").decode() for name, value in letter.headers}


def test_records_after_a_refused_record_continue_and_its_dead_letter_names_it() -> None:
    with PipelineTest(Mapped) as test:
        test.source(Mapped.source).push(*orders(1, -2, 3, 0, 5, -6))
        assert test.sink(Mapped.out).read() == orders(1, 3, 5)
        first, second = test.dead_letters("dead")
        assert (test.counters.dead_letters, test.counters.skipped) == (2, 1)
    assert msgspec.json.decode(first.value or b"", type=Order) == Order("ann", -2)
    found = headers(first)
    assert found["tidegate.source.topic"] == "orders"
    assert found["tidegate.source.partition"] == "0"
    assert found["tidegate.source.offset"] == "1"
    assert found["tidegate.error"] == "ValueError: -2 is negative"
    assert found["tidegate.step"].startswith("map-1 (")
    assert headers(second)["tidegate.source.offset"] == "5"


def test_log_names_topic_partition_and_offset_of_a_refused_record(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with PipelineTest(Mapped) as test, caplog.at_level(logging.WARNING):
        test.source(Mapped.source).push(*orders(*range(-100, 0)))
    said: list[Any] = [each for each in caplog.records if each.message == "a record is refused"]
    assert [each.refused for each in said] == [*range(1, 11), 16, 32, 64]
    first = said[0]
    assert (first.topic, first.partition, first.offset) == ("orders", 0, 0)
    assert first.policy == "dead_letter"


def test_failing_step_without_a_policy_ends_the_attempt_though_another_step_has_a_policy() -> None:
    class Mixed(Pipeline, name="mixed"):
        source = KafkaSource("orders", value=Json(Order))
        out = KafkaSink("out", value=Json(Order))

        def define(self) -> None:
            checked = self.source.map(positive)
            checked.filter(lambda order: 1 // order.amount >= 0, on_error="skip").to(self.out)

    with PipelineTest(Mixed) as test:
        test.source(Mixed.source).push(*orders(0, 1))
        assert test.sink(Mixed.out).read() == orders(1)
        with pytest.raises(UserCodeError, match=r"map-1.*offset 3"):
            test.source(Mixed.source).push(*orders(4, -1))


class Counted(Pipeline, name="counted"):
    source = KafkaSource("orders", value=Json(Order))
    out = KafkaSink("out", value=Json(int))

    def define(self) -> None:
        numbers = self.source.flat_map(countdown, on_error="skip")
        numbers.map(lambda n: n, returns=int).to(self.out)


def test_results_that_a_failing_record_has_yielded_are_left_out() -> None:
    with PipelineTest(Counted) as test:
        test.source(Counted.source).push(*orders(2, 3, 3, 1))
        assert test.sink(Counted.out).read() == [0, 1, 0]
        assert test.counters.skipped == 2


class Doubled(Pipeline, name="doubled"):
    """Two records of a batch come from one offset, and one of them fails."""

    source = KafkaSource("orders", value=Json(Order))
    out = KafkaSink("out", value=Json(int))
    same = KafkaSink("same", value=Json(Order))

    def define(self) -> None:
        twice = self.source.flat_map(lambda order: (Order("a", 2), Order("a", 3)), returns=Order)
        twice.to(self.same)
        twice.flat_map(countdown, on_error="skip").to(self.out)


def test_results_of_another_record_of_the_same_offset_stay() -> None:
    with PipelineTest(Doubled) as test:
        test.source(Doubled.source).push(*orders(1, 1))
        assert test.sink(Doubled.out).read() == [0, 1, 0, 1]


class Split(Process[Order, Order]):
    large = SideOutput(Order)

    def process(self, order: Order, ctx: ProcessContext) -> Iterable[Order]:
        yield order
        ctx.output(self.large, order)
        positive(order)


class Splitting(Pipeline, name="splitting"):
    source = KafkaSource("orders", value=Json(Order))
    out = KafkaSink("out", value=Json(Order))
    large = KafkaSink("large", value=Json(Order))

    def define(self) -> None:
        split = self.source.process(Split(), on_error="dead_letter", dead_letter_topic="dead")
        split.to(self.out)
        split.side_output(Split.large).to(self.large)


def test_side_outputs_of_a_failing_record_are_left_out() -> None:
    with PipelineTest(Splitting) as test:
        test.source(Splitting.source).push(*orders(1, -1, 2))
        assert test.sink(Splitting.out).read() == orders(1, 2)
        assert test.sink(Splitting.large).read() == orders(1, 2)
        assert len(test.dead_letters("dead")) == 1


@dataclass
class Tally:
    """A value that changes in place."""

    amounts: list[int]


class Everything(KeyedProcess[str, Order, int]):
    """Touches a state of each kind, then raises for amounts below 0."""

    total = ValueState(int, default=0)
    tally = ValueState(Tally, factory=lambda: Tally([]))
    seen = ListState(int)
    tallies = ListState(Tally)
    by_amount = MapState(int, int)
    late = SideOutput(int)

    def process(self, order: Order, ctx: Context[str]) -> Iterable[int]:
        self.total.value += order.amount
        self.tally.value.amounts.append(order.amount)
        self.seen.append(order.amount)
        for each in self.tallies:
            each.amounts.append(order.amount)
        self.tallies.append(Tally([order.amount]))
        self.by_amount[order.amount] = self.by_amount.get(order.amount, 0) + 1
        ctx.output(self.late, order.amount)
        yield self.total.value
        if order.amount == -2:
            self.total.clear()
            self.seen.clear()
            self.by_amount.clear()
        positive(order)


def test_state_of_the_key_is_rolled_back_when_a_record_fails() -> None:
    with FunctionHarness(Everything(), on_error="dead_letter") as harness:
        assert harness.push("ann", Order("ann", 1)) == [1]
        assert harness.push("ann", Order("ann", -1)) == []
        assert harness.push("ann", Order("ann", -2)) == []
        assert harness.push("ann", Order("ann", 4)) == [5]
        assert harness.value(Everything.total, "ann") == 5
        assert harness.value(Everything.tally, "ann") == Tally([1, 4])
        assert harness.items(Everything.seen, "ann") == [1, 4]
        assert harness.items(Everything.tallies, "ann") == [Tally([1, 4]), Tally([4])]
        assert harness.entries(Everything.by_amount, "ann") == {1: 1, 4: 1}
        assert harness.side_output(Everything.late) == [1, 4]
        assert len(harness.dead_letters()) == harness.counters.dead_letters == 2


def test_function_harness_raises_the_error_when_no_policy_is_set() -> None:
    with FunctionHarness(Everything()) as harness, pytest.raises(UserCodeError, match="negative"):
        harness.push("ann", Order("ann", -1))


class Keyed(Pipeline, name="keyed"):
    source = KafkaSource(
        "orders", value=Json(Order), on_bad_record="dead_letter", dead_letter_topic="dead"
    )
    out = KafkaSink("out", value=Json(int))

    def define(self) -> None:
        by_customer = self.source.filter(lambda order: True).key_by(lambda order: order.customer)
        by_customer.process(Everything(), uid="everything", on_error="skip").to(self.out)


def test_ints_of_any_size_pass_a_key_edge_and_are_no_keys_of_a_map_state() -> None:
    with PipelineTest(Keyed) as test:
        test.source(Keyed.source).push(*orders(1, 2**70, 3, -1, 5))
        assert test.sink(Keyed.out).read() == [1, 4, 9]
        assert (test.counters.dead_letters, test.counters.skipped) == (0, 2)


class Moment(msgspec.Struct, frozen=True):
    at: datetime


class LastOf(KeyedProcess[datetime, Moment, Moment]):
    last = ValueState(int, default=0)

    def process(self, moment: Moment, ctx: Context[datetime]) -> Iterable[Moment]:
        return (moment,)


class Moments(Pipeline, name="moments"):
    source = KafkaSource("moments", value=Json(Moment), on_bad_record="skip")
    out = KafkaSink("out", value=Json(Moment))

    def define(self) -> None:
        by_time = self.source.key_by(lambda moment: moment.at)
        by_time.process(LastOf(), uid="last").to(self.out)


def test_source_policy_covers_a_key_without_canonical_bytes() -> None:
    good = Moment(datetime(2026, 1, 1, tzinfo=UTC))
    naive = Moment(datetime(2026, 1, 1))  # noqa: DTZ001  # that is the mistake
    with PipelineTest(Moments) as test:
        test.source(Moments.source).push(good, naive, good)
        assert test.sink(Moments.out).read() == [good, good]
        assert test.counters.skipped == 1


class RaisingKey(Pipeline, name="raising-key"):
    source = KafkaSource("orders", value=Json(Order), on_bad_record="skip")
    out = KafkaSink("out", value=Json(int))

    def define(self) -> None:
        self.source.key_by(key_of).process(Everything(), uid="everything").to(self.out)


@pytest.mark.parametrize("parallelism", [1, 2])
def test_source_policy_does_not_cover_a_key_function_that_raises(parallelism: int) -> None:
    slots = RunningSlots(RaisingKey, parallelism)
    with pytest.raises(UserCodeError, match=r"everything.*offset 1"):
        slots.push(0, "source", orders(1, -1, 2))


class OwnPolicy(Pipeline, name="own-policy"):
    """Two sources united, so that the edge is no call within a vertex."""

    left = KafkaSource("left", value=Json(Order))
    right = KafkaSource("right", value=Json(Order))
    out = KafkaSink("out", value=Json(int))

    def define(self) -> None:
        keyed = self.left.union(self.right).key_by(
            key_of, on_error="dead_letter", dead_letter_topic="dead"
        )
        keyed.process(Everything(), uid="everything").to(self.out)


def key_of(order: Order) -> str:
    return positive(order).customer


def test_policy_of_key_by_covers_a_key_function_that_raises() -> None:
    with PipelineTest(OwnPolicy) as test:
        test.source(OwnPolicy.left).push(*orders(1, -1, 2))
        test.source(OwnPolicy.right).push(*orders(-5, 4))
        assert test.sink(OwnPolicy.out).read() == [1, 3, 7]
        found = [headers(letter)["tidegate.source.topic"] for letter in test.dead_letters("dead")]
        assert found == ["left", "right"]


class ToSink(Pipeline, name="to-sink"):
    source = KafkaSource("orders", value=Json(Order))
    out = KafkaSink(
        "out",
        value=Json(Order),
        record_key=key_of,
        on_error="dead_letter",
        dead_letter_topic="dead",
    )

    def define(self) -> None:
        self.source.to(self.out)


def test_policy_of_a_sink_covers_records_that_it_cannot_write() -> None:
    with PipelineTest(ToSink) as test:
        test.source(ToSink.source).push(*orders(1, -1, 2))
        assert test.sink(ToSink.out).read() == orders(1, 2)
        assert len(test.dead_letters(ToSink.out)) == 1


@pytest.mark.parametrize("error", [StorageError("no answer"), MemoryError(), OSError(28, "")])
def test_policy_never_covers_errors_that_are_not_about_the_record(error: Exception) -> None:
    assert not Refusals("x", "skip").covers(error)
    assert not Refusals("x", "dead_letter").covers(error)
    assert Refusals("x", "skip").covers(ValueError())
    assert not Refusals("x").covers(ValueError())


class Narrow:
    """A column of numbers below 10, each as large as it says."""

    def encode(self, values: list[Any]) -> bytes:
        if max(values) > 9:
            raise OverflowError("too wide")
        return bytes(sum(5_000_000 if value == 9 else 1 for value in values))

    def decode(self, data: bytes | memoryview) -> list[Any]:
        raise NotImplementedError


def test_an_edge_with_a_policy_sends_the_values_that_can_be_sent() -> None:
    refused: list[RecordBatch] = []
    codec = FrameCodec("a -> b", "a", Narrow())
    codec.refusals = Refusals("a", "dead_letter", emit=refused.append)
    batch = RecordBatch([1, 12, 2, 13, 3], [5, 6, 7, 8, 9], TopicPartition("t", 0), [b"k"] * 5)
    (encoded_batch,) = codec.encode(batch)
    assert encoded_batch.records == 3
    assert [letter.offsets for letter in refused] == [[6], [8]]
    assert codec.encode(RecordBatch([11], [3], TopicPartition("t", 0))) == []


def test_edge_with_a_policy_refuses_a_record_too_large_for_a_frame(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("tidegate.dataplane.channels.frames.MAX_FRAME_BYTES", 1_000_000)
    refused: list[RecordBatch] = []
    codec = FrameCodec("a -> b", "a", Narrow())
    codec.refusals = Refusals("a", "dead_letter", emit=refused.append)
    encoded_batches = codec.encode(RecordBatch([1, 9, 2], [5, 6, 7], TopicPartition("t", 0)))
    assert sum(encoded_batch.records for encoded_batch in encoded_batches) == 2
    assert [letter.offsets for letter in refused] == [[6]]


def even(total: int) -> str:
    if total % 2:
        raise ValueError(f"{total} is odd")
    return "even"


class Anywhere(Pipeline, name="anywhere"):
    """The source's policy covers the edge, `process` and the sink have their own."""

    source = KafkaSource(
        "orders", value=Json(Order), on_bad_record="dead_letter", dead_letter_topic="d"
    )
    out = KafkaSink(
        "out", value=Json(int), record_key=even, on_error="dead_letter", dead_letter_topic="d"
    )

    def define(self) -> None:
        keyed = self.source.key_by(lambda order: f"{order.customer}-{order.amount % 7}")
        keyed.process(
            Everything(), uid="everything", on_error="dead_letter", dead_letter_topic="d"
        ).to(self.out)


@pytest.mark.parametrize("parallelism", [1, 2, 3])
def test_refused_records_do_not_depend_on_the_parallelism(parallelism: int) -> None:
    slots = RunningSlots(Anywhere, parallelism)
    amounts = [*range(1, 40), 2**70, *range(-9, 0), 2**64, 50]
    slots.push(0, "source", orders(*amounts))
    totals = [int(value or b"0") for value in slots.written["out"]]
    assert len(totals) + len(slots.written["out-dead-letters"]) == 40
    assert all(total % 2 == 0 for total in totals)
    letters = [
        msgspec.json.decode(value or b"", type=Order).amount
        for value in slots.written["everything-dead-letters"]
    ]
    assert sorted(letters) == [*range(-9, 0), 2**64, 2**70]  # no keys of a map state
    assert not slots.written["source-dead-letters"]


# --- what is refused when the pipeline is built --------------------------------------------------


def pipeline(step: Any) -> type[Pipeline]:
    class Wrong(Pipeline, name="wrong"):
        source = KafkaSource("orders", value=Json(Order))
        out = KafkaSink("out", value=Json(Order))

        def define(self) -> None:
            step(self.source).to(self.out)

    return Wrong


class Clash(Process[Order, Order]):
    dead_letters = SideOutput(Order)

    def process(self, order: Order, ctx: ProcessContext) -> Sequence[Order]:
        return (order,)


@pytest.mark.parametrize(
    ("step", "message"),
    [
        (lambda s: s.map(positive, on_error="drop"), "on_error='drop' must be one of"),
        (lambda s: s.map(positive, on_error="dead_letter"), "are given together"),
        (lambda s: s.map(positive, dead_letter_topic="dead"), "are given together"),
        (lambda s: s.map(positive, on_eror="skip"), "did you mean on_error=?"),
        (
            lambda s: s.filter(positive, on_error="dead_letter", dead_letter_topic="a b"),
            "'a b' is no name of a topic",
        ),
        (
            lambda s: s.process(Clash(), on_error="dead_letter", dead_letter_topic="dead"),
            "Clash.dead_letters is a side output",
        ),
    ],
)
def test_build_error_of_a_wrong_policy_names_its_source_line(step: Any, message: str) -> None:
    with pytest.raises(PipelineError) as refused:
        build(pipeline(step))
    assert message in str(refused.value)
    assert "test_on_error.py:" in str(refused.value)


def test_step_is_refused_when_only_its_dead_letters_are_read() -> None:
    class Nowhere(Pipeline, name="nowhere"):
        source = KafkaSource("orders", value=Json(Order))
        out = KafkaSink("out", value=Json(Order))

        def define(self) -> None:
            self.source.to(self.out)
            self.source.map(positive, on_error="dead_letter", dead_letter_topic="dead")

    with pytest.raises(PipelineError, match="'map-1' go nowhere"):
        build(Nowhere)


def test_fingerprint_changes_only_when_a_step_has_a_policy_other_than_fail() -> None:
    def define(step: Any) -> str:
        return build(pipeline(step)).fingerprint()

    assert define(lambda s: s.map(positive)) == define(lambda s: s.map(positive, on_error="fail"))
    assert define(lambda s: s.map(positive)) != define(lambda s: s.map(positive, on_error="skip"))
    node = next(n for n in build(pipeline(lambda s: s.map(positive))) if n.kind == "map")
    assert node.options == {}
    assert DEAD_LETTERS == "dead_letters"
