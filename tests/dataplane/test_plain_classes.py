"""Classes without a schema between the steps of one slot: they are not encoded there.

Method: each annotation that a type checker takes goes through a map into a `process`, in slots and
in a PipelineTest, with values of subclasses of the declared type.
"""

from __future__ import annotations

import numbers
from collections.abc import Callable, Iterable
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from tests.dataplane.slots import RunningSlots
from tidegate import (
    Context,
    KafkaSink,
    KafkaSource,
    KeyedProcess,
    Pipeline,
    Process,
    ProcessContext,
    Utf8,
    ValueState,
)
from tidegate.testing import FunctionHarness, PipelineTest


class Said(Process[Any, str]):
    def process(self, value: Any, ctx: ProcessContext) -> Iterable[str]:
        del ctx
        return (type(value).__name__,)


def path(word: str) -> Path:
    return Path(word)


def error(word: str) -> str | Exception:
    return word if word == "b" else ValueError(word)


def anything(word: str) -> object:
    return [word]


def number(word: str) -> numbers.Number:
    return Decimal(len(word))  # type: ignore[return-value]  # it is registered as one


GIVEN: list[tuple[Callable[[str], object], list[str]]] = [
    (path, ["PosixPath", "PosixPath"]),
    (error, ["ValueError", "str"]),
    (anything, ["list", "list"]),
    (number, ["Decimal", "Decimal"]),
]


@pytest.mark.parametrize(("function", "names"), GIVEN)
def test_subclass_of_the_declared_result_type_is_accepted(
    function: Callable[[str], object], names: list[str]
) -> None:
    class Mapped(Pipeline, name="mapped"):
        words = KafkaSource("words", value=Utf8())
        out = KafkaSink("out", value=Utf8())

        def define(self) -> None:
            self.words.map(function).process(Said()).to(self.out)

    slots = RunningSlots(Mapped, 1)
    slots.push(0, "words", ["a", "b"])
    assert slots.written["out"] == [name.encode() for name in names]
    with PipelineTest(Mapped) as test:
        test.source(Mapped.words).push("a", "b")
        assert test.sink(Mapped.out).read() == names


class Counted(KeyedProcess[int, str, str]):
    seen = ValueState(int, default=0)

    def process(self, word: str, ctx: Context[int]) -> Iterable[str]:
        self.seen.value += 1
        return (f"{int(ctx.key)}:{self.seen.value}",)


class ByLength(Pipeline, name="by-length"):
    words = KafkaSource("words", value=Utf8())
    out = KafkaSink("out", value=Utf8())

    def define(self) -> None:
        keyed = self.words.key_by(lambda word: len(word) if word == "x" else word == "y")
        keyed.process(Counted(), uid="counted").to(self.out)


@pytest.mark.parametrize("parallelism", [1, 2])
def test_key_true_equals_key_one_in_slots(parallelism: int) -> None:
    slots = RunningSlots(ByLength, parallelism)
    slots.push(0, "words", ["x", "y", "", "x"])
    assert sorted(slots.written["out"], key=str) == [b"0:1", b"1:1", b"1:2", b"1:3"]


def test_key_true_equals_key_one_in_pipeline_test_and_harness() -> None:
    with PipelineTest(ByLength) as test:
        test.source(ByLength.words).push("x", "y", "", "x")
        assert test.sink(ByLength.out).read() == ["1:1", "1:2", "0:1", "1:3"]
    with FunctionHarness(Counted()) as harness:
        assert harness.push(1, "x") + harness.push(True, "x") == ["1:1", "1:2"]
