"""The drivers that users test with: they run the real operators, and fail where a job would fail.

Method: small functions and pipelines with one mistake each, and those features that the example
pipelines do not use.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, cast

import pytest

from pipelines.click_dedup import ClickDedup
from pipelines.order_totals import Order, OrderTotals
from tidegate import (
    ConsumerRecord,
    Context,
    Json,
    KafkaSink,
    KafkaSource,
    KeyedProcess,
    MapState,
    Pipeline,
    PipelineError,
    Process,
    ProcessContext,
    ProducerRecord,
    SideOutput,
    Utf8,
    ValueState,
)
from tidegate.errors import BadRecordError, StateValueError, UserCodeError
from tidegate.testing import FunctionHarness, PipelineTest


@dataclass(frozen=True)
class Word:
    text: str
    number: int


class Count(KeyedProcess[str, Word, Word]):
    """Counts numbers per word; has a mistake for some of them."""

    counts = MapState(int, int)
    last = ValueState(int, default=0)
    odd = SideOutput(Word)

    def __init__(self) -> None:
        self.log: list[str] = []

    def open(self) -> None:
        self.log.append("open")

    def close(self) -> None:
        self.log.append("close")

    def process(self, word: Word, ctx: Context[str]) -> Iterable[Word]:
        if word.number == 13:
            raise ValueError("unlucky")
        if word.number == 14:
            untyped: Any = self
            untyped.last = 14
        if word.number == 15:
            self.last.value = cast("int", "15")
            return ()
        if word.number % 2:
            ctx.output(self.odd, word)
        self.counts[word.number] = self.counts.get(word.number, 0) + 1
        self.last.value = word.number
        return (Word(ctx.key, self.counts[word.number]),)


def test_state_of_every_kind_is_read_by_key() -> None:
    with FunctionHarness(Count()) as harness:
        for number in (1, 2, 1):
            harness.push("a", Word("a", number))
        assert harness.entries(Count.counts, "a") == {1: 2, 2: 1}
        assert harness.value(Count.last, "a") == 1
        assert harness.entries(Count.counts, "b") == {}
        assert harness.side_output(Count.odd) == [Word("a", 1), Word("a", 1)]
        assert harness.side_output(Count.odd) == []


class Remember(KeyedProcess[str, str, str]):
    """Gives all words of a key so far; forgets one of them, or all, while it reads."""

    words = MapState(str, int)

    def process(self, word: str, ctx: Context[str]) -> Iterable[str]:
        self.words[word] = 1
        for seen in self.words:
            yield seen
            if word == "forget":
                del self.words[seen]
            elif word == "clear":
                self.words.clear()


def test_map_entries_come_in_the_order_of_a_job() -> None:
    with FunctionHarness(Remember()) as harness:
        for word in ("z", "a", "m"):
            seen = harness.push("key", word)
        assert list(seen) == ["a", "m", "z"]
        assert list(harness.push("key", "forget")) == ["a", "forget", "m", "z"]
        assert harness.entries(Remember.words, "key") == {}


def test_iteration_over_map_entries_fails_after_a_clear() -> None:
    with FunctionHarness(Remember()) as harness:
        harness.push("key", "a")
        with pytest.raises(UserCodeError, match="was cleared"):
            harness.push("key", "clear")


def test_the_function_is_opened_and_closed_also_after_a_failure() -> None:
    function = Count()
    with pytest.raises(UserCodeError, match="unlucky"), FunctionHarness(function) as harness:
        harness.push("a", Word("a", 13))
    assert function.log == ["open", "close"]


def test_exception_of_user_code_is_the_cause_of_the_error() -> None:
    with FunctionHarness(Count()) as harness, pytest.raises(UserCodeError) as caught:
        harness.push("a", Word("a", 13))
    assert isinstance(caught.value.__cause__, ValueError)


def test_assignment_to_a_state_attribute_fails_the_test() -> None:
    with FunctionHarness(Count()) as harness, pytest.raises(UserCodeError) as caught:
        harness.push("a", Word("a", 14))
    assert "last" in str(caught.value)


def test_a_value_that_could_not_be_stored_fails_the_test() -> None:
    with FunctionHarness(Count()) as harness, pytest.raises(StateValueError) as caught:
        harness.push("a", Word("a", 15))
    assert str(caught.value) == (
        "State 'last' of Count cannot be stored for key 'a': it is a str, not an int"
    )


def test_a_map_key_that_could_not_be_stored_fails_the_test() -> None:
    with FunctionHarness(Count()) as harness, pytest.raises(StateValueError) as caught:
        harness.push("a", Word("a", 2**70))
    assert str(caught.value) == (
        f"State 'counts' of Count cannot be stored for key 'a': entry {2**70}: PipelineError: "
        f"{2**70} is not an int of 64 bits; use str or Decimal for such keys."
    )


def test_a_key_of_another_type_is_refused() -> None:
    harness: Any = FunctionHarness(Count())
    with pytest.raises(PipelineError, match="key_by gave 5"):
        harness.push(5, Word("a", 1))


def test_function_without_type_arguments_is_refused() -> None:
    class Untyped(KeyedProcess):  # type: ignore[type-arg]
        pass

    with pytest.raises(PipelineError, match=r"derive it from KeyedProcess\[K, In, Out\]"):
        FunctionHarness(Untyped())


class Split(Process[ConsumerRecord[str, Word], Word]):
    """Even numbers to one side, with the topic they came from."""

    even = SideOutput(Word)

    def process(self, record: ConsumerRecord[str, Word], ctx: ProcessContext) -> Iterable[Word]:
        named = Word(f"{record.topic}-{record.key}", record.value.number)
        if named.number % 2:
            yield named
        else:
            ctx.output(self.even, named)


def outgoing(word: Word) -> ProducerRecord[str, Word]:
    return ProducerRecord(word.text, word if word.number else None)


class Words(Pipeline, name="words"):
    words = KafkaSource.records("words", key=Utf8(), value=Json(Word))
    more = KafkaSource.records("more", key=Utf8(), value=Json(Word))
    odd = KafkaSink("odd", value=Json(Word), record_key=lambda word: word.text)
    even = KafkaSink.records("even", key=Utf8(), value=Json(Word))
    twice = KafkaSink("twice", value=Json(Word))

    def define(self) -> None:
        split = self.words.union(self.more).process(Split())
        split.to(self.odd)
        split.side_output(Split.even).map(outgoing).to(self.even)
        split.flat_map(lambda word: [word, word]).to(self.twice)


def record(text: str, number: int) -> ConsumerRecord[str, Word]:
    return ConsumerRecord(
        text, Word(text, number), topic="words", partition=0, offset=0, timestamp_ms=0
    )


def test_pipeline_test_runs_unions_side_outputs_and_whole_records() -> None:
    with PipelineTest(Words) as test:
        test.source(Words.words).push(record("a", 1), record("b", 2))
        test.source(Words.more).push(record("c", 0))
        assert test.sink(Words.odd).read() == [Word("words-a", 1)]
        assert test.sink(Words.even).read() == [
            ProducerRecord("words-b", Word("words-b", 2)),
            ProducerRecord("words-c", None),
        ]
        assert test.sink(Words.twice).read() == [Word("words-a", 1)] * 2
        assert test.sink(Words.twice).read() == []


def test_a_record_that_the_format_cannot_carry_fails_the_test() -> None:
    wrong: Any = Order("o", "c", Decimal(1), "not a number")  # type: ignore[arg-type]
    with PipelineTest(OrderTotals) as test, pytest.raises(BadRecordError, match="Expected `int`"):
        test.source(OrderTotals.orders).push(wrong)


def test_a_key_that_is_neither_text_nor_bytes_fails_the_test() -> None:
    class Numbered(Pipeline, name="numbered"):
        words = KafkaSource("words", value=Json(Word))
        out = KafkaSink("out", value=Json(Word), record_key=cast("Any", lambda word: word.number))

        def define(self) -> None:
            self.words.to(self.out)

    words = "could not encode the key of .* of type int needs a format: give the sink key="
    with PipelineTest(Numbered) as test, pytest.raises(UserCodeError, match=words):
        test.source(Numbered.words).push(Word("a", 5))


def test_bad_record_is_handled_by_the_policy_of_its_source() -> None:
    with PipelineTest(ClickDedup) as test:
        source = test.source(ClickDedup.clicks)
        source.push_bytes(b"{", key=b"k", headers=(("h", b"1"),))
        assert test.sink(ClickDedup.unique).read() == []
        (letter,) = test.dead_letters(ClickDedup.clicks)
        assert (letter.key, letter.value, letter.headers[0]) == (b"k", b"{", ("h", b"1"))
        assert ("tidegate.source.topic", b"clicks") in letter.headers
        assert test.dead_letters(ClickDedup.clicks) == []
    with PipelineTest(OrderTotals) as test, pytest.raises(BadRecordError, match="offset 0"):
        test.source(OrderTotals.orders).push_bytes(b"{")
    with PipelineTest(OrderTotals) as test, pytest.raises(BadRecordError, match="no value"):
        test.source(OrderTotals.orders).push_bytes(None)


def test_record_keeps_its_topic_partition_offset_and_timestamp() -> None:
    seen: list[tuple[str, int, int]] = []

    class Seen(Pipeline, name="seen"):
        words = KafkaSource.records("words", value=Json(Word), tombstones=True)
        out = KafkaSink("out", value=Json(int))

        def define(self) -> None:
            def note_provenance(record: ConsumerRecord[bytes | None, Word | None]) -> int:
                seen.append((record.topic, record.partition, record.offset))
                return record.timestamp_ms

            self.words.map(note_provenance).to(self.out)

    with PipelineTest(Seen) as test:
        for value, partition in ((Word("a", 1), 3), (None, 3), (None, 1)):
            test.source(Seen.words).push(
                ConsumerRecord(
                    None, value, topic="t", partition=partition, offset=7, timestamp_ms=9
                )
            )
        assert test.sink(Seen.out).read() == [9, 9, 9]
    assert seen == [("t", 3, 7), ("t", 3, 7), ("t", 1, 7)]


def test_a_source_of_another_pipeline_is_refused() -> None:
    with PipelineTest(OrderTotals) as test, pytest.raises(PipelineError, match="is not of Order"):
        test.source(Words.words)
