"""Inputs go as soon as no checkpoint may ask for them, and no sooner; no restart misses any."""

from __future__ import annotations

import random
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from tests.simulator.kafka.log import PartitionLog
from tests.simulator.plan import Plan
from tests.simulator.retention import Retention
from tests.simulator.run import run_seed
from tidegate.stream_elements import TopicPartition

TOPIC_PARTITION = TopicPartition("in", 0)


class World:
    """A job of which only is known what retention asks for. `random` of 0 takes what it may."""

    def __init__(self) -> None:
        self.log = PartitionLog(TOPIC_PARTITION, 1000)
        self.journal = SimpleNamespace(attempt=1, checkpoints=set[int]())
        self.position = 0
        self.due: Callable[[], None] | None = None
        scheduler = SimpleNamespace(call_later=self._call_later, record_event=lambda *_: None)
        parts: Any = SimpleNamespace(
            scheduler=scheduler,
            watch=SimpleNamespace(journal=self.journal),
            kafka=SimpleNamespace(log=lambda _: self.log),
            read_positions=lambda _: {TOPIC_PARTITION: self.position},
        )
        rng: Any = SimpleNamespace(random=lambda: 0.0)
        self.retention = Retention(parts, rng)
        self.retention.begin()

    def _call_later(self, _s: float, call: Callable[[], None]) -> None:
        self.due = call

    def published(self, position: int) -> int:
        """One more checkpoint; readers are at `position` now. Where the log begins after a look."""
        self.journal.checkpoints.add(len(self.journal.checkpoints))
        self.position = position
        assert self.due is not None
        self.due()
        return self.log.start


def test_retention_deletes_input_at_the_second_checkpoint_after_it_was_read() -> None:
    world = World()
    assert [world.published(at) for at in (5, 9, 12, 12, 12)] == [0, 0, 5, 9, 12]
    assert world.retention.expired == 12


def test_retention_counts_checkpoints_from_zero_in_a_new_attempt() -> None:
    """A new attempt may begin at the position of the last checkpoint, which no check has seen."""
    world = World()
    world.published(5)
    world.published(9)
    world.journal.attempt = 2
    assert [world.published(at) for at in (0, 9, 9, 9)] == [0, 0, 0, 9]


@pytest.mark.seeds
def test_restarts_need_no_input_that_retention_has_deleted() -> None:
    seeds = (s for s in range(10_000) if Plan.drawn(random.Random(f"{s}/plan")).retention)
    outcomes = [run_seed(seed) for _, seed in zip(range(12), seeds, strict=False)]
    assert {each.seed: each.violation for each in outcomes if each.violation} == {}
    assert sum(each.expired for each in outcomes) > 100
    assert sum(each.attempts for each in outcomes) > 2 * len(outcomes)
