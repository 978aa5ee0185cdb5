"""Bounded sources that end at different times, and slots that are killed in between.

The first source has ended, and a checkpoint records its end. From then on the tests kill slots:
either at random times, or when the second source has also ended but the final checkpoint is not
complete. The next attempt starts with one source at its end. It must wait for the other source,
even if that source had ended in the attempt before. `make test` has up to four random kills, and
`-m soak` has fifty times as many.
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil
import pytest

from integration.faults.kill_points.kill_points import Trap
from integration.faults.kill_points.killed_runs import Job, Run
from tidegate.checkpoint.manifest import Manifest
from tidegate.drivers.kafka.embedded import EmbeddedKafka

pytestmark = [pytest.mark.slow, pytest.mark.kafka]

FEW, MANY = 200, 2_000
PACE = 200
"""Records per second of each source in each subtask."""
KILLS = 4
"""The number of kills in one run."""


@pytest.mark.parametrize(
    "runs",
    [
        pytest.param(1, marks=pytest.mark.timeout(300)),
        pytest.param(50, marks=[pytest.mark.soak, pytest.mark.timeout(3600)]),
    ],
)
def test_output_is_exact_when_slots_are_killed_after_one_of_two_sources_has_ended(
    kafka: EmbeddedKafka, tmp_path: Path, runs: int
) -> None:
    rng = random.Random(runs)
    job = Job.make(kafka.bootstrap, tmp_path, "TwoSources")
    struck = 0
    for number in range(runs):
        with past_the_end_of_one(job, number) as run:
            for _ in range(KILLS):
                time.sleep(rng.uniform(0.0, 1.5))
                struck += kill_a_slot(run, rng)
            assert run.wait() == 0, run.story()
        job.assert_exact()
    assert struck > runs  # otherwise too few kills hit the job


@pytest.mark.timeout(300)
def test_output_is_exact_when_a_slot_is_killed_before_the_final_checkpoint_is_published(
    kafka: EmbeddedKafka, tmp_path: Path
) -> None:
    job = Job.make(kafka.bootstrap, tmp_path, "TwoSources")
    with past_the_end_of_one(job, 0) as run:
        # The next attempt starts from a checkpoint that was taken before the second source ended.
        held = run.plan.add(Trap("jobmaster.complete", holds=True))
        run.until_snapped(held)
        run.until(lambda: run.state() == "STOPPING", "at the end of both")
        assert kill_a_slot(run, random.Random(0))
        run.plan.release(held)
        assert run.wait() == 0, run.story()
    job.assert_exact()
    assert run.reports()[-1]["restarts"] > 0


@contextmanager
def past_the_end_of_one(job: Job, number: int) -> Iterator[Run]:
    """Start the n-th bounded run of a job, with new records in both sources.

    Yields the run when a checkpoint is at the end of the first source. The second has not ended.
    """
    known = job.manifest()
    job.write(FEW, seed=2 * number, to="orders")
    job.write(MANY, seed=2 * number + 1, to="later")
    options = ("--restore", "latest") if number else ()
    with job.started("--bounded", *options, pace=PACE) as run:
        run.until(lambda: one_has_ended(job, known), "at the end of one source")
        assert run.state() == "RUNNING", run.story()
        yield run


def one_has_ended(job: Job, before: Manifest | None) -> bool:
    """Return whether a checkpoint of this run, not of the run before, is at the end of `orders`."""
    manifest = job.manifest()
    if manifest is None or (before and before.submission_id == manifest.submission_id):
        return False
    ended = [split for split in manifest.splits if split.source == "orders"]
    return all(split.offset == split.end_offset for split in ended)


def kill_a_slot(run: Run, rng: random.Random) -> bool:
    """Kill a slot as soon as one exists. Return False if the job ends before."""
    while run.process.poll() is None:
        slots = run.processes()["slot"]
        with suppress(psutil.NoSuchProcess):
            if slots:
                rng.choice(slots).kill()
                return True
        time.sleep(0.02)
    return False
