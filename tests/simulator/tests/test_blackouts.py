"""Outages of all brokers for about as long as a transaction may stay open: what was published and
not ended is then aborted, and a job takes its checkpoint back, or fails loudly and stays failed.
"""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest

from tests.mutants.planting import Edit, Mutant, planted
from tests.simulator.plan import Plan
from tests.simulator.run import Outcome, run_seed
from tests.simulator.trace import TraceEvent
from tidegate.commit.settle import state_loss

pytestmark = pytest.mark.seeds

RUNS = 16
RUNS_MAX = 160
"""Limit of the runs that are tried. About one in twelve loses output, and each change of the code
changes which ones do.
"""
SILENT = Edit(
    state_loss,
    "    entry = Lost(\n        **header,\n        attempt=journal.attempt,\n"
    "        publication=last.number,\n        transactions=missing,\n"
    "        statement=statement,\n    )\n"
    "    yield from append_entry(journal, entry, storage_retry)\n"
    "    raise DataLossError(statement)",
    "    entry = Settled(\n        **header,\n        attempt=journal.attempt,\n"
    "        publication=last.number,\n    )\n"
    "    yield from append_entry(journal, entry, storage_retry)\n"
    "    raise TransactionError(statement)",
)


def seeds() -> Iterator[int]:
    """Those that have a blackout."""
    for seed in range(10_000):
        if Plan.drawn(random.Random(f"{seed}/plan")).fault_rates.blackout:
            yield seed


def first(runs: int) -> list[int]:
    return [seed for seed, _ in zip(seeds(), range(runs), strict=False)]


@pytest.fixture(scope="module")
def outcomes() -> list[Outcome]:
    """Some runs, and more of them until output was lost and publications were rolled back."""
    found: list[Outcome] = []
    for seed in first(RUNS_MAX):
        found.append(run_seed(seed))
        told = any(each.losses for each in found) and any(each.rollbacks for each in found)
        if told and len(found) >= RUNS:
            break
    return found


def test_few_runs_have_a_blackout() -> None:
    assert 150 < first(RUNS)[-1] < 800


def test_jobs_roll_back_or_record_a_loss_in_a_blackout_and_are_exact_otherwise(
    outcomes: list[Outcome],
) -> None:
    assert {each.seed: each.violation for each in outcomes if each.violation} == {}
    assert any(each.rollbacks for each in outcomes)
    assert any(each.losses for each in outcomes)
    assert any(not each.losses and not each.rollbacks for each in outcomes)


def test_a_job_stays_failed_until_its_loss_is_accepted(outcomes: list[Outcome]) -> None:
    losing = next(each.seed for each in outcomes if each.losses)
    told: list[str] = []

    def listen(event: TraceEvent) -> None:
        text = str(event).split(maxsplit=2)[-1]
        if "lost, of entry" in text or "accepted" in text or text.startswith("life "):
            told.append(text)

    run_seed(losing, listen=listen)
    lost = next(index for index, text in enumerate(told) if "lost, of entry" in text)
    after = [text.rsplit(": ", 1)[-1] for text in told[lost + 1 :]]
    assert after[: after.index("accepted")] == ["FAILED", "FAILED"]


def test_simulation_finds_a_loss_that_is_recorded_as_settled() -> None:
    """The entry is written as if it were settled: the records are gone, and no error says so."""
    with planted(Mutant("a loss is not stated", (SILENT,), run_seed, RUNS_MAX, 1)):
        violations = (run_seed(seed).violation or "" for seed in first(RUNS_MAX))
        assert any("settled, and" in each and "is timed out" in each for each in violations)
