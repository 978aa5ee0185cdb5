"""What retention takes from the inputs of a run.

A topic keeps its records for longer than a job that runs needs them. So what goes is what no
checkpoint may ask for any more: all that an attempt's readers had passed before a checkpoint was
begun that is published now. That is records, and also the aborted ones and the markers behind the
last of them, which no reader is ever given.

Not in runs that go back to an older checkpoint, by hand or by a retraction: what such a one finds
gone is a loss by right.
"""

from __future__ import annotations

import random
from collections import deque
from typing import Final, NamedTuple

from tidegate.stream_elements import TopicPartition
from tidegate.testing.sim.cluster import SimCluster

LOOK_S: Final = 0.1
LATER: Final = 2
"""The next checkpoint but one after a look was begun after it: one is under way at a time."""


class _Look(NamedTuple):
    attempt: int
    published: int
    """So many checkpoints of the job."""
    passed: dict[TopicPartition, int]


class Retention:
    """Of one run; `chance` decides at each look whether anything goes."""

    def __init__(self, world: SimCluster, chance: random.Random) -> None:
        self._world, self._chance = world, chance
        self._looks: deque[_Look] = deque()
        self.expired = 0
        """Offsets that are gone."""

    def begin(self) -> None:
        """Look at intervals from now on."""
        self._world.scheduler.call_later(LOOK_S, self._look)

    def _look(self) -> None:
        self.begin()
        journal = self._world.watch.journal
        attempt, published = journal.attempt, len(journal.checkpoints)
        looks = self._looks
        if looks and looks[-1].attempt != attempt:
            looks.clear()
        if not looks or looks[-1].published < published:
            looks.append(_Look(attempt, published, self._world.passed(attempt)))
        if looks[0].published + LATER <= published:
            passed = looks.popleft().passed
            if self._chance.random() < 0.5:
                self._take(passed)

    def _take(self, passed: dict[TopicPartition, int]) -> None:
        for origin, position in passed.items():
            log = self._world.kafka.log(origin)
            if position > log.start:
                self.expired += position - log.start
                log.start = position
                self._world.scheduler.tell(
                    "retention: %s-%d begins at %d", origin.topic, origin.partition, position
                )
