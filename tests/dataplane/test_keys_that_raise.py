"""Keys that cannot be hashed: an error of user code that names the step and the record. The lookups
of state hash the keys of a whole batch. (A class with an `__eq__` of its own cannot be a key.)
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import pytest

from tidegate import (
    BoundedOutOfOrderness,
    Context,
    Count,
    KafkaSink,
    KafkaSource,
    KeyedProcess,
    Pipeline,
    Sliding,
    Utf8,
    ValueState,
    Window,
    build,
)
from tidegate.dataplane.keying import StepKeys
from tidegate.errors import StorageError, UserCodeError
from tidegate.stream_elements import RecordBatch, TopicPartition
from tidegate.testing import PipelineTest
from tidegate.user_exceptions import Terminated


class BrokenError(BaseException):
    """An exception that does not derive from `Exception`."""


@dataclass(frozen=True)
class Name:
    """A key. "boom" cannot be hashed."""

    name: str

    def __hash__(self) -> int:
        if self.name == "boom":
            raise BrokenError(self.name)
        return 7


class Counted(KeyedProcess[Name, str, str]):
    seen = ValueState(int, default=0)

    def process(self, record: str, ctx: Context[Name]) -> Iterable[str]:
        self.seen.value += 1
        yield f"{record} {self.seen.value}"


class ByKey(Pipeline, name="by-key"):
    source = KafkaSource("in", value=Utf8())
    out = KafkaSink("out", value=Utf8())

    def define(self) -> None:
        self.source.key_by(Name, returns=Name).process(Counted(), uid="count").to(self.out)


def shown(window: Window[Name], count: int) -> str:
    return str(count)


class InWindows(Pipeline, name="in-windows"):
    source = KafkaSource(
        "in", value=Utf8(), event_time=len, watermarks=BoundedOutOfOrderness("1 s")
    )
    out = KafkaSink("out", value=Utf8())

    def define(self) -> None:
        (
            self.source.key_by(Name, returns=Name)
            .window(Sliding("2 s", every="1 s"))
            .aggregate(Count(), into=shown, uid="count")
            .to(self.out)
        )


@pytest.mark.parametrize("pipeline", [ByKey, InWindows])
@pytest.mark.parametrize("before", [[], ["a", "b"]])
def test_key_that_cannot_be_hashed_is_an_error_of_the_user_with_step_and_record(
    pipeline: Any, before: list[str]
) -> None:
    with PipelineTest(pipeline) as test:
        source = test.source(pipeline.source)
        source.push(*before)
        with pytest.raises(UserCodeError) as raised:
            source.push("c", "boom", "d")
    text = str(raised.value)
    assert "step uid 'count'" in text
    assert "raised BrokenError: boom" in text
    assert f"offset {len(before) + 1}" in text


def test_error_of_a_lookup_that_is_not_about_a_key_stays_as_it_is() -> None:
    batch = RecordBatch(["a"], [0], TopicPartition("in", 0))
    node = next(node for node in build(ByKey) if node.uid == "count")
    keys = StepKeys("by-key", node, None)
    for error in (KeyError(1), MemoryError(), Terminated(0), StorageError("It is gone.")):
        assert keys.lookup_error(batch, [Name("a")], error) is error
    assert keys.lookup_error(batch, [Name("boom")], ended := Terminated(0)) is ended


class Unequal:
    """A key that cannot be compared with another one."""

    def __hash__(self) -> int:
        return 7

    def __eq__(self, other: object) -> bool:
        raise BrokenError


def test_key_that_cannot_be_compared_with_one_before_it_is_named() -> None:
    batch = RecordBatch(["a", "b"], [0, 1], TopicPartition("in", 0))
    node = next(node for node in build(ByKey) if node.uid == "count")
    found = StepKeys("by-key", node, None).lookup_error(
        batch, [Unequal(), Unequal()], BrokenError("eq")
    )
    assert isinstance(found, UserCodeError)
    assert "offset 1" in str(found)
