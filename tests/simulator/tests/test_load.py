"""The load of simulated runs: that what it is there for happens, and only in runs that have it."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from tests.simulator.load import LIMITS, SMALL, Load
from tests.simulator.plan import Plan
from tests.simulator.run import run_seed
from tidegate.checkpoint.backlog import Backlog
from tidegate.dataplane.channels.input_gate import InputGate
from tidegate.dataplane.channels.record_writer import RemoteOutputChannel
from tidegate.dataplane.sinks.kafka import KafkaSinkWriter
from tidegate.dataplane.source_task import SourceTask
from tidegate.dataplane.state.backend import KeyedStateBackend

SEEDS = range(90)


def plan(seed: int) -> Plan:
    return Plan.drawn(random.Random(f"{seed}/plan"))


@pytest.fixture
def met(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Counts how often runs have met the effects that a load must cause."""
    counts: Counter[str] = Counter()

    def watch(
        owner: type, true: Callable[..., Any], seen: Callable[[Any, Any], object], what: str
    ) -> None:
        def call(self: Any, *args: Any) -> Any:
            result = true(self, *args)
            counts[what] += bool(seen(self, result))
            return result

        monkeypatch.setattr(owner, true.__name__, call)

    watch(
        RemoteOutputChannel,
        RemoteOutputChannel.put,
        lambda channel, _: channel.waiting,
        "a frame waits for credit",
    )
    watch(InputGate, InputGate.block, lambda *_: True, "a channel is blocked")
    watch(KafkaSinkWriter, KafkaSinkWriter.writable, lambda _, may: not may, "a sink takes no more")
    watch(SourceTask, SourceTask.trigger, lambda task, _: task._pending, "a barrier finds batches")
    watch(SourceTask, SourceTask.checkpoint_aborted, lambda *_: True, "a checkpoint is given up")
    rows = KeyedStateBackend.rows

    def overflowing(self: KeyedStateBackend, keys: Any) -> Any:
        known = len(self._cache)
        found = rows(self, keys)
        counts["a cache overflows"] += len(self._cache) < known
        return found

    monkeypatch.setattr(KeyedStateBackend, "rows", overflowing)
    watch(Backlog, Backlog.sample, lambda _, behind: behind, "a job is behind")
    return counts


@pytest.mark.seeds
def test_loaded_runs_meet_every_effect_of_load_and_are_exact(met: Counter[str]) -> None:
    loaded = [seed for seed in SEEDS if plan(seed).load.bursts]
    assert {seed: run_seed(seed).violation for seed in loaded} == dict.fromkeys(loaded)
    assert len(met) == 7
    assert min(met.values()) > 5, met


def test_some_plans_have_no_load_and_the_others_cover_every_kind_of_load() -> None:
    loads = [plan(seed).load for seed in range(200)]
    idle = [load for load in loads if not load.bursts]
    assert set(map(repr, idle)) == {repr(Load())}
    assert 0.3 < len(idle) / len(loads) < 0.5
    assert {name for load in loads for name in load.limits} == {*LIMITS, *SMALL}
    assert any(load.work_s for load in loads)
    assert any(load.short_timeout_ms for load in loads)
    assert any(load.cache_entries for load in loads)


def test_plan_with_slow_records_has_a_checkpoint_timeout_of_ten_seconds_or_more() -> None:
    """With a shorter timeout such a job would never end, although no code is wrong."""
    busy = [each for each in map(plan, range(200)) if each.load.work_s]
    assert busy
    for each in busy:
        assert each.settings["checkpoint"]["timeout"] >= 10_000
        assert each.load.limits.keys() >= SMALL.keys()


def test_input_events_are_named_by_their_offset_in_their_partition() -> None:
    for seed in range(50):
        drawn, counts = plan(seed), Counter[str]()
        assert list(drawn.inputs) == sorted(drawn.inputs, key=lambda each: each.at_s)
        for each in drawn.inputs:
            place = f"{each.topic}-{each.partition}"
            assert each.event.name == f"{place}:{counts[place]}"
            counts[place] += 1
