"""Arguments of the commands for topics: lines, offsets, times and the number of partitions."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING, cast

import pytest
from typer.testing import CliRunner

from tidegate.cli.kafka.produce import _Fixed, _numbered, _Record
from tidegate.cli.kafka.topic_reader import _chosen, _positions, _time_ms
from tidegate.cli.main import app
from tidegate.cli.run.create_topics import partitions_of
from tidegate.errors import ConfigError, RefusedError
from tidegate.stream_elements import TopicPartition

if TYPE_CHECKING:
    from tidegate.drivers.kafka.topic_admin import KafkaTopicAdmin

PARTITION = TopicPartition("orders", 0)
NOTHING = _Fixed(None, None, [], None)


def records(content: bytes, fixed: _Fixed, *, as_records: bool = False) -> list[object]:
    return [each for _, each in _numbered(io.BytesIO(content), fixed, as_records=as_records)]


def test_line_is_the_value_and_its_end_is_not_part_of_it() -> None:
    found = records(b"a\r\n\nlast", NOTHING)
    assert [cast("_Record", each).value for each in found] == [b"a", b"", b"last"]


def test_first_separator_parts_key_and_value_and_a_line_without_it_is_wrong() -> None:
    fixed = _Fixed(None, ":", [("h", b"v")], 2)
    assert records(b"k:v:w\nx\n", fixed) == [
        _Record(b"k", b"v:w", [("h", b"v")], 2, 0),
        "it has no ':' between key and value",
    ]


def test_json_line_gives_key_headers_partition_and_time_and_options_win() -> None:
    line = (
        b'{"key": "k", "value": {"a": 1}, "headers": {"h": "v"}, "partition": 1, "timestamp_ms": 9}'
    )
    assert records(line, NOTHING, as_records=True) == [
        _Record(b"k", b'{"a": 1}', [("h", b"v")], 1, 9)
    ]
    fixed = _Fixed(b"x", None, [("i", b"w")], 0)
    assert records(line + b"\n\n", fixed, as_records=True) == [
        _Record(b"x", b'{"a": 1}', [("h", b"v"), ("i", b"w")], 0, 9)
    ]
    (wrong,) = records(b"[1]", NOTHING, as_records=True)
    assert "not a record as `tidegate kafka read --json`" in str(wrong)


class Log:
    """A partition with the offsets 10 to 20, whose record 15 is the first after second 100."""

    def earliest(self, partitions: list[TopicPartition]) -> dict[TopicPartition, int]:
        return dict.fromkeys(partitions, 10)

    def at_time(
        self, partitions: list[TopicPartition], timestamp_ms: int
    ) -> dict[TopicPartition, int]:
        return dict.fromkeys(partitions, 15 if timestamp_ms <= 100_000 else 25)


@pytest.mark.parametrize(
    ("where", "offset"),
    [
        ("beginning", 10),
        ("end", 20),
        ("12", 12),
        ("3", 10),
        ("90", 20),
        ("-4", 16),
        ("-40", 10),
        ("1970-01-01T00:01:40Z", 15),
        ("1970-01-01T02:01:40+02:00", 15),
        ("2026-01-01", 20),
    ],
)
def test_reading_begins_where_from_says_and_within_the_log(where: str, offset: int) -> None:
    ends = {PARTITION: 20}
    assert _positions(where, [PARTITION], ends, cast("KafkaTopicAdmin", Log())) == {
        PARTITION: offset
    }


def test_age_is_a_time_before_now_and_another_text_is_refused() -> None:
    assert _time_ms("10 min", 1_000.0) == 400_000
    with pytest.raises(ConfigError, match="--from -10"):
        _time_ms("yesterday", 0.0)


def test_partition_that_does_not_exist_is_refused() -> None:
    assert _chosen("orders", [1, 0, 1], 3) == [TopicPartition("orders", n) for n in (0, 1)]
    with pytest.raises(RefusedError, match="has no partition 3"):
        _chosen("orders", [3], 3)


@pytest.mark.parametrize(
    ("given", "parallelism", "partitions"),
    [(None, 8, None), ("default", 2, 4), ("default", 8, 8), ("3", 8, 3)],
)
def test_number_of_partitions_of_new_topics(
    given: str | None, parallelism: int, partitions: int | None
) -> None:
    assert partitions_of(given, parallelism) == partitions


@pytest.mark.parametrize("given", ["0", "many", "-1"])
def test_wrong_number_of_partitions_is_refused_before_anything_starts(given: str) -> None:
    result = CliRunner().invoke(app, ["run", "absent:Absent", f"--create-topics={given}"])
    assert isinstance(result.exception, ConfigError)
    assert "--create-topics=8" in str(result.exception)


def test_create_topics_needs_no_number() -> None:
    result = CliRunner().invoke(app, ["run", "--create-topics", "absent_module:Absent"])
    assert "absent_module" in str(result.exception)


def test_key_and_key_separator_exclude_each_other() -> None:
    arguments = ["kafka", "produce", "orders", "--key", "k", "--key-separator", ":"]
    assert isinstance(CliRunner().invoke(app, arguments).exception, ConfigError)
