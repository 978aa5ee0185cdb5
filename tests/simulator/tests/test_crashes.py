"""User code that crashes for a while: one attempt after the other ends before it has published."""

from __future__ import annotations

import random

import pytest

from tests.simulator.plan import Plan
from tests.simulator.run import run_seed
from tests.simulator.trace import TraceEvent

SEEDS = range(400)


def plan(seed: int) -> Plan:
    return Plan.drawn(random.Random(f"{seed}/plan"))


def test_user_code_crashes_in_some_runs_and_in_some_of_these_from_the_beginning_on() -> None:
    plans = [plan(seed) for seed in SEEDS]
    crashing = [(each.crashing, each.fault_rates.fault_period_s) for each in plans if each.crashing]
    assert 0.07 < len(crashing) / len(plans) < 0.2
    assert 0.3 < sum(begin == 0.0 for (begin, _), _ in crashing) / len(crashing) < 0.7
    assert all(begin <= end <= fault_period_s for (begin, end), fault_period_s in crashing)


@pytest.mark.seeds
def test_job_survives_several_attempts_that_crash_before_the_first_checkpoint() -> None:
    loops = 0
    for seed in [seed for seed in SEEDS if (plan(seed).crashing or (1.0,))[0] == 0.0][:12]:
        claims: list[int] = []
        published: list[int] = []

        def listen(
            told: TraceEvent, claims: list[int] = claims, published: list[int] = published
        ) -> None:
            line = str(told)
            if "claim of attempt" in line and not published:
                claims.append(1)
            if ": checkpoint " in line:
                published.append(1)

        outcome = run_seed(seed, listen=listen)
        assert outcome.violation is None, (
            f"python -m tests.simulator --seed {seed}: {outcome.violation}"
        )
        loops += len(claims) > 2
    assert loops > 2
