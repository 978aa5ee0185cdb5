"""Which commits of a run the benchmark takes as its first and its last."""

from __future__ import annotations

import struct
from dataclasses import dataclass

from integration.bench.commits import Commit, Span, _commit_of, span


@dataclass(frozen=True)
class Record:
    of_key: bytes | None
    of_value: bytes | None

    def key(self) -> bytes | None:
        return self.of_key

    def value(self) -> bytes | None:
        return self.of_value

    def timestamp(self) -> tuple[int, int]:
        return 1, 1_700_000_000_250


def key(version: int, group: str, topic: str, partition: int) -> bytes:
    texts = b"".join(struct.pack(">h", len(each)) + each.encode() for each in (group, topic))
    return struct.pack(">h", version) + texts + struct.pack(">i", partition)


VALUE = struct.pack(">hqi", 3, 1234, 0)


def test_span_reaches_from_the_first_commit_of_all_partitions_to_the_last_one() -> None:
    commits = [
        Commit(0.5, 0, 0),  # a checkpoint before the first record
        Commit(0.5, 1, 0),
        Commit(1.0, 0, 10),  # the other subtask has not committed its part of this checkpoint
        Commit(1.01, 1, 20),
        Commit(2.0, 0, 110),
        Commit(2.01, 1, 220),
        Commit(3.0, 1, 300),
    ]
    assert span(commits, 2) == Span(1.01, 3.0, 380)


def test_run_with_one_commit_has_no_span() -> None:
    assert span([], 2) is None
    assert span([Commit(1.0, 0, 10), Commit(1.0, 1, 20)], 2) is None
    assert span([Commit(1.0, 0, 10), Commit(2.0, 0, 20)], 2) is None  # nothing of partition 1


def test_commit_is_read_from_a_record_of_the_topic_of_offsets() -> None:
    found = _commit_of(Record(key(1, "group", "clicks", 3), VALUE), "clicks")
    assert found == Commit(1_700_000_000.25, 3, 1234)


def test_other_records_of_the_topic_of_offsets_are_no_commits() -> None:
    assert _commit_of(Record(key(1, "group", "other", 3), VALUE), "clicks") is None
    assert _commit_of(Record(key(1, "group", "clicks", 3), None), "clicks") is None  # deleted
    assert _commit_of(Record(key(2, "group", "clicks", 3), VALUE), "clicks") is None  # of a group
