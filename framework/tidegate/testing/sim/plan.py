"""What a seed makes a run of: the pipeline, its input, the cluster, the lives of the job.

A job is run one or several times, as a user does it: each *life* is one `tidegate run`, with a
parallelism of its own, and ends by a stop with a final checkpoint, by a cancel, by the death of
everything at once, or, the last one, when all is read.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any, Final

from tidegate.testing.sim.faults import Weights
from tidegate.testing.sim.pipelines import SHAPES, Event, Shape
from tidegate.testing.sim.weather import Weather

KEYS: Final = ("aa", "ab", "ba", "bb", "ca")
TOLERATED_OUTAGE_MS: Final = 400_000
"""Faults of a run last less than this in all, so none of them is a loss by right."""


@dataclass(frozen=True, slots=True)
class Life:
    """One `tidegate run`."""

    parallelism: int
    task_managers: int
    slots: int
    ends: str
    """`finished`, `stop`, `cancel`, `crash`, or `bounded`."""
    after: float
    """Of all results, the share that is visible when it is ended; or of the time, for a crash."""


@dataclass(frozen=True, slots=True)
class Input:
    """One record of a source, or the abort of a transaction that wrote some."""

    at_s: float
    topic: str
    partition: int
    event: Event
    committed: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """A run, but for what chance does to it."""

    shape: Shape
    weights: Weights
    weather: Weather
    lives: tuple[Life, ...]
    inputs: tuple[Input, ...]
    partitions: dict[str, int]
    settings: dict[str, Any]

    @classmethod
    def drawn(cls, chance: random.Random) -> Plan:
        """The plan of a seed."""
        shape = chance.choice(SHAPES)
        weights = Weights.drawn(chance)
        bounded = chance.random() < 0.2
        partitions = {topic: chance.randint(1, 3) for topic in (*shape.sources, *shape.sinks)}
        return cls(
            shape=shape,
            weights=weights,
            weather=Weather.drawn(chance) if weights.any() else Weather(),
            lives=_lives(chance, bounded=bounded),
            inputs=_inputs(chance, shape, partitions, 0.0 if bounded else weights.wild_s),
            partitions=partitions,
            settings=_settings(chance),
        )


def _lives(chance: random.Random, *, bounded: bool) -> tuple[Life, ...]:
    count = chance.choice((1, 1, 1, 2, 2, 3))
    ends = [chance.choice(("stop", "cancel", "crash")) for _ in range(count - 1)]
    ends.append("bounded" if bounded else "finished")
    lives = []
    for end in ends:
        parallelism = chance.choice((1, 2, 2, 3))
        managers = chance.randint(1, parallelism)
        slots = -(-parallelism // managers) + chance.choice((0, 0, 1))
        lives.append(Life(parallelism, managers, slots, end, chance.random()))
    return tuple(lives)


def _inputs(
    chance: random.Random, shape: Shape, partitions: dict[str, int], until_s: float
) -> tuple[Input, ...]:
    counts: dict[tuple[str, int], int] = {}
    inputs = []
    aborts = chance.choice((0.0, 0.0, 0.1))
    times_s = sorted(until_s * chance.random() for _ in range(chance.randint(20, 120)))
    for at_s in times_s:
        topic = chance.choice(shape.sources)
        partition = chance.randrange(partitions[topic])
        number = counts[topic, partition] = counts.get((topic, partition), -1) + 1
        event = Event(f"{topic}-{partition}:{number}", chance.choice(KEYS), chance.randint(1, 100))
        inputs.append(Input(at_s, topic, partition, event, chance.random() >= aborts))
    return tuple(inputs)


def _settings(chance: random.Random) -> dict[str, Any]:
    """Small times, so that little virtual time passes: what matters is their order."""
    heartbeat_ms = chance.choice((200, 300, 500))
    return {
        "job": {"max_parallelism": chance.choice((4, 8, 128))},
        "checkpoint": {
            "interval": chance.choice((200, 300, 500, 1000)),
            "timeout": chance.choice((1500, 3000, 6000)),
            "min_pause": chance.choice((0, 0, 100)),
            "tolerable_failures": chance.randint(0, 3),
            "tolerated_outage": TOLERATED_OUTAGE_MS,
            "storage": "sim://checkpoints",
        },
        "state": {"backend": "memory", "directory": "state"},
        "cluster": {
            "heartbeat_interval": heartbeat_ms,
            "heartbeat_timeout": heartbeat_ms * chance.choice((5, 8)),
            "slot_request_timeout": 30_000,
        },
        "restart": {
            "strategy": chance.choice(("fixed_delay", "exponential_delay")),
            "delay": chance.choice((0, 100, 500)),
            "initial_delay": 50,
            "max_delay": 1_000,
        },
        "exchange": {"credits": chance.choice((2, 2, 4, 8))},
    }
