"""Offsets that a wave commits for consumer groups. A refused commit fails nothing."""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast

import pytest

from tidegate.backfill.progress import commit_to_groups
from tidegate.commit.lost_tail import parse_commit_metadata
from tidegate.errors import KafkaUnavailableError, NotAllowedError, TidegateError
from tidegate.ids import Attempt, CheckpointId, JobName, SubtaskIndex, Uid, VertexId
from tidegate.ports.drivers import KafkaAdmin
from tidegate.ports.kafka import GroupCommit
from tidegate.protocol.subtask_snapshot import SourceSplit, SubtaskSnapshot
from tidegate.stream_elements import TopicPartition

CHECKPOINT = CheckpointId(Attempt(7), 1)


class Groups:
    """Records the offsets that are committed for each group."""

    def __init__(self, refuses: dict[str, TidegateError] | None = None) -> None:
        self.told: dict[str, Mapping[TopicPartition, GroupCommit]] = {}
        self._refuses = refuses or {}

    def commit_group(self, group: str, commits: Mapping[TopicPartition, GroupCommit]) -> None:
        if group in self._refuses:
            raise self._refuses[group]
        self.told[group] = commits


def snapshot(index: int, *splits: tuple[str, int, int]) -> SubtaskSnapshot:
    return SubtaskSnapshot(
        vertex=VertexId("v"),
        index=SubtaskIndex(index),
        splits=tuple(
            SourceSplit(source=Uid(source), topic=f"{source}-topic", partition=part, offset=at)
            for source, part, at in splits
        ),
    )


SNAPSHOTS = [
    snapshot(0, ("orders", 0, 10), ("rates", 0, 5)),
    snapshot(1, ("orders", 1, 20)),
    snapshot(2),
]


def tell(groups: Groups) -> None:
    commit_to_groups(cast("KafkaAdmin", groups), JobName("job"), "j", CHECKPOINT, SNAPSHOTS)


def test_consumer_group_of_each_source_gets_its_offsets_and_the_checkpoint_id() -> None:
    groups = Groups()
    tell(groups)
    assert {
        group: {topic_partition: each.offset for topic_partition, each in commits.items()}
        for group, commits in groups.told.items()
    } == {
        "tidegate.job.orders": {
            TopicPartition("orders-topic", 0): 10,
            TopicPartition("orders-topic", 1): 20,
        },
        "tidegate.job.rates": {TopicPartition("rates-topic", 0): 5},
    }
    for commits in groups.told.values():
        for each in commits.values():
            assert parse_commit_metadata(each.metadata) == ("j", CHECKPOINT)


@pytest.mark.parametrize("error", [NotAllowedError("no right"), KafkaUnavailableError("away")])
def test_refused_commit_of_a_group_is_logged_and_other_groups_are_committed(
    error: TidegateError, caplog: pytest.LogCaptureFixture
) -> None:
    groups = Groups({"tidegate.job.orders": error})
    tell(groups)
    assert groups.told.keys() == {"tidegate.job.rates"}
    assert f"the wave's offsets are not committed for lag monitors: {error}" in caplog.text
