"""The command `tidegate backfill`: started, killed, interrupted, continued and refused.

The tasks run in the command itself (`--master in-process`). The tests in `integration/spark` run
them on Spark.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from confluent_kafka import Producer

from integration.support.backfill_command import (
    ABANDONED,
    DONE,
    FAILED,
    ORDERS,
    REFUSED,
    STOPPED,
    TIMEOUT_S,
    WAVE,
    Job,
    read_event,
)
from integration.support.brokers import TopicFactory, unique
from integration.support.running import TooLateError
from tidegate.drivers.kafka.embedded import EmbeddedKafka

pytestmark = [pytest.mark.kafka, pytest.mark.timeout(300)]


@pytest.fixture
def job(kafka: EmbeddedKafka, topic_factory: TopicFactory, tmp_path: Path) -> Job:
    made = Job(kafka.bootstrap, tmp_path, topic_factory("orders"), topic_factory("totals"))
    made.write()
    return made


def until(done: Callable[[], bool], what: str) -> None:
    end_s = time.monotonic() + TIMEOUT_S
    while not done():
        if time.monotonic() > end_s:
            raise TooLateError(what)
        time.sleep(0.1)


def test_dry_run_of_a_backfill_prints_the_plan_and_changes_nothing(job: Job) -> None:
    hider = Producer({"bootstrap.servers": job.bootstrap, "transactional.id": unique("hider")})
    hider.init_transactions()
    hider.begin_transaction()
    for _ in range(7):
        hider.produce(job.source, b"{}", partition=0)
    assert hider.flush(30) == 0
    try:
        code, (plan,) = job.run("--dry-run", "-p", "3")
        assert code == DONE
        assert (plan["offsets"], plan["hidden"]) == (ORDERS, 7)
        assert sum(each["end"] - each["begin"] for each in plan["partitions"]) == ORDERS
        assert (plan["waves"], plan["parallelism"], plan["continues"]) == (3, 3, "")
        assert plan["transaction_timeout_ms"] == 900_000, "the brokers' maximum"
        assert 100 < plan["record_bytes"] < 150
        assert plan["first_ms"] <= plan["last_ms"]
        assert not Path(job.storage, job.name).exists()
        with job.start("--dry-run") as shown:
            assert shown.wait(TIMEOUT_S) == DONE
        assert "7 offsets behind open transactions" in job.log()
    finally:
        hider.abort_transaction()


def test_killed_backfill_is_continued_by_the_same_command_until_it_reports_done(job: Job) -> None:
    """SIGKILL ends the command once after a wave, and once in the middle of a later wave. The waves
    are small, so that many are left after the second kill.
    """
    published: list[int] = []
    for in_a_wave in (False, True):
        with job.start("--json", "-p", "3", "--wave-records", str(WAVE // 8)) as process:
            wave = read_event(process, "wave")
            published.append(wave["offsets_left"])
            if in_a_wave:
                until(job.in_a_wave, "in a wave")
            process.kill()
    assert published == sorted(published, reverse=True)
    job.write()  # these orders come after the start of the backfill and are not part of it
    code, events = job.run("-p", "2")
    assert code == DONE
    assert events[0]["event"] == "plan"
    assert events[0]["continues"]
    assert events[0]["offsets"] <= published[-1]
    assert sum(each["end"] for each in events[0]["partitions"]) == ORDERS, "the ends stay"
    assert job.run("-p", "2") == (DONE, [{"event": "done"}])
    code, events = job.run("--new")
    assert code == DONE
    assert (events[0]["offsets"], events[-1]["records_in"]) == (ORDERS, ORDERS)
    job.assert_exact()


@pytest.mark.slow
def test_ctrl_c_stops_a_backfill_after_the_wave_and_a_second_ctrl_c_abandons_the_wave(
    job: Job,
) -> None:
    with job.start("--json", "-p", "2") as process:
        read_event(process, "plan")
        until(job.in_a_wave, "in a wave")
        process.send_signal(signal.SIGINT)
        wave = read_event(process, "wave")
        assert process.wait(TIMEOUT_S) == STOPPED
    assert 0 < wave["offsets_left"] < ORDERS
    assert job.run("-p", "2")[0] == DONE
    job.write(150_000)
    large = ("--new", "-p", "2", "--wave-records", "200000")
    with job.start("--json", *large) as process:
        read_event(process, "plan")
        # The wave takes several seconds, and the test must find it with open transactions.
        until(lambda: len(job.open_transactions()) > 0, "writing")
        process.send_signal(signal.SIGINT)
        read_event(process, "stopping")  # a busy process could take two quick signals as one
        process.send_signal(signal.SIGINT)
        assert process.wait(TIMEOUT_S) == ABANDONED
    assert job.open_transactions() == [], "an abandoned wave leaves nothing that readers wait for"
    assert job.run("-p", "2", "--wave-records", "200000")[0] == DONE
    job.assert_exact()


@pytest.mark.slow
def test_live_job_continues_after_a_backfill_and_backfill_continues_after_a_live_job(
    job: Job,
) -> None:
    assert job.run("-p", "3")[0] == DONE
    job.write()
    assert job.run("--bounded", "-p", "2", action="run")[0] == DONE
    job.write()
    code, events = job.run("-p", "4")
    assert code == DONE
    assert events[0]["offsets"] == ORDERS, "a live job has run since: this is another backfill"
    job.write()
    assert job.run("--bounded", "-p", "1", action="run")[0] == DONE
    job.assert_exact()


@pytest.mark.slow
def test_backfill_is_refused_while_its_job_runs_and_continues_after_the_job_was_killed(
    job: Job,
) -> None:
    with job.start("--json", "-p", "2", action="run") as live:
        until(Path(job.storage, f"{job.name}.lock").exists, "the job runs")
        read_event(live, "report")
        code, events = job.run()
        assert (code, events) == (REFUSED, [])
        assert f"is running already, started by process {live.pid}" in job.log()
        os.killpg(live.pid, signal.SIGKILL)
    job.write()
    assert job.run()[0] == DONE
    job.assert_exact()


@pytest.mark.slow
def test_a_backfill_with_other_arguments_is_refused(job: Job) -> None:
    with job.start("--json") as process:
        read_event(process, "wave")
        process.kill()
    assert job.run("--set", "minimum=5") == (REFUSED, [])
    assert "--set differs in minimum" in job.log()
    assert "--new" in job.log()
    assert job.run("--to", "2020-01-01") == (REFUSED, [])
    assert job.run()[0] == DONE
    job.assert_exact()


@pytest.mark.slow
def test_second_version_of_a_job_is_backfilled_under_its_own_name_while_the_first_runs(
    job: Job, topic_factory: TopicFactory
) -> None:
    second_sink = topic_factory("totals-2")
    name = f"{job.name[:50]}-v2"
    second = ("--as", name, "-c", f"sinks.totals.topic={second_sink}")
    with job.start("--json", "-p", "1", action="run") as live:
        read_event(live, "report")
        assert job.run("-p", "2", *second)[0] == DONE
        job.write()
        live.send_signal(signal.SIGINT)
        assert live.wait(TIMEOUT_S) == DONE
    assert job.run("--bounded", *second, action="run")[0] == DONE
    assert job.run("--bounded", action="run")[0] == DONE
    job.assert_exact()
    job.assert_exact(second_sink)


@pytest.mark.slow
def test_second_backfill_driver_fences_the_first(
    job: Job, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """A storage URL and two working folders simulate two machines, which share no lock."""
    job.storage = f"file://{job.storage}"
    there = tmp_path_factory.mktemp("there")
    there.joinpath(f"{job.module}.py").write_text(
        job.folder.joinpath(f"{job.module}.py").read_text()
    )
    with job.start("--json", "-p", "2") as first:
        read_event(first, "wave")
        first.send_signal(signal.SIGSTOP)
        with job.start("--json", "-p", "3", folder=there) as second:
            read_event(second, "wave")
            second.send_signal(signal.SIGSTOP)
            first.send_signal(signal.SIGCONT)
            assert first.wait(TIMEOUT_S) == FAILED, job.log()
            assert "claim" in job.log()
            second.send_signal(signal.SIGCONT)
            assert second.wait(TIMEOUT_S) == DONE, job.log()
    job.assert_exact()


@pytest.mark.slow
def test_backfill_ends_at_given_offsets_or_at_a_given_time(job: Job) -> None:
    code, (plan,) = job.run("--dry-run")
    ends = {each["partition"]: each["end"] // 2 for each in plan["partitions"]}
    text = ",".join(f"{job.source}/{partition}={end}" for partition, end in ends.items())
    code, events = job.run("--to", text)
    assert code == DONE
    assert events[-1]["records_in"] == sum(ends.values())
    assert job.run("--to", text)[1] == [{"event": "done"}]
    passed = text.replace(f"/0={ends[0]}", f"/0={ends[0] - 1}")
    assert job.run("--new", "--to", passed) == (REFUSED, [])
    assert f"the job has already read it up to {ends[0]}" in job.log()
    code, events = job.run("--new", "--to", "2100-01-01")
    assert code == DONE
    assert events[-1]["records_in"] == ORDERS - sum(ends.values())
    job.assert_exact()
