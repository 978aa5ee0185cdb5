"""Bugs in what a JobManager keeps in the checkpoint storage, and who finds them."""

from __future__ import annotations

import pytest

from tests.controlplane.client import test_interrupted_submits as submit_tests
from tests.mutants.finders import once
from tests.mutants.planting import Edit, Mutant, assert_found, mutant_params
from tidegate.controlplane.jobmanager.job_store import JobStore
from tidegate.controlplane.jobmanager.leadership import Leadership

COUNTS_WHEN_WRITTEN = (
    Edit(JobStore._counts, "    if submission.epoch == _OLD:\n", "    if True:\n"),
)
NOTHING_REFUSED = (Edit(JobStore._counts, "if not (refuses and ours):", "if True:"),)
NOT_CONFIRMED = (
    Edit(
        Leadership._confirm,
        "return self._leads() and (accept is None or accept())",
        "return accept is None or accept()",
    ),
)


old_leader = once(submit_tests.test_submit_of_a_hung_leader_counts_only_if_the_next_leader_found_it)

MUTANTS = [
    Mutant(
        "a submission counts before its leader has accepted it",
        COUNTS_WHEN_WRITTEN,
        once(submit_tests.test_submit_that_is_not_accepted_leaves_the_job_with_the_other_cluster),
        1,
        1,
    ),
    Mutant("a submission of a fenced leader counts", NOTHING_REFUSED, old_leader, 1, 1),
    Mutant("a leader accepts a submission unconfirmed", NOT_CONFIRMED, old_leader, 1, 1),
]


@pytest.mark.parametrize("mutant", mutant_params(MUTANTS))
def test_the_mutant_is_found(mutant: Mutant) -> None:
    assert_found(mutant)
