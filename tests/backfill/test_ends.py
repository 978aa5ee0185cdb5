"""`--to`: what it says, and which offsets it means."""

from __future__ import annotations

import pytest

from tidegate.backfill.ends import choose_ends, parse_to
from tidegate.checkpoint.partition_offsets import PartitionOffsets
from tidegate.errors import ConfigError, RefusedError
from tidegate.ids import Uid
from tidegate.stream_elements import TopicPartition

HALF_PAST_MS = 1_769_862_600_000
"""2026-01-31 12:30 UTC."""


def offsets(partition: int, earliest: int, latest: int) -> PartitionOffsets:
    return PartitionOffsets(
        source=Uid("orders"),
        topic="o",
        partition=partition,
        start=earliest,
        earliest=earliest,
        latest=latest,
    )


TWO = (offsets(0, 10, 100), offsets(1, 0, 50))


def never(_topic_partitions: list[TopicPartition], _ms: int) -> dict[TopicPartition, int]:
    raise AssertionError("no time is asked for")


def test_end_now_is_the_last_stable_offset() -> None:
    assert [end.offset for end in choose_ends(parse_to("now"), TWO, never)] == [100, 50]


@pytest.mark.parametrize(
    "text", ["2026-01-31T12:30", "2026-01-31 12:30:00Z", "2026-01-31T13:30+01:00"]
)
def test_end_time_without_a_time_zone_is_utc(text: str) -> None:
    assert parse_to(text) == HALF_PAST_MS


def test_end_time_means_its_first_offset_and_at_most_the_last_stable_offset() -> None:
    def at_time(topic_partitions: list[TopicPartition], time_ms: int) -> dict[TopicPartition, int]:
        assert time_ms == HALF_PAST_MS
        return dict(zip(topic_partitions, (40, 60), strict=True))

    ends = choose_ends(parse_to("2026-01-31T12:30"), TWO, at_time)
    assert [end.offset for end in ends] == [40, 50]


def test_end_offsets_are_given_for_each_partition() -> None:
    ends = choose_ends(parse_to("o/0=20, o/1=50"), TWO, never)
    assert [(end.source, end.topic, end.partition, end.offset) for end in ends] == [
        ("orders", "o", 0, 20),
        ("orders", "o", 1, 50),
    ]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("o/0=20", "gives no offset for partition 1 of topic 'o'"),
        ("o/0=20,o/1=51", "at offset 51, but the partition can be read only from 0 to 50"),
        ("o/0=9,o/1=5", "at offset 9, but the partition can be read only from 10"),
        ("o/0=20,o/1=5,o/2=7", "names partition 2 of topic 'o', which no source"),
    ],
)
def test_end_offsets_that_do_not_fit_the_topics_are_refused(text: str, said: str) -> None:
    with pytest.raises(RefusedError, match=said):
        choose_ends(parse_to(text), TWO, never)


@pytest.mark.parametrize("text", ["yesterday", "", "o=5", "o/x=5", "o/0=-1", "1960-01-01"])
def test_end_that_cannot_be_parsed_is_refused_with_examples(text: str) -> None:
    with pytest.raises(ConfigError, match="Write `now`, a time like"):
        parse_to(text)
