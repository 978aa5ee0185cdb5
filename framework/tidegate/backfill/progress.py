"""Commits the offsets of a backfill to the consumer groups of the sources, for lag monitors.

A live job commits the offsets of each completed checkpoint to these groups. A wave is a completed
checkpoint, so the backfill does the same. A restore does not read these offsets, because the
journal has the job's position. A recovery compares them with the journal only to find out whether
the journal has lost its last entries (`commit/lost_tail.py`).

Invariant: the offsets of a wave are committed to a group after the wave is published.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Sequence
from typing import Final

from tidegate.api.connectors.kafka_names import consumer_group
from tidegate.commit.lost_tail import commit_metadata
from tidegate.errors import KafkaError, RefusedError
from tidegate.ids import CheckpointId, JobName, Uid
from tidegate.ports.drivers import KafkaAdmin
from tidegate.ports.kafka import GroupCommit
from tidegate.protocol.subtask_snapshot import SubtaskSnapshot
from tidegate.stream_elements import TopicPartition

_log: Final = logging.getLogger(__name__)


def commit_to_groups(
    admin: KafkaAdmin,
    job: JobName,
    journal: str,
    checkpoint: CheckpointId,
    snapshots: Sequence[SubtaskSnapshot],
) -> None:
    """Commit the offsets of a wave to the group of each source. A commit that fails is only logged,
    because a job needs no permission for the group.
    """
    metadata = commit_metadata(journal, checkpoint)
    groups: defaultdict[Uid, dict[TopicPartition, GroupCommit]] = defaultdict(dict)
    for split in (split for part in snapshots for split in part.splits):
        groups[split.source][split.topic_partition] = GroupCommit(split.offset, metadata)
    for source, commits in groups.items():
        try:
            admin.commit_group(consumer_group(job, source), commits)
        except (KafkaError, RefusedError) as error:
            _log.warning("the wave's offsets are not committed for lag monitors: %s", error)
