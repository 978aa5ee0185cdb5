"""Jobs that are begun from an older checkpoint by hand: how the watch judges them, and that
simulated runs do it and find what goes wrong then. The oracle's part is in `test_oracle.py`.
"""

from __future__ import annotations

import random

import pytest

from tests.mutants.planting import Edit, Mutant, planted
from tests.simulator.plan import RETAINED_MAX, Plan
from tests.simulator.run import run_seed
from tests.simulator.tests.history import History
from tidegate.commit.journal.claimed import restore_point

SEEDS = range(400)
RUNS = 30
"""Runs that begin by hand. About one in eight of them finds the bug that is planted here."""
GOES_ON = Edit(restore_point, 'if restore == "latest" or', "if restore or")


@pytest.fixture
def history() -> History:
    """Two checkpoints, of one event and of two."""
    made = History()
    made.claim()
    for counter in (1, 2):
        txn = made.prepare(slot=counter)
        number = made.publish(txn, counter=counter, offsets=(counter,))
        made.end(txn)
        made.settle(number)
    return made


def test_offsets_may_go_back_to_the_restored_checkpoint_and_no_further(history: History) -> None:
    history.claim("1-1", "t")
    history.publish(counter=3, offsets=(1,))
    assert history.found == ""
    history.publish(counter=4, offsets=(0,))
    assert history.found == "checkpoint 6-4 goes back in in-a-0: from offset 1 to 0"


def test_job_restored_from_an_older_checkpoint_must_write_later_output_again(
    history: History,
) -> None:
    assert history.oracle.missing == 0
    history.claim("1-1", "t")
    assert history.oracle.missing == 1
    history.publish(counter=3, offsets=(2,))
    assert history.found == "a checkpoint is behind in-a-0:1 (key a), and lacks it in out-a"


def test_restart_before_a_checkpoint_begins_at_the_restored_checkpoint_again(
    history: History,
) -> None:
    history.claim("1-1", "t")
    history.claim("1-1", "t")
    assert history.oracle.missing == 1
    history.claim("latest", "u")
    assert history.oracle.missing == 0
    history.publish(counter=3, offsets=(1,))
    assert history.found == "checkpoint 8-3 goes back in in-a-0: from offset 2 to 1"


def plan(seed: int) -> Plan:
    return Plan.drawn(random.Random(f"{seed}/plan"))


def begun_by_hand() -> list[int]:
    return [seed for seed in SEEDS if any(job_run.restore_back for job_run in plan(seed).job_runs)]


def test_some_plans_restore_an_older_checkpoint_and_none_of_them_has_a_blackout() -> None:
    plans = [plan(seed) for seed in SEEDS]
    seeds = begun_by_hand()
    assert 0.05 < len(seeds) / len(SEEDS) < 0.25
    for each in plans:
        backs = [
            job_run.restore_back for job_run in each.job_runs if job_run.restore_back is not None
        ]
        assert not (backs and each.fault_rates.blackout)
        assert each.job_runs[0].restore_back is None
        assert all(back < RETAINED_MAX for back in backs)


@pytest.mark.seeds
def test_simulation_finds_a_job_that_ignores_the_checkpoint_to_restore() -> None:
    seeds = begun_by_hand()[:RUNS]
    with planted(Mutant("restore is not heard", (GOES_ON,), run_seed, RUNS, 1)):
        violations = [run_seed(seed).violation or "" for seed in seeds]
    assert any("was skipped" in each or "lacks it" in each for each in violations)
