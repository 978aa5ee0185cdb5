"""Bugs in the markers and the run check of waves: random executions of tasks find each."""

from __future__ import annotations

from random import Random

import pytest

from tests.mutants.finders import once
from tests.mutants.planting import Edit, Mutant, must_be_found, to_be_found
from tests.waves import test_receiving as receiving_tests
from tests.waves.test_run_check import assert_whole, executed, passes
from tidegate.checkpoint.run_check import check_runs
from tidegate.dataplane.waves.receiving import RowReceiver

DISORDER = 0.3
SEEDS = 2000


def execution(seed: int) -> None:
    """an execution whose tasks run again"""
    collected = executed(Random(seed), DISORDER)
    if passes(collected):
        assert_whole(collected)


MUTANTS = (
    Mutant(
        "a receiver does not wait for markers",
        (Edit(RowReceiver.finish, "    if missing:\n", "    if not missing and missing:\n"),),
        execution,
        SEEDS,
        5,
    ),
    Mutant(
        "a marker's count of frames is not compared",
        (Edit(RowReceiver._end, "    if received.frames != row.seq:", "    if row.seq < 0:"),),
        execution,
        SEEDS,
        5,
    ),
    Mutant(
        "a receiver takes rows of two runs",
        (Edit(RowReceiver._note_run, "    if known != row.run:", "    if not known:"),),
        once(receiving_tests.test_rows_of_two_runs_are_refused),
        1,
        1,
    ),
    Mutant(
        "the driver compares the runs of level 0 only",
        (
            Edit(
                check_runs,
                "            if by_task[sender].run != run:",
                "            if sender.level == 0 and by_task[sender].run != run:",
            ),
        ),
        execution,
        SEEDS,
        5,
    ),
    Mutant(
        "the driver does not compare runs",
        (Edit(check_runs, "            if by_task[sender].run != run:", "            if False:"),),
        execution,
        SEEDS,
        5,
    ),
)


@pytest.mark.parametrize("mutant", to_be_found(MUTANTS))
def test_the_mutant_is_found(mutant: Mutant) -> None:
    must_be_found(mutant)
