"""Bugs in waves: in markers, the run check, ids and folders of runs, and the driver of a backfill.

Random executions of tasks find those of markers and runs, without what a task computes; the
simulator runs true tasks under a true driver.
"""

from __future__ import annotations

from random import Random

import pytest

from tests.dataplane.state import test_snapshots as snapshot_tests
from tests.dataplane.waves import test_receiving as receiving_tests
from tests.dataplane.waves.test_run_check import assert_whole, executed, passes
from tests.mutants.finders import backfills, backfills_in, once
from tests.mutants.planting import Edit, Mutant, assert_found, mutant_params
from tests.mutants.test_trust import in_a_folder
from tests.simulator.pipelines import Branched, FlatMapped, Scattered, Shuffled, Stateless, United
from tests.simulator.plan import Plan
from tidegate.backfill.driver import Backfill, with_ends
from tidegate.checkpoint.run_check import check_runs
from tidegate.dataplane.state.snapshots import SnapshotUploader
from tidegate.dataplane.waves.level_task import LevelTask
from tidegate.dataplane.waves.receiving import RowReceiver
from tidegate.dataplane.waves.sending import RowSender

DISORDER = 0.3
SEEDS = 2000
RUNS = 40
"""Runs of the simulator."""


def spread(plan: Plan) -> bool:
    """Whether a backfill has several tasks in each level, and not one level only."""
    parallel = any(job_run.wave_offsets and job_run.parallelism > 1 for job_run in plan.job_runs)
    return parallel and plan.shape.pipeline not in {Stateless, FlatMapped, Branched}


def loses(plan: Plan) -> bool:
    """Whether outputs are often lost before a task reads them."""
    return spread(plan) and plan.waves is not None and plan.waves.loses > 0.3


def loses_between(plan: Plan) -> bool:
    """The same, of jobs with three levels."""
    return loses(plan) and plan.shape.pipeline in {Scattered, Shuffled}


def tears(plan: Plan) -> bool:
    """Whether tasks are often given other rows than those of one run of each sender."""
    return spread(plan) and plan.waves is not None and plan.waves.tears > 0.25


def unites(plan: Plan) -> bool:
    """Whether a task reads two sources. One of them may end, and take a step, before the other."""
    return plan.shape.pipeline is United


LOSING = backfills_in("whose outputs are often lost", loses)
LOSING_BETWEEN = backfills_in("of three levels whose outputs are often lost", loses_between)
TORN = backfills_in("whose tasks are often given other rows", tears)
UNITED = backfills_in("of two sources", unites)

NO_COUNT = Edit(RowReceiver._end, "    if received.frames != row.seq:", "    if row.seq < 0:")
NO_COMPARISON = Edit(
    check_runs, "            if by_task[sender].run != run:", "            if False:"
)
FIRST_LEVEL_ONLY = Edit(
    check_runs,
    "            if by_task[sender].run != run:",
    "            if sender.level == 0 and by_task[sender].run != run:",
)
NO_MARKERS = (
    Edit(RowSender.send, "        self._add(channel, LAST, self._frames[channel], frame)\n", ""),
    Edit(
        RowReceiver.finish,
        "    if missing:\n",
        "    for key in missing:\n"
        "        self._progress[key].channel.put(Barrier(self._checkpoint, final=True))\n"
        "    if not missing and missing:\n",
    ),
    Edit(
        check_runs,
        "if consumed.keys() != reads[task] or len(consumed) != len(report.consumed):",
        "if not consumed.keys() <= reads[task]:",
    ),
)
"""A task knows of a run only what its frames say; it takes the end of its rows for their end."""
NOT_ALL_REPORTS = (
    Edit(
        Backfill._run_wave,
        "    reports = self._executor.run(tasks)\n",
        "    reports = sorted(self._executor.run(tasks), key=lambda report: report.task)[:-1]\n",
    ),
    Edit(Backfill._run_wave, "    check_runs(plan.plan, reports)\n", ""),
    Edit(
        Backfill._complete,
        "len(found) == len(plan.subtasks) and plan.subtasks == set(found)",
        "True",
    ),
    Edit(
        with_ends,
        "held == len(splits) and reached.keys() == ends.keys() == cuts.keys()",
        "held <= len(splits)",
    ),
)

OFFSETS_OF_SPARK = (
    Edit(
        Backfill._cut,
        "    limited = tuple(splits)\n",
        "    log = self.__dict__.setdefault('offset_log', {})\n"
        "    splits = [\n"
        "        msgspec.structs.replace(split, offset=log.get(_split_key(split), split.offset))\n"
        "        for split in splits\n"
        "    ]\n"
        "    limited = tuple(splits)\n",
    ),
    Edit(
        Backfill._cut,
        "    return cut_wave(limited, self._wave_offsets)\n",
        "    cut = cut_wave(limited, self._wave_offsets)\n"
        "    log.update({_split_key(split): split.end_offset for split in cut})\n"
        "    return cut\n",
    ),
)
"""A wave begins where the wave before was to end, as the offset log of a query has it, which Spark
writes before a batch runs."""


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
        (NO_COUNT,),
        execution,
        SEEDS,
        5,
        "no frame count",
    ),
    Mutant(
        "a receiver takes rows of two runs",
        (Edit(RowReceiver._check_run, "    if known != row.run:", "    if not known:"),),
        once(receiving_tests.test_rows_of_two_runs_are_refused),
        1,
        1,
        "rows of two runs",
    ),
    Mutant(
        "the driver compares the runs of level 0 only",
        (FIRST_LEVEL_ONLY,),
        execution,
        SEEDS,
        5,
    ),
    Mutant(
        "the driver does not compare runs",
        (NO_COMPARISON,),
        execution,
        SEEDS,
        5,
        "runs not compared",
    ),
    Mutant("there are no markers", NO_MARKERS, TORN, RUNS, 1, "no marker"),
    Mutant(
        "a marker's count of frames is not compared",
        (NO_COUNT,),
        TORN,
        RUNS,
        1,
        "no frame count",
    ),
    Mutant(
        "the driver compares the runs of level 0 only", (FIRST_LEVEL_ONLY,), LOSING_BETWEEN, RUNS, 1
    ),
    Mutant(
        "the driver does not compare runs",
        (NO_COMPARISON,),
        LOSING,
        RUNS,
        1,
        "runs not compared",
    ),
    Mutant(
        "the runs of a task share a transactional id",
        (
            Edit(
                LevelTask._run,
                "first_transactional_id_index=self._number,",
                "first_transactional_id_index=0,",
            ),
        ),
        backfills,
        RUNS,
        1,
        "one id for all runs of a task",
    ),
    Mutant(
        "the runs of a task share a folder",
        (Edit(SnapshotUploader.__init__, 'f"{folder}/{run}" if run else folder', "folder"),),
        in_a_folder(snapshot_tests.test_two_runs_of_a_subtask_store_no_file_under_the_same_path),
        1,
        1,
        "one folder for all runs of a task",
    ),
    Mutant(
        "a wave is published before all reports are there",
        NOT_ALL_REPORTS,
        backfills,
        RUNS,
        1,
        "publication before all reports",
    ),
    Mutant(
        "a wave begins where Spark's offset log says",
        OFFSETS_OF_SPARK,
        backfills,
        RUNS,
        1,
    ),
    Mutant(
        "a split is left out of a publication",
        (
            Edit(
                with_ends,
                "                for split in part.splits\n            ),",
                "                for split in part.splits[1:]\n            ),",
            ),
        ),
        backfills,
        RUNS,
        1,
        "a split left out of a publication",
    ),
    Mutant(
        "a manifest has the ends of its wave",
        (Edit(with_ends, "end_offset=ends[_split_key(split)]", "end_offset=split.end_offset"),),
        backfills,
        RUNS,
        1,
    ),
    Mutant(
        "the input of a wave ends",
        (Edit(LevelTask._run, "ends_input=False,", "ends_input=True,"),),
        UNITED,
        20,
        1,
    ),
)


@pytest.mark.parametrize("mutant", mutant_params(MUTANTS))
def test_the_mutant_is_found(mutant: Mutant) -> None:
    assert_found(mutant)
