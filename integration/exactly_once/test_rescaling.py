"""Another parallelism after a crash: no open transaction of an older run stays and hides output.

One job runs several times. It runs twice with each parallelism, and each run ends with a kill of
all processes. The first kill comes before the first checkpoint is published: no publication will
ever list the open transactions. The second kill comes just after the publication: the next run must
end the open transactions. `make test` uses three parallelisms. `-m soak` uses all pairs that have
ever caused problems, on both versions of Kafka.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from integration.demo import checker
from integration.faults.kill_points.kill_points import Trap
from integration.faults.kill_points.killed_runs import Job, Run
from tidegate.commit.transactional_ids import parse_transactional_id
from tidegate.drivers.kafka.embedded import EmbeddedKafka

pytestmark = [pytest.mark.slow, pytest.mark.kafka, pytest.mark.timeout(900)]

RECORDS = 600
PACE = 200
WHOLE = (1, 2, 3, 5, 6, 5, 2, 5, 3, 2, 1)
"""The pairs 1-2, 2-3, 3-5, 5-6, 6-5, 5-2, 2-5, 5-3, 3-2 and 2-1, in one sequence."""


def test_output_is_exact_after_kills_around_the_first_checkpoint_of_three_parallelisms(
    kafka: EmbeddedKafka, tmp_path: Path
) -> None:
    live_and_die(kafka, tmp_path, (2, 5, 3))


@pytest.mark.soak
def test_output_is_exact_after_kills_around_the_first_checkpoint_of_each_rescaling(
    any_kafka: EmbeddedKafka, tmp_path: Path
) -> None:
    live_and_die(any_kafka, tmp_path, WHOLE)


def test_take_over_ends_open_transactions_of_a_killed_run_with_another_id_prefix(
    kafka: EmbeddedKafka, tmp_path: Path
) -> None:
    """Transactional ids begin with the job and its journal: another storage gives another prefix.

    With `--take-over` the job starts without state, as the operator asks. The test therefore checks
    only the records that readers can see.
    """
    job = Job.make(kafka.bootstrap, tmp_path, "TwoSinks")
    job.write(RECORDS, seed=0)
    die_at("jobmaster.publishing", job, 2)
    left = set(job.open_transactions())
    job.run("--take-over", config={"checkpoint.dir": "elsewhere"})
    assert not left & set(job.open_transactions())
    job.assert_exact()  # the first run published nothing
    assert_nothing_is_hidden(job)


def live_and_die(kafka: EmbeddedKafka, folder: Path, walk: Sequence[int]) -> None:
    job = Job.make(kafka.bootstrap, folder, "TwoSinks")
    for seed, parallelism in enumerate(walk):
        job.write(RECORDS, seed=seed)
        die_at("jobmaster.publishing", job, parallelism)
        die_at("jobmaster.published", job, parallelism)
    job.run(parallelism=walk[-1])
    job.assert_exact()
    assert_nothing_is_hidden(job)


def assert_nothing_is_hidden(job: Job) -> None:
    """Check that the last stable offset equals the high watermark in every partition."""
    for sink in job.sinks:
        assert checker.hidden_offsets(job.bootstrap, job.topics[sink]) == 0


def die_at(point: str, job: Job, parallelism: int) -> None:
    """Run until the first checkpoint of this run reaches a point, and kill all processes."""
    trap = Trap(point, holds=True)
    with job.started(traps=[trap], pace=PACE, parallelism=parallelism) as run:
        run.until_snapped(0)
        assert_only_the_living_write(run)
        run.kill()


def assert_only_the_living_write(run: Run) -> None:
    """Check that transactions are open, as some are just prepared, all of the live attempt."""
    parsed = {id_: parse_transactional_id(id_) for id_ in run.job.open_transactions()}
    assert parsed, run.story()
    live = run.job.claims()[-1]
    older = [id_ for id_, parts in parsed.items() if parts is None or parts.attempt != live]
    assert older == [], f"of attempts before {live}\n{run.story()}"
