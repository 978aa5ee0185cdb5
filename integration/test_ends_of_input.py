"""Bounded sources that end at different times, and slots that are killed in between.

The first source has ended, and a checkpoint says so; from then on slots are killed, at random
moments, or when the second one has ended, too, and the final checkpoint is still to come. The next
attempt finds one source at its end from its beginning, must wait for the other, and must not take
what had ended before for ended. Up to four random kills are in `make test`, and fifty times as many
in `-m soak`.
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil
import pytest

from integration.killing.runs import Job, Run
from integration.killing.traps import Trap
from tidegate.checkpoint.manifest import Manifest
from tidegate.drivers.kafka.embedded import EmbeddedKafka

pytestmark = pytest.mark.kafka

FEW, MANY = 200, 2_000
PACE = 200
"""Records per second of each source in each subtask."""
KILLS = 4
"""Of a run."""


@pytest.mark.parametrize(
    "runs",
    [
        pytest.param(1, marks=pytest.mark.timeout(300)),
        pytest.param(50, marks=[pytest.mark.soak, pytest.mark.timeout(3600)]),
    ],
)
def test_killed_while_one_source_has_ended_and_the_other_has_not_it_is_exact(
    kafka: EmbeddedKafka, tmp_path: Path, runs: int
) -> None:
    chance = random.Random(runs)
    job = Job.make(kafka.bootstrap, tmp_path, "TwoSources")
    struck = 0
    for number in range(runs):
        with past_the_end_of_one(job, number) as run:
            for _ in range(KILLS):
                time.sleep(chance.uniform(0.0, 1.5))
                struck += kill_a_slot(run, chance)
            assert run.wait() == 0, run.story()
        job.assert_exact()
    assert struck > runs  # else hardly anything was in the way of anybody


@pytest.mark.timeout(300)
def test_killed_when_both_have_ended_and_nothing_final_is_published_it_is_exact(
    kafka: EmbeddedKafka, tmp_path: Path
) -> None:
    job = Job.make(kafka.bootstrap, tmp_path, "TwoSources")
    with past_the_end_of_one(job, 0) as run:
        # A checkpoint from before the end of the second is what the next attempt begins with.
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
    """The n-th bounded run of a job, with new records in both sources; a checkpoint has all of the
    first source's behind it, and the second has not ended.
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
    """Whether a checkpoint of this run, not of the one before, has all of `orders` behind it."""
    manifest = job.manifest()
    if manifest is None or (before and before.submission == manifest.submission):
        return False
    ended = [split for split in manifest.splits if split.source == "orders"]
    return all(split.offset == split.end_offset for split in ended)


def kill_a_slot(run: Run, chance: random.Random) -> bool:
    """Kill one, as soon as there is one; False if the job ends before there is."""
    while run.process.poll() is None:
        slots = run.processes()["slot"]
        with suppress(psutil.NoSuchProcess):
            if slots:
                chance.choice(slots).kill()
                return True
        time.sleep(0.02)
    return False
