"""Simulated runs with event time: they are exact, and what they are there for happens in them."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from random import Random

import pytest

from tests.simulator.event_time_plan import with_event_time
from tests.simulator.plan import Input, Plan
from tests.simulator.run import plan_of, run_seed
from tests.simulator.seed_runner import Summary, Verdict, simulate
from tests.simulator.stamped_pipelines import STAMPED, WINDOWED_STAMPED
from tests.simulator.tests.test_seeds import replayed
from tests.simulator.timed_pipelines import ALARMS, SIDES, TIMED_SHAPES, EventTime, TimedEvent
from tests.simulator.window_pipelines import (
    CALENDAR,
    GLOBAL,
    SESSION,
    SLIDING,
    TUMBLING,
    WINDOW_SHAPES,
)

SAMPLE = range(12)
WITH_BACKFILLS = range(250)
SHAPES = (*TIMED_SHAPES, SIDES, ALARMS, *WINDOW_SHAPES, STAMPED, WINDOWED_STAMPED)
PLANS = [plan_of(seed, event_time=True) for seed in range(200)]


def event_time_of(plan: Plan) -> EventTime:
    assert plan.event_time is not None
    return plan.event_time


def timed(plan: Plan) -> list[tuple[Input, TimedEvent]]:
    return [(each, each.event) for each in plan.inputs if isinstance(each.event, TimedEvent)]


def judged(seeds: range, *, backfills: bool = False) -> Summary:
    shown = []
    options = "--event-time" + " --backfills" * backfills

    def told(verdict: Verdict, _: Summary) -> None:
        if verdict.violation is not None:
            shown.append(
                f"python -m tests.simulator {options} --seed {verdict.seed}: {verdict.violation}"
            )

    summary = simulate(seeds, workers=2, told=told, backfills=backfills, event_time=True)
    assert summary.seeds == len(seeds)
    assert not shown, "\n".join(shown)
    return summary


def test_a_sample_of_seeds_is_exact() -> None:
    summary = judged(SAMPLE)
    assert summary.kills
    assert summary.attempts > len(SAMPLE)


def test_a_sample_of_seeds_with_backfills_is_exact() -> None:
    assert judged(range(6), backfills=True).waves > 6


@pytest.mark.seeds
@pytest.mark.timeout(900)
@pytest.mark.parametrize("count", [75, 500])
def test_seeds_are_exact(capsys: pytest.CaptureFixture[str], count: int) -> None:
    summary = judged(range(count))
    with capsys.disabled():
        print(f"\n{summary}")


@pytest.mark.seeds
@pytest.mark.timeout(900)
def test_many_seeds_with_backfills_are_exact(capsys: pytest.CaptureFixture[str]) -> None:
    summary = judged(WITH_BACKFILLS, backfills=True)
    with capsys.disabled():
        print(f"\n{summary}")


def test_timers_fire_in_most_runs() -> None:
    outcomes = [run_seed(seed, event_time=True) for seed in range(8)]
    assert all(outcome.violation is None for outcome in outcomes)
    assert sum(outcome.fired for outcome in outcomes) > 20


def test_plan_of_a_seed_without_event_time_is_unchanged() -> None:
    for seed in range(20):
        assert plan_of(seed) == Plan.drawn(Random(f"{seed}/plan"))
        assert plan_of(seed).event_time is None
        assert plan_of(seed, backfills=True).event_time is None


def test_plans_with_backfills_have_no_processing_timers() -> None:
    plans = [plan_of(seed, backfills=True, event_time=True) for seed in range(60)]
    assert not any(event_time_of(plan).alarms for plan in plans)
    assert any(job_run.wave_offsets for plan in plans for job_run in plan.job_runs)


def test_event_time_keeps_the_job_runs_the_faults_and_the_times_of_the_records() -> None:
    drawn = plan_of(4)
    made = with_event_time(drawn, Random(1))
    assert made.job_runs == drawn.job_runs
    assert replace(made.fault_rates, blackout=0.0) == replace(drawn.fault_rates, blackout=0.0)
    assert [each.at_s for each in made.inputs] == [each.at_s for each in drawn.inputs]
    assert [each.event.key for each in made.inputs] == [each.event.key for each in drawn.inputs]


def test_each_plan_has_a_timed_shape_and_no_plain_sink_blackout_or_swap() -> None:
    for plan in PLANS:
        assert plan.shape in SHAPES
        assert not plan.shape.plain
        assert not plan.fault_rates.blackout
        assert not any(plan.swaps)
        assert len(timed(plan)) == len(plan.inputs)
        places = {(each.topic, each.partition) for each in plan.inputs}
        assert places <= set(event_time_of(plan).partitions)
    assert {plan.shape.pipeline for plan in PLANS} == {each.pipeline for each in SHAPES}


def lateness_ms(plan: Plan) -> list[int]:
    """The distance to the newest record before it in its partition; 0 if it is newer."""
    highest: dict[tuple[str, int], int] = {}
    behind = []
    for each, event in timed(plan):
        if each.committed:
            place = each.topic, each.partition
            behind.append(max(0, highest.get(place, event.at_ms) - event.at_ms))
            highest[place] = max(event.at_ms, highest.get(place, event.at_ms))
    return behind


def test_records_are_out_of_order_within_the_bound_at_its_edge_and_beyond_it() -> None:
    kinds: Counter[str] = Counter()
    for plan in PLANS:
        delay_ms = event_time_of(plan).delay_ms
        for behind_ms in lateness_ms(plan):
            kinds["within"] += 0 < behind_ms < delay_ms
            kinds["the last that is in time"] += behind_ms == delay_ms
            kinds["the first that is late"] += behind_ms == delay_ms + 1
            kinds["beyond"] += behind_ms > delay_ms + 1
    assert min(kinds[kind] for kind in kinds) > 100, kinds
    assert len(kinds) == 4


def test_partitions_have_speeds_and_some_become_silent() -> None:
    silent = ahead = 0
    for plan in PLANS:
        rows = timed(plan)
        late_half = {(each.topic, each.partition) for each, _ in rows[len(rows) // 2 :]}
        silent += late_half < set(event_time_of(plan).partitions) and len(rows) > 40
        newest: dict[tuple[str, int], int] = {}
        for each, event in rows:
            place = each.topic, each.partition
            newest[place] = max(event.at_ms, newest.get(place, event.at_ms))
        ahead += max(newest.values()) > 2 * min(newest.values())
    assert silent > 30
    assert ahead > 50
    assert 40 < sum(event_time_of(plan).idle_after_ms is not None for plan in PLANS) < 160


def test_some_plans_have_processing_timers_and_small_pieces() -> None:
    assert 10 < sum(event_time_of(plan).alarms for plan in PLANS) < 50
    pieces = [
        any(name.endswith("Operator.piece") for name in event_time_of(plan).limits)
        for plan in PLANS
    ]
    assert 110 < sum(pieces) < 190


def test_half_of_the_plans_have_windows_of_each_kind_with_and_without_lateness() -> None:
    windows = [event_time_of(plan).windows for plan in PLANS]
    known = [each for each in windows if each is not None]
    assert 60 < len(known) < 140
    of_ends = [each for each in known if each.kind not in {GLOBAL, CALENDAR}]
    kinds = Counter((each.kind, each.process, bool(each.lateness_ms)) for each in of_ends)
    assert len(kinds) == 12, "each kind of windows as aggregates and as a function"
    assert {each.kind for each in known} == {TUMBLING, SLIDING, SESSION, GLOBAL, CALENDAR}
    assert any(each.early for each in known)
    assert any(each.late > 1 for each in known)
    for plan, each in zip(PLANS, windows, strict=True):
        assert (each is not None) == (plan.shape in (*WINDOW_SHAPES, WINDOWED_STAMPED))


def test_some_windows_fire_by_periods_repeatedly_without_accumulation_and_together() -> None:
    windows = [event_time_of(plan).windows for plan in PLANS]
    known = [each for each in windows if each is not None]
    assert any(each.early_ms and not each.processing for each in known)
    assert any(each.late_ms and each.processing for each in known)
    assert any(each.repeats and each.kind != GLOBAL for each in known)
    assert any(not each.accumulates for each in known)
    assert any(each.together for each in known)
    for each in known:
        assert each.accumulates or each.kind != SESSION
        assert each.kind != GLOBAL or (each.repeats and not each.lateness_ms)
        assert not (each.together and each.twice)


def test_plans_with_backfills_have_no_firings_by_processing_time() -> None:
    for seed in range(60):
        windows = event_time_of(plan_of(seed, backfills=True, event_time=True)).windows
        assert windows is None or not windows.processing


def test_windows_draw_from_a_stream_of_their_own() -> None:
    for seed in range(60):
        before = with_event_time(plan_of(seed), Random(f"{seed}/event time"))
        after = PLANS[seed]
        if event_time_of(after).stamped:  # another stream has changed it
            continue
        if event_time_of(before).windows is None:
            assert after == before
        else:
            assert after.shape == before.shape
            assert [each.at_s for each in after.inputs] == [each.at_s for each in before.inputs]


def test_a_seed_is_replayed_exactly_in_any_process() -> None:
    """Also where sets of texts are in another order."""
    told = [replayed(hash_seed, "4", "9", options="event_time=True") for hash_seed in ("1", "2")]
    assert told[0] == told[1]


def test_the_command_replays_a_seed_with_event_time() -> None:
    command = [sys.executable, "-m", "tests.simulator", "--event-time", "--seed", "2"]
    done = subprocess.run([*command, "--json"], check=True, capture_output=True, text=True)
    body = json.loads(done.stdout)
    assert body["violation"] is None
    assert body["pipeline"] in {each.pipeline.__name__ for each in SHAPES}
    assert any("event time with a delay of" in line for line in body["story"])
