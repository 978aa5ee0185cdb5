"""The plan that a seed draws for a run: the pipeline, its input, the cluster and the job runs.

A job is run once or several times, as a user does. Each *job run* is one `tidegate run` with its
own parallelism. It ends by a stop with a final checkpoint, by a cancel, or by the death of all its
processes at once. The last job run ends when all input is read.

Parts that were added later are drawn last, so that seeds without them keep their trace.
"""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass, replace
from typing import Any, Final, NamedTuple

from tests.simulator import mishaps, swaps
from tests.simulator.faults import FaultRates
from tests.simulator.load import Load
from tests.simulator.mishaps import Mishap
from tests.simulator.network_conditions import NetworkConditions
from tests.simulator.pipelines import BRANCHED, KEYS, SHAPES, Event, Shape, Sided, TwoSinks
from tests.simulator.swaps import Swap
from tests.simulator.timed_pipelines import EventTime
from tests.simulator.wave_faults import WaveFaults
from tidegate.commit.retention import RETAINED_MIN
from tidegate.commit.timeouts import required_transaction_timeout_ms
from tidegate.config import CheckpointSettings
from tidegate.config_load import checked

TOLERATED_OUTAGE_MS: Final = 400_000
"""Tolerated outage of the job in ms. All faults of a run together last less, so they must not lose
output.
"""
RESTORE_BACK_SHARE: Final = 0.3
"""Share of the runs with several job runs in which the later ones restore an older checkpoint."""
RETAINED_MAX: Final = 4
AT_LEAST_ONCE_SHARE: Final = 0.2
"""Share of the runs with sinks that are written at least once."""
RETENTION: Final = 0.4
"""Share of the runs with retention, among those that never go back to an older checkpoint."""
SESSION_CLUSTER_SHARE: Final = 0.3
"""Share of the runs on a session cluster."""
BRANCHES: Final = 0.5
"""Share of the `TwoSinks` runs that use two branches instead, one of which changes records that
both share.
"""
FAILING_OPENS: Final = 0.2
"""Share of the runs whose user code cannot connect for a while when it opens."""
FAILING_OPEN_S: Final = (1.0, 8.0)
CRASHING: Final = 0.12
"""Share of the runs whose user code raises at many records for a while. In half of these it begins
at the start, so that one attempt after the other opens transactions and publishes nothing.
"""
CRASHING_S: Final = (1.0, 6.0)
SHORT_TOLERATED_OUTAGE_MS: Final = 5_000
"""Tolerated outage in ms in runs with a blackout, so that a short blackout is too long."""


@dataclass(frozen=True, slots=True)
class JobRun:
    """One `tidegate run`."""

    parallelism: int
    task_managers: int
    slots: int
    ends: str
    """`finished`, `stop`, `drain`, `cancel`, `crash`, or `bounded`."""
    ends_at_share: float
    """Time of the end: a share of the time of faults, or of the visible results after all input is
    written. For a crash it is a share of the remaining time of faults.
    """
    restore_back: int | None = None
    """Number of checkpoints before the last that the user goes back. None means that the job run
    continues from the last checkpoint.
    """
    wave_offsets: int | None = None
    """Number of offsets that a wave of a backfill reads. None means a live job."""


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
    """The plan of a run. The time and target of each fault are drawn later, during the run."""

    shape: Shape
    fault_rates: FaultRates
    conditions: NetworkConditions
    job_runs: tuple[JobRun, ...]
    inputs: tuple[Input, ...]
    partitions: dict[str, int]
    settings: dict[str, Any]
    load: Load
    retention: bool
    """Whether inputs are written in transactions, and deleted when all checkpoints are past them.
    """
    session_cluster: bool
    """Whether each job run uses a session cluster instead of a local cluster."""
    failing_open: tuple[float, float] | None
    """Begin and end of the time in which user code raises when it opens. Attempts then fail one
    after the other, and none of them publishes a checkpoint.
    """
    mishaps: tuple[Mishap, ...]
    """Mishaps of the storage, and of hosts that see another storage or cluster."""
    swaps: tuple[Swap | None, ...]
    """The swap before each job run, or None."""
    crashing: tuple[float, float] | None
    """Begin and end of the time in which user code raises at many records."""
    waves: WaveFaults | None = None
    """Faults of the tasks of waves, in runs with backfills."""
    event_time: EventTime | None = None
    """The event time, in runs with event time."""

    @property
    def blackout_s(self) -> float:
        """Duration of the one blackout in seconds; 0 without a blackout."""
        checkpoint = checked(CheckpointSettings, self.settings["checkpoint"])
        return self.fault_rates.blackout * required_transaction_timeout_ms(checkpoint) / 1000

    @classmethod
    def drawn(cls, rng: random.Random) -> Plan:
        """Draw the plan of a seed."""
        shape = rng.choice(SHAPES)
        fault_rates = FaultRates.drawn(rng)
        bounded = rng.random() < 0.2
        until_s = 0.0 if bounded else fault_rates.fault_period_s
        partitions = {topic: rng.randint(1, 3) for topic in (*shape.sources, *shape.sinks)}
        conditions = NetworkConditions.drawn(rng) if fault_rates.any() else NetworkConditions()
        job_runs = _draw_job_runs(rng, bounded=bounded)
        events = _Events(rng, shape, partitions)
        trickle = events.trickle(until_s)
        settings = _settings(rng)
        load = Load.drawn(rng, trickle=len(trickle), fault_period_s=fault_rates.fault_period_s)
        fault_rates = fault_rates.with_rare_ones(
            rng, busy=bool(load.work_s), short_timeouts=load.short_timeout_ms is not None
        )
        fault_rates = fault_rates.with_failing_starts(rng)
        job_runs, retained = _choose_restores(rng, job_runs, losing=bool(fault_rates.blackout))
        settings["checkpoint"]["num_retained"] = retained
        shape = _choose_at_least_once_sinks(rng, shape)
        goes_back = bool(fault_rates.blackout) or any(
            job_run.restore_back is not None for job_run in job_runs
        )
        inputs = _numbered(trickle + events.bursts(load, until_s))
        retention = rng.random() < RETENTION and not goes_back
        session_cluster = rng.random() < SESSION_CLUSTER_SHARE
        shape = _branching(rng, shape)
        return cls(
            shape=shape,
            fault_rates=fault_rates,
            conditions=conditions,
            job_runs=job_runs,
            inputs=inputs,
            partitions=partitions,
            settings=_shorten_tolerated_outage(load.adjust_settings(settings))
            if fault_rates.blackout
            else load.adjust_settings(settings),
            load=load,
            retention=retention,
            session_cluster=session_cluster,
            failing_open=_failing_open(rng, fault_rates),
            mishaps=mishaps.drawn(rng, fault_rates, session_cluster=session_cluster),
            swaps=swaps.drawn(
                rng, job_runs, shape, losing=bool(fault_rates.blackout), retention=retention
            ),
            crashing=_crashing(rng, fault_rates),
        )


def _shorten_tolerated_outage(settings: dict[str, Any]) -> dict[str, Any]:
    """Reduce the tolerated outage, so that a short outage is longer than transactions may stay
    open.
    """
    checkpoint = {**settings["checkpoint"], "tolerated_outage": SHORT_TOLERATED_OUTAGE_MS}
    return {**settings, "checkpoint": checkpoint}


def _draw_job_runs(rng: random.Random, *, bounded: bool) -> tuple[JobRun, ...]:
    count = rng.choice((1, 1, 1, 2, 2, 3))
    ends = [rng.choice(("stop", "cancel", "crash")) for _ in range(count - 1)]
    ends.append("bounded" if bounded else "finished")
    job_runs = []
    for end in ends:
        parallelism = rng.choice((1, 2, 2, 3))
        managers = rng.randint(1, parallelism)
        slots = -(-parallelism // managers) + rng.choice((0, 0, 1))
        job_runs.append(JobRun(parallelism, managers, slots, end, rng.random()))
    return tuple(job_runs)


def _choose_at_least_once_sinks(rng: random.Random, shape: Shape) -> Shape:
    """Make some sinks of some runs at least once. Sinks that share a count are changed together."""
    sinks = sorted(shape.sinks)
    plain = sinks if shape.pipeline is Sided else rng.sample(sinks, rng.randint(1, len(sinks)))
    return replace(shape, plain=frozenset(plain)) if rng.random() < AT_LEAST_ONCE_SHARE else shape


def _branching(rng: random.Random, shape: Shape) -> Shape:
    """Replace `TwoSinks` by the branched pipeline in some runs."""
    branches = shape.pipeline is TwoSinks and rng.random() < BRANCHES
    return replace(BRANCHED, plain=shape.plain) if branches else shape


def _failing_open(rng: random.Random, fault_rates: FaultRates) -> tuple[float, float] | None:
    """Draw a time within the time of faults, in some runs."""
    if rng.random() >= FAILING_OPENS:
        return None
    begin_s = rng.uniform(0.0, fault_rates.fault_period_s)
    return begin_s, min(begin_s + rng.uniform(*FAILING_OPEN_S), fault_rates.fault_period_s)


def _crashing(rng: random.Random, fault_rates: FaultRates) -> tuple[float, float] | None:
    """Draw a time within the time of faults, in some runs."""
    if rng.random() >= CRASHING:
        return None
    begin_s = rng.choice((0.0, rng.uniform(0.0, fault_rates.fault_period_s)))
    return begin_s, min(begin_s + rng.uniform(*CRASHING_S), fault_rates.fault_period_s)


def _choose_restores(
    rng: random.Random, job_runs: tuple[JobRun, ...], *, losing: bool
) -> tuple[tuple[JobRun, ...], int]:
    """Let some job runs restore an older checkpoint. Also return the number of retained ones.

    Runs in which a checkpoint may be rolled back are left out, because a rollback changes which
    checkpoints are left to restore.
    """
    retained, some = rng.randint(RETAINED_MIN, RETAINED_MAX), rng.random() < RESTORE_BACK_SHARE
    backs = [rng.randrange(retained) for _ in job_runs]
    if losing or not some or len(job_runs) == 1:
        return job_runs, RETAINED_MIN
    later = zip(job_runs[1:], backs, strict=False)
    return (
        job_runs[0],
        *(replace(job_run, restore_back=back) for job_run, back in later),
    ), retained


class _Draft(NamedTuple):
    """An input whose position in its partition is not known yet."""

    at_s: float
    topic: str
    partition: int
    key: str
    amount: int
    committed: bool


class _Events:
    """The random input of the sources of a run."""

    def __init__(self, rng: random.Random, shape: Shape, partitions: dict[str, int]) -> None:
        self._rng, self._shape, self._partitions = rng, shape, partitions
        self._aborts = 0.0

    def trickle(self, until_s: float) -> list[_Draft]:
        """Draw records at random times."""
        rng = self._rng
        self._aborts = rng.choice((0.0, 0.0, 0.1))
        times_s = sorted(until_s * rng.random() for _ in range(rng.randint(20, 120)))
        return [self._draft(at_s) for at_s in times_s]

    def bursts(self, load: Load, until_s: float) -> list[_Draft]:
        """Draw bursts: many records at one time, in all partitions, with the keys of the others."""
        return [
            self._draft(burst.at * until_s) for burst in load.bursts for _ in range(burst.records)
        ]

    def _draft(self, at_s: float) -> _Draft:
        rng = self._rng
        topic = rng.choice(self._shape.sources)
        partition = rng.randrange(self._partitions[topic])
        key, amount = rng.choice(KEYS), rng.randint(1, 100)
        return _Draft(at_s, topic, partition, key, amount, rng.random() >= self._aborts)


def _numbered(drafts: list[_Draft]) -> tuple[Input, ...]:
    """Sort the inputs by time, and name each by its position in its partition."""
    counts: Counter[tuple[str, int]] = Counter()
    inputs = []
    for each in sorted(drafts, key=lambda draft: draft.at_s):
        place = each.topic, each.partition
        event = Event(f"{each.topic}-{each.partition}:{counts[place]}", each.key, each.amount)
        counts[place] += 1
        inputs.append(Input(each.at_s, *place, event, each.committed))
    return tuple(inputs)


def _settings(rng: random.Random) -> dict[str, Any]:
    """Draw the settings. Their times are short, so that little virtual time passes. Only the order
    of the times matters.
    """
    heartbeat_ms = rng.choice((200, 300, 500))
    return {
        "job": {"max_parallelism": rng.choice((4, 8, 128))},
        "checkpoint": {
            "interval": rng.choice((200, 300, 500, 1000)),
            "timeout": rng.choice((1500, 3000, 6000)),
            "min_pause": rng.choice((0, 0, 100)),
            "tolerable_failed_checkpoints": rng.randint(0, 3),
            "tolerated_outage": TOLERATED_OUTAGE_MS,
            "dir": "sim://checkpoints",
        },
        "state": {"backend": "memory", "local_dir": "state"},
        "cluster": {
            "heartbeat_interval": heartbeat_ms,
            "heartbeat_timeout": heartbeat_ms * rng.choice((5, 8)),
            "slot_request_timeout": 30_000,
        },
        "restart": {
            "strategy": rng.choice(("fixed_delay", "exponential_delay")),
            "delay": rng.choice((0, 100, 500)),
            "initial_backoff": 50,
            "max_backoff": 1_000,
        },
        "exchange": {"credits": rng.choice((2, 2, 4, 8))},
    }
