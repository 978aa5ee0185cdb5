"""Where a submission begins: the first look counts, whoever looks again."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.checkpoint.quiet import Quiet
from tests.checkpoint.world import JOB, PATIENCE
from tidegate.checkpoint import effects
from tidegate.checkpoint.effects import Effect
from tidegate.checkpoint.plan_facts import PlanFacts
from tidegate.checkpoint.procedures.beginnings import beginnings_path, fix_beginnings
from tidegate.checkpoint.restore import PartitionFacts, restore
from tidegate.errors import CorruptCheckpointError, RefusedError, StorageError
from tidegate.ids import Uid
from tidegate.ports.blobs import Created

ONE_SLOT = PlanFacts(parallelism=1, max_parallelism=128)


@pytest.fixture
def quiet() -> Quiet:
    return Quiet()


def facts(start: int, *, earliest: int = 0, end: int | None = None, at: int = 0) -> PartitionFacts:
    return PartitionFacts(
        source=Uid("in"), topic="t", partition=at, start=start, earliest=earliest, end=end
    )


def fixed(quiet: Quiet, *found: PartitionFacts, submission: str = "s1") -> list[PartitionFacts]:
    return list(quiet.run(fix_beginnings(JOB, submission, found, patience=PATIENCE)))


def test_latest_and_the_ends_of_a_bounded_run_are_those_of_the_first_attempt(quiet: Quiet) -> None:
    assert fixed(quiet, facts(100, end=150))[0].start == 100
    (again,) = fixed(quiet, facts(170, end=180))
    assert (again.start, again.end) == (100, 150), "or 100 to 169 would never be read"
    ((split,),) = restore(None, ONE_SLOT, [again]).splits
    assert (split.offset, split.end_offset) == (100, 150)


def test_another_submission_looks_anew(quiet: Quiet) -> None:
    fixed(quiet, facts(100))
    assert fixed(quiet, facts(170), submission="s2")[0].start == 170


def test_a_partition_that_was_added_since_is_as_it_is_found(quiet: Quiet) -> None:
    fixed(quiet, facts(100))
    added = facts(7, at=1)
    assert fixed(quiet, facts(170), added)[1] == added


def test_earliest_goes_with_the_log_and_any_other_start_that_is_gone_is_refused(
    quiet: Quiet,
) -> None:
    fixed(quiet, facts(0), facts(100, at=1))
    oldest, newest = fixed(quiet, facts(20, earliest=20), facts(300, earliest=200, at=1))
    assert oldest.start == 20
    with pytest.raises(RefusedError, match="offset 100 of partition 1"):
        restore(None, ONE_SLOT, [oldest, newest])


def test_a_given_start_behind_the_end_of_the_log_is_refused_all_the_same(quiet: Quiet) -> None:
    beyond = replace(facts(900), latest=500)
    for _ in range(2):
        with pytest.raises(RefusedError, match="ends at 500"):
            restore(None, ONE_SLOT, fixed(quiet, beyond))


def test_of_two_that_look_at_once_both_go_by_the_first(quiet: Quiet) -> None:
    def other_was_first(effect: Effect) -> Any:
        if isinstance(effect, effects.CreateEntry):
            fixed(quiet, facts(100))
        return NotImplemented

    procedure = fix_beginnings(JOB, "s1", [facts(170)], patience=PATIENCE)
    assert quiet.run(procedure, other_was_first)[0].start == 100


def test_a_create_without_an_answer_is_sent_again_and_given_up_in_time(quiet: Quiet) -> None:
    answers = [Created.UNKNOWN]

    def once(effect: Effect) -> Any:
        unknown = isinstance(effect, effects.CreateEntry) and answers
        return answers.pop() if unknown else NotImplemented

    procedure = fix_beginnings(JOB, "s1", [facts(100)], patience=PATIENCE)
    assert quiet.run(procedure, once)[0].start == 100

    def never(effect: Effect) -> Any:
        return Created.UNKNOWN if isinstance(effect, effects.CreateEntry) else NotImplemented

    with pytest.raises(StorageError, match="did not say"):
        quiet.run(fix_beginnings(JOB, "s2", [facts(1)], patience=PATIENCE), never)


def test_a_torn_file_is_named_with_the_remedy(quiet: Quiet) -> None:
    fixed(quiet, facts(100))
    path = beginnings_path(JOB, "s1")
    quiet.world.store.objects[path] = quiet.world.store.objects[path][:-20]
    with pytest.raises(CorruptCheckpointError, match=r"beginnings/s1\.json .*Remove it"):
        fixed(quiet, facts(170))
