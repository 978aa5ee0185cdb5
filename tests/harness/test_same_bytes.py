"""The bytes of all sinks do not depend on the parallelism or on restores.

Goal: one record everywhere. Method: a pipeline whose records are drawn, and hold everything that a
record can hold (`integration/agreement/record_shapes.py`). It runs with one subtask and without a
crash, and then with several, with crashes and other numbers of subtasks. What each step has seen is
in the sinks. The agreement tests run the same pipeline on a broker, and as a backfill. Then values
that no slot can get as they are: they are refused at every parallelism.
"""

from __future__ import annotations

import dataclasses
import random
from collections import Counter
from collections.abc import Iterable
from datetime import UTC, datetime
from itertools import islice
from typing import Any

import pydantic
import pytest

from integration.agreement.inputs import events
from integration.agreement.record_shapes import SameRecords, entries
from tests.api.record_kinds import Rule, Word, facts
from tidegate import Context, Json, KafkaSink, KafkaSource, KeyedProcess, Pipeline, ValueState
from tidegate.errors import UserCodeError
from tidegate.testing import PipelineTest, Setup

SINKS = ("seen", "passed", "opened", "tags", "slotted", "sessions", "models")


class Same(SameRecords, name="same-records"):
    """The pipeline with a name."""


def outputs(prefix: str, setup: Setup, run: random.Random | None = None) -> dict[str, list[str]]:
    """Run the pipeline over events that `prefix` draws, with crashes if there is a `run`."""
    inputs = islice(zip(events(prefix)(), entries(), strict=False), 24)
    with PipelineTest(Same, setup) as test:
        for event, entry in inputs:
            test.source(Same.events).push_bytes(event.value)
            test.source(Same.entries).push_bytes(entry.value)
            if run is not None and run.random() < 0.1:
                test.checkpoint()
            if run is not None and run.random() < 0.05:
                test.crash(parallelism=run.randint(1, 3))
        return {
            name: sorted(
                repr((facts(each), getattr(Same, name).value.encoder()(each)))
                for each in test.sink(getattr(Same, name)).read()
            )
            for name in SINKS
        }


def assert_same(seed: int) -> None:
    expected = outputs(f"e{seed}-", Setup(parallelism=1))
    assert all(expected.values())
    for parallelism in (1, 2, 3):
        setup = Setup(parallelism=parallelism, batch=1 + seed % 7)
        assert outputs(f"e{seed}-", setup, random.Random(seed)) == expected


def test_bytes_of_all_sinks_are_the_same_at_every_parallelism_and_after_restores() -> None:
    assert_same(1)


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(2, 102))
def test_bytes_of_all_sinks_are_the_same_for_many_drawn_records(seed: int) -> None:
    assert_same(seed)


# --- what is refused ----------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Mixed:
    key: str
    at: datetime = datetime(2026, 1, 1, tzinfo=UTC)
    counts: dict[str, int] = dataclasses.field(default_factory=dict)
    free: Any = None


class Made(pydantic.BaseModel):
    """A model whose validator gives a value that no slot gets as it is."""

    key: str
    counts: dict[str, int] = {}

    @pydantic.field_validator("counts")
    @classmethod
    def _count(cls, counts: dict[str, int]) -> dict[str, int]:
        return Counter(counts)


class Counts(KeyedProcess[str, Any, str]):
    seen = ValueState(int, default=0)

    def process(self, value: Any, ctx: Context[str]) -> Iterable[str]:
        del value
        self.seen.value += 1
        yield ctx.key


ODD: dict[str, Any] = {
    "zone": lambda key: Mixed(key, at=datetime(2026, 1, 1, tzinfo=Rule())),
    "counter": lambda key: Mixed(key, counts=Counter(key)),
    "free": lambda key: Mixed(key, free=[Word.A]),
    "text": lambda key: Mixed(Word.A),
}


def refusing(kind: str, **policy: Any) -> Any:
    class Refuses(Pipeline, name="refuses"):
        keys = KafkaSource("keys", value=Json(str))
        out = KafkaSink("out", value=Json(str))

        def define(self) -> None:
            made = self.keys.map(
                lambda key: Mixed(key) if key == "b" else ODD[kind](key), returns=Mixed, **policy
            )
            made.key_by(lambda one: one.key).process(Counts(), uid="counts").to(self.out)

    return Refuses


@pytest.mark.parametrize("parallelism", [1, 2, 3])
@pytest.mark.parametrize("kind", ODD)
def test_a_value_that_another_slot_would_not_get_is_refused_at_every_parallelism(
    kind: str, parallelism: int
) -> None:
    pipeline = refusing(kind, on_error="skip")
    with PipelineTest(pipeline, Setup(parallelism=parallelism)) as test:
        test.source(pipeline.keys).push(*"abcb")
        assert sorted(test.sink(pipeline.out).read()) == ["b", "b"]
        assert test.counters.skipped == 2
    pipeline = refusing(kind)
    with (
        PipelineTest(pipeline, Setup(parallelism=parallelism)) as test,
        pytest.raises(UserCodeError, match="Correct the step, or declare the type"),
    ):
        test.source(pipeline.keys).push(*"abcb")


class Declares(KeyedProcess[str, Mixed, str]):
    def process(self, value: Mixed, ctx: Context[str]) -> Iterable[str]:
        yield value.key


@pytest.mark.parametrize("kind", ODD)
def test_a_value_is_refused_also_if_only_the_keyed_step_declares_its_type(kind: str) -> None:
    class Reads(Pipeline, name="reads"):
        keys = KafkaSource("keys", value=Json(str))
        out = KafkaSink("out", value=Json(str))

        def define(self) -> None:
            made = self.keys.map(lambda key: Mixed(key) if key == "b" else ODD[kind](key))
            by_key = made.key_by(lambda one: one.key, on_error="skip")
            by_key.process(Declares(), uid="declares").to(self.out)

    with PipelineTest(Reads) as test:
        test.source(Reads.keys).push(*"abcb")
        assert test.sink(Reads.out).read() == ["b", "b"]
        assert test.counters.skipped == 2


class FromFormat(Pipeline, name="from-format"):
    """A record that a validator has changed goes to a `key_by` without a step between."""

    made = KafkaSource("made", value=Json(Made), on_bad_record="skip")
    out = KafkaSink("out", value=Json(str))

    def define(self) -> None:
        by_key = self.made.key_by(lambda one: one.key)
        by_key.process(Counts(), uid="counts").to(self.out)


@pytest.mark.parametrize("parallelism", [1, 2, 3])
def test_a_value_that_a_validator_has_made_is_refused_by_the_policy_of_the_source(
    parallelism: int,
) -> None:
    with PipelineTest(FromFormat, Setup(parallelism=parallelism)) as test:
        for key in "abcd":
            test.source(FromFormat.made).push_bytes(b'{"key": "%s"}' % key.encode())
            test.source(FromFormat.made).push_bytes(
                b'{"key": "%s", "counts": {"x": 1}}' % key.encode()
            )
        assert sorted(test.sink(FromFormat.out).read()) == [*"abcd"]
        assert test.counters.skipped == 4
