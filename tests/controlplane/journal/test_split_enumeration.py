"""What an attempt asks Kafka of its sources, and what it refuses of the answers."""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import pytest

from tidegate import Json, KafkaSink, KafkaSource, Pipeline, build
from tidegate.checkpoint.partition_offsets import PartitionOffsets
from tidegate.config import Config
from tidegate.controlplane.journal.split_enumeration import enumerate_partitions
from tidegate.errors import RefusedError
from tidegate.ids import JobName


def enumerated(
    start: Any, admin: Any, *, bounded: bool = False, ids: Mapping[str, str] | None = None
) -> list[PartitionOffsets]:
    """The partitions of a source that begins at `start`."""

    class Copies(Pipeline, name="copies"):
        a = KafkaSource("a", value=Json(int), starting_offsets=start)
        b = KafkaSink("b", value=Json(int))

        def define(self) -> None:
            self.a.to(self.b)

    job = JobName("copies")
    return list(
        enumerate_partitions(build(Copies), Config(), job, admin, ids or {}, bounded=bounded)
    )


def each(at: int) -> Any:
    """The same offset for every partition that is asked for."""
    return lambda topic_partitions, *_: dict.fromkeys(topic_partitions, at)


def starts(partitions: int) -> dict[int, int]:
    """Where each partition of a topic with so many of ten records begins."""

    def count(topic: str) -> int:
        if not partitions:
            message = f"Kafka has no topic {topic!r}."
            raise RefusedError(message)
        return partitions

    admin = SimpleNamespace(partitions=count, earliest=each(2), latest=each(10))
    found = enumerated({1: 7}, admin, ids={"a": "id-a"})
    assert {each.partition: each.start_kind for each in found} == {
        each.partition: "offset" if each.partition == 1 else "earliest" for each in found
    }
    return {each.partition: each.start for each in found}


@pytest.mark.parametrize(
    ("start", "kinds"),
    [
        ("earliest", ["earliest", "earliest"]),
        ("latest", ["latest", "latest"]),
        (1_000, ["timestamp", "timestamp"]),
        ("committed", ["group", "earliest"]),
    ],
)
def test_partition_carries_the_kind_of_its_start_offset(start: Any, kinds: list[str]) -> None:
    admin = SimpleNamespace(
        partitions=lambda _: 2,
        earliest=each(2),
        latest=each(10),
        at_time=each(7),
        committed=lambda _, topic_partitions: {
            each: [5, None][each.partition] for each in topic_partitions
        },
    )
    assert [each.start_kind for each in enumerated(start, admin)] == kinds


def test_source_begins_at_the_given_partition_offsets() -> None:
    assert starts(3) == {0: 2, 1: 7, 2: 2}


def test_an_offset_of_a_partition_that_is_not_there_is_refused() -> None:
    words = r"starting_offsets= of topic 'a' names partition 1, .* 0 to 0"
    with pytest.raises(RefusedError, match=words):
        starts(1)


def test_missing_topic_is_refused_with_the_name_of_its_source() -> None:
    with pytest.raises(RefusedError, match=r"source 'a' \(.*\) cannot be read: Kafka has no topic"):
        starts(0)


def test_offsets_hidden_by_open_transactions_are_counted_for_a_bounded_run() -> None:
    admin = SimpleNamespace(
        partitions=lambda _: 2,
        earliest=each(2),
        latest=each(10),
        high_watermarks=each(13),
    )

    def hidden(*, bounded: bool) -> list[int]:
        return [each.hidden for each in enumerated("earliest", admin, bounded=bounded)]

    assert hidden(bounded=True) == [3, 3]
    assert hidden(bounded=False) == [0, 0]
