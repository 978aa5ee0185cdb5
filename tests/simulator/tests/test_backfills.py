"""Simulated runs with backfills: they are exact, and what they are there for happens in them."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from random import Random

import pytest

from tests.simulator.backfill_plan import with_backfills
from tests.simulator.pipelines import SCATTERED
from tests.simulator.plan import TOLERATED_OUTAGE_MS, Plan
from tests.simulator.run import plan_of, run_seed
from tests.simulator.seed_runner import Summary, Verdict, simulate
from tests.simulator.trace import TraceEvent
from tidegate.errors import FencedError

SAMPLE = range(12)
PLANS = [plan_of(seed, backfills=True) for seed in range(200)]


def judged(seeds: range, workers: int = 2) -> Summary:
    shown = []

    def told(verdict: Verdict, _: Summary) -> None:
        if verdict.violation is not None:
            shown.append(
                f"python -m tests.simulator --backfills --seed {verdict.seed}: {verdict.violation}"
            )

    summary = simulate(seeds, workers=workers, told=told, backfills=True)
    assert summary.seeds == len(seeds)
    assert not shown, "\n".join(shown)
    return summary


def test_a_sample_of_seeds_is_exact() -> None:
    summary = judged(SAMPLE)
    assert summary.waves > 2 * len(SAMPLE)
    assert summary.kills


def test_task_that_opens_a_transaction_during_the_close_is_no_violation() -> None:
    """A task of a dead driver begins after the last listing and before the journal's last entry."""
    judged(range(261, 262), workers=1)


@pytest.mark.seeds
@pytest.mark.timeout(900)
@pytest.mark.parametrize("count", [75, 1_000])
def test_seeds_are_exact(capsys: pytest.CaptureFixture[str], count: int) -> None:
    summary = judged(range(count))
    with capsys.disabled():
        print(f"\n{summary}")


HAPPENS = {
    "a worker dies": "ends with status -9",
    "a copy runs beside a task": "a copy of level",
    "an output is lost": "is lost",
    "the runs do not fit together": "not of one execution",
    "a marker is missing": "without a marker",
    "the rows of two runs are mixed": "wrote rows in two runs",
    "frames are missing": "its marker counts",
    "a newer driver has claimed": "was claimed by another process",
    "a driver is killed": "is killed",
}


@pytest.mark.seeds
@pytest.mark.timeout(600)
def test_every_listed_backfill_fault_happens_in_some_seed() -> None:
    happened: Counter[str] = Counter()

    def listen(told: TraceEvent) -> None:
        words = str(told)
        for what, said in HAPPENS.items():
            if what == "a driver is killed" and "driver" not in told.where:
                continue
            happened[what] += said in words

    for seed in range(300):
        assert run_seed(seed, listen=listen, backfills=True).violation is None
        if len(+happened) == len(HAPPENS):
            return
    pytest.fail(f"never: {HAPPENS.keys() - (+happened).keys()}")


def test_plan_of_a_seed_without_backfills_is_unchanged() -> None:
    for seed in range(20):
        assert plan_of(seed) == Plan.drawn(Random(f"{seed}/plan"))
        assert all(job_run.wave_offsets is None for job_run in plan_of(seed).job_runs)


def test_each_backfill_plan_has_a_wave_and_no_plain_sink_blackout_or_retention() -> None:
    for plan in PLANS:
        assert any(job_run.wave_offsets for job_run in plan.job_runs)
        assert not plan.shape.plain
        assert not plan.fault_rates.blackout
        assert not plan.retention
        assert plan.settings["checkpoint"]["tolerated_outage"] == TOLERATED_OUTAGE_MS
        assert len(plan.swaps) == len(plan.job_runs)


def test_backfill_as_last_job_run_is_bounded_and_reads_all_inputs() -> None:
    for plan in PLANS:
        last = plan.job_runs[-1]
        if last.wave_offsets is not None:
            assert last.ends == "bounded"
            assert all(each.at_s == 0.0 for each in plan.inputs)
    assert sum(plan.job_runs[-1].wave_offsets is not None for plan in PLANS) > 10


def test_plans_switch_between_backfill_and_stream_at_another_parallelism() -> None:
    ways = Counter(
        (before.wave_offsets is None, after.wave_offsets is None)
        for plan in PLANS
        for before, after in zip(plan.job_runs, plan.job_runs[1:], strict=False)
        if before.parallelism != after.parallelism
    )
    assert ways[False, True] > 10
    assert ways[True, False] > 5
    assert ways[False, False] > 5


def test_some_backfill_plans_use_the_scattered_pipeline() -> None:
    assert 20 < sum(plan.shape is SCATTERED for plan in PLANS) < 150


def test_inputs_stay_in_time_order_when_backfills_are_added() -> None:
    drawn = plan_of(4)
    made = with_backfills(replace(drawn, fault_rates=drawn.fault_rates), Random(1))
    times = [each.at_s for each in made.inputs]
    assert times == sorted(times)
    assert [each.event for each in made.inputs] == [each.event for each in drawn.inputs]


REPLAY = """
import sys
from tests.simulator.run import run_seed
for seed in sys.argv[1:]:
    outcome = run_seed(int(seed), digest=True, backfills=True)
    print(outcome.waves, outcome.story.events, outcome.story.digest())
"""


def replayed(hash_seed: str, *seeds: str) -> str:
    return subprocess.run(
        [sys.executable, "-c", REPLAY, *seeds],
        check=True,
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONHASHSEED": hash_seed},
    ).stdout


def test_a_seed_is_replayed_exactly_in_any_process() -> None:
    """Also where sets of texts are in another order."""
    told = [replayed(hash_seed, "0", "5") for hash_seed in ("1", "2")]
    assert told[0] == told[1]
    assert all(int(line.split()[0]) > 0 for line in told[0].splitlines())


def test_the_command_replays_a_seed_with_backfills() -> None:
    command = [sys.executable, "-m", "tests.simulator", "--backfills", "--seed", "0"]
    text = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    assert text.splitlines()[-1] == "exact"
    assert "in waves of" in text or "wave of attempt" in text


def test_fenced_driver_is_a_violation_if_the_plan_has_no_second_driver(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(*_: object) -> None:
        raise FencedError("a newer claim stands in the journal")

    monkeypatch.setattr("tidegate.backfill.driver.check_runs", refuse)
    alone = next(
        seed
        for seed, plan in enumerate(PLANS)
        if plan.waves is not None and not plan.waves.second_driver
    )
    violation = run_seed(alone, backfills=True).violation or ""
    assert "a driver fails: DeposedError" in violation
