"""Waves of a backfill on real brokers. The tasks run one after the other in this process."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from integration.demo.checker import check
from integration.demo.orders import write
from integration.faults.kill_points.kill_points import Plan, Trap
from integration.support.backfill_process import (
    DriverArguments,
    driver_log,
    killed_driver,
    run_driver,
)
from integration.support.backfills import BackfillJob
from integration.support.brokers import TopicFactory, unique
from integration.support.running import owned
from tidegate.drivers.kafka.embedded import EmbeddedKafka

pytestmark = [pytest.mark.kafka, pytest.mark.timeout(300)]

ORDERS = 20_000


@pytest.fixture
def job(kafka: EmbeddedKafka, topic_factory: TopicFactory, tmp_path: Path) -> BackfillJob:
    source, sink = topic_factory("orders"), topic_factory("totals")
    write(kafka.bootstrap, source, seed=1, rate=1_000_000, count=ORDERS)
    module = unique("backfilled").replace("-", "_")
    tmp_path.joinpath(f"{module}.py").write_text(
        "from pipelines.order_totals import OrderTotals\n\n\n"
        f'class Job(OrderTotals, name="{unique("backfilled")}"):\n'
        '    """A job with a name of its own."""\n'
    )
    return BackfillJob(
        f"{module}:Job",
        tmp_path,
        {
            "kafka.bootstrap_servers": kafka.bootstrap,
            "sources.orders.topic": source,
            "sinks.totals.topic": sink,
        },
    )


def exact(job: BackfillJob) -> bool:
    verdict = check(
        job.settings["kafka.bootstrap_servers"],
        job.settings["sources.orders.topic"],
        job.settings["sinks.totals.topic"],
    )
    assert verdict.records_out == verdict.records_expected, verdict
    return verdict.exact


def test_a_backfill_in_waves_is_exact(job: BackfillJob) -> None:
    waves = job.backfill(wave_offsets=5_000)
    assert len(waves) >= 4
    assert sum(wave.records_in for wave in waves) == ORDERS
    assert waves[-1].offsets_left == 0
    assert exact(job)


KILLED_AT = (
    Trap("slot.wrote", nth=5),
    Trap("slot.described"),
    Trap("slot.uploaded"),
    Trap("jobmaster.manifest"),
    Trap("jobmaster.published"),
    Trap("jobmaster.ended"),
    Trap("jobmaster.settling"),
    Trap("jobmaster.finishing"),
)


def arguments(job: BackfillJob) -> DriverArguments:
    return DriverArguments(reference=job.reference, folder=str(job.folder), settings=job.settings)


@pytest.mark.slow
@pytest.mark.parametrize("trap", KILLED_AT, ids=lambda trap: trap.point)
def test_next_backfill_driver_continues_after_the_first_was_killed(
    job: BackfillJob, trap: Trap
) -> None:
    killed_driver(arguments(job), trap)
    assert run_driver(arguments(job), Plan(job.folder / "no-traps")) == 0, driver_log(
        arguments(job)
    ).read_text()
    assert exact(job)


def test_a_live_job_continues_a_backfill_and_a_backfill_continues_a_live_job(
    job: BackfillJob,
) -> None:
    """Each run has another parallelism, and new orders arrive in between."""
    bootstrap, source = (
        job.settings["kafka.bootstrap_servers"],
        job.settings["sources.orders.topic"],
    )
    job.backfill(parallelism=3, wave_offsets=8_000)
    write(bootstrap, source, seed=2, rate=1_000_000, count=5_000)
    live(job, parallelism=2)
    write(bootstrap, source, seed=3, rate=1_000_000, count=5_000)
    waves = job.backfill(parallelism=4, wave_offsets=4_000)
    assert sum(wave.records_in for wave in waves) == 5_000, "what was done is not done again"
    write(bootstrap, source, seed=4, rate=1_000_000, count=5_000)
    live(job, parallelism=1)
    assert exact(job)


def live(job: BackfillJob, *, parallelism: int) -> None:
    """Run the live job bounded, to its end."""
    settings = job.config(job__parallelism=parallelism)
    words = {
        **{key: value for key, value in job.settings.items() if key != "kafka.bootstrap_servers"},
        "checkpoint.dir": settings.checkpoint.dir,
        "state.local_dir": settings.state.local_dir,
        "logs.dir": settings.logs.dir,
    }
    tidegate = str(Path(sys.executable).with_name("tidegate"))
    command = [tidegate, "run", job.reference, "--bounded", "-p", str(parallelism)]
    command += ["--kafka", job.settings["kafka.bootstrap_servers"]]
    for key, value in words.items():
        command += ["-c", f"{key}={value}"]
    log = job.folder / "run.log"
    assert owned(command, folder=job.folder, log=log).wait(timeout=120) == 0, log.read_text()
