"""Retention of the input topics of a run.

A topic keeps its records longer than a running job needs them. So retention deletes only records
that no checkpoint can read any more: those that the readers of an attempt had passed before a
checkpoint began that is published now. This includes aborted records and the markers after the
last record, which a reader never receives.

Runs that go back to an older checkpoint, by the user or by a rollback, have no retention. A record
that is missing for such a restore would be an expected loss.
"""

from __future__ import annotations

import random
from collections import deque
from typing import Final, NamedTuple

from tests.simulator.cluster import SimCluster
from tidegate.stream_elements import TopicPartition

CHECK_INTERVAL_S: Final = 0.1
LATER: Final = 2
"""Number of checkpoints published after a look until its offsets may expire. Only one checkpoint
is in progress at a time, so the second one has begun after the look.
"""


class _PositionSample(NamedTuple):
    attempt: int
    published: int
    """Number of published checkpoints of the job."""
    read_positions: dict[TopicPartition, int]


class Retention:
    """The retention of one run. `rng` decides at each due look whether records are deleted."""

    def __init__(self, world: SimCluster, rng: random.Random) -> None:
        self._world, self._rng = world, rng
        self._samples: deque[_PositionSample] = deque()
        self.expired = 0
        """Number of deleted offsets."""

    def begin(self) -> None:
        """Look at the readers' positions at intervals from now on."""
        self._world.scheduler.call_later(CHECK_INTERVAL_S, self._sample_positions)

    def _sample_positions(self) -> None:
        self.begin()
        journal = self._world.watch.journal
        attempt, published = journal.attempt, len(journal.checkpoints)
        samples = self._samples
        if samples and samples[-1].attempt != attempt:
            samples.clear()
        if not samples or samples[-1].published < published:
            samples.append(_PositionSample(attempt, published, self._world.read_positions(attempt)))
        if samples[0].published + LATER <= published:
            read_positions = samples.popleft().read_positions
            if self._rng.random() < 0.5:
                self._delete_records(read_positions)

    def _delete_records(self, read_positions: dict[TopicPartition, int]) -> None:
        for topic_partition, position in read_positions.items():
            log = self._world.kafka.log(topic_partition)
            if position > log.start:
                self.expired += position - log.start
                log.start = position
                self._world.scheduler.record_event(
                    "retention: %s-%d begins at %d",
                    topic_partition.topic,
                    topic_partition.partition,
                    position,
                )
