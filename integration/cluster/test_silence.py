"""The status and the log give the reason for every wait of more than ten seconds."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer

from integration.faults.kill_points.killed_runs import Job, Run
from integration.support.brokers import unique
from integration.support.running import ROOT, TooLateError
from integration.support.session_cluster import TIDEGATE, tidegate
from tidegate.drivers.kafka.embedded import EmbeddedKafka

REPLACED = 4
"""Exit code of a JobManager that a newer one has replaced."""

pytestmark = [pytest.mark.slow, pytest.mark.kafka, pytest.mark.timeout(300)]


def reports(run: Run) -> list[dict[str, Any]]:
    """Return all reports of a run."""
    lines = run.output.read_text(encoding="utf-8").splitlines()
    return [each for each in map(json.loads, lines) if each["event"] == "report"]


def waits(run: Run) -> list[tuple[str, str]]:
    """Return the state and the explanation of each report that has an explanation."""
    return [(each["state"], each["waiting_for"]) for each in reports(run) if each["waiting_for"]]


def test_status_says_that_brokers_are_away_while_a_job_runs_and_stops(
    tmp_path: Path,
) -> None:
    directory = tmp_path / "kafka"
    with EmbeddedKafka.start("4.3.0", directory=directory, owned=True) as kafka:
        job = Job.make(kafka.bootstrap, tmp_path, "Totals")
        job.write(300, seed=1)
        with job.started() as run:
            run.until(job.is_settled, "settled")
            kafka.kill()

            def source_is_named() -> bool:
                return any("Source 'orders' cannot read" in text for _, text in waits(run))

            run.until(source_is_named, "a source that says why it cannot read", 90)
            run.process.send_signal(signal.SIGINT)

            def stop_is_explained() -> bool:
                return any(state in {"STOPPING", "CLOSING"} for state, _ in waits(run))

            run.until(stop_is_explained, "a stop that says what it waits for", 90)
            log = run.job.folder / ".tidegate" / "logs" / job.name / "jobmaster.log"
            assert "the job waits" in log.read_text(encoding="utf-8")
            kafka.restart()
            run.wait(120)
            last = reports(run)[-1]
            assert last["waiting_for"] == "", last
        job.run()
        job.assert_exact()


def test_status_names_missing_slots_and_a_replaced_jobmanager_exits_as_replaced(
    kafka: EmbeddedKafka, tmp_path: Path
) -> None:
    job = Job.make(kafka.bootstrap, tmp_path, "Totals")
    job.write(10, seed=1)
    first_port, second_port = free_ports(2)
    at = ("--jobmanager", f"127.0.0.1:{first_port}")
    topics = [f"sources.orders.topic={job.topics['orders']}"]
    topics.append(f"sinks.totals.topic={job.topics['totals']}")
    with jobmanager(tmp_path, first_port) as first:
        until(lambda: tidegate("list", *at, folder=tmp_path).returncode == 0)
        words = ["--kafka", kafka.bootstrap, "-p", "2", "-c", topics[0], "-c", topics[1]]
        submitted = tidegate("submit", "job:Job", *at, *words, folder=tmp_path)
        assert submitted.returncode == 0, submitted.stderr

        def shown(*more: str) -> str:
            asked = tidegate("status", job.name, *at, *more, folder=tmp_path)
            return asked.stdout + asked.stderr

        until(lambda: "2 slots are missing" in shown())
        assert json.loads(shown("--json"))["waiting_for"] == "2 slots are missing"
        with jobmanager(tmp_path, second_port):
            assert first.wait(60) == REPLACED


def free_ports(count: int) -> list[int]:
    """Find ports of the loopback address on which no process listens."""
    with ExitStack() as held:
        made = [held.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(count)]
        return [each.getsockname()[1] for each in made]


@contextmanager
def jobmanager(folder: Path, port: int) -> Iterator[subprocess.Popen[bytes]]:
    """Run a JobManager of the session cluster `silence`."""
    words = ["-c", f"jobmanager.port={port}", "-c", "cluster.name=silence"]
    with (folder / f"jobmanager-{port}.log").open("wb") as log:
        server = subprocess.Popen(
            [TIDEGATE, "jobmanager", *words],
            cwd=folder,
            env={**os.environ, "PYTHONPATH": f"{ROOT / 'framework'}:{ROOT}"},
            stdout=log,
            stderr=log,
        )
    try:
        yield server
    finally:
        server.terminate()
        server.wait(30)


def until(condition: Callable[[], bool], timeout_s: float = 90.0) -> None:
    """Wait for a condition."""
    end_s = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > end_s:
            raise TooLateError("it did not happen in time")
        time.sleep(0.2)


def test_bounded_run_reports_offsets_hidden_by_an_open_transaction(
    kafka: EmbeddedKafka, tmp_path: Path
) -> None:
    job = Job.make(kafka.bootstrap, tmp_path, "LargeOrders")
    job.write(50, seed=1)
    settings = {"bootstrap.servers": kafka.bootstrap, "transactional.id": unique("open")}
    producer = Producer({**settings, "transaction.timeout.ms": 600_000})
    producer.init_transactions(30)
    producer.begin_transaction()
    for number in range(7):
        value = json.dumps(
            {
                "order_id": f"hidden-{number}",
                "customer_id": "hidden",
                "amount": "500",
                "placed_at_ms": number,
            }
        )
        producer.produce(job.topics["orders"], value.encode(), b"hidden", partition=0)
    assert producer.flush(30) == 0
    job.write(50, seed=2)  # the open transaction also hides the orders of partition 0
    with job.started("--bounded") as run:
        assert run.wait() == 0, run.story()
        end = json.loads(run.output.read_text(encoding="utf-8").splitlines()[-1])
        assert end["hidden_offsets"] >= 7
    producer.commit_transaction(30)
    with job.started("--bounded") as run:
        assert run.wait() == 0, run.story()
        end = json.loads(run.output.read_text(encoding="utf-8").splitlines()[-1])
        assert end["hidden_offsets"] == 0
    job.assert_exact()
