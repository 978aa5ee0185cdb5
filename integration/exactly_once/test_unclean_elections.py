"""Unclean leader elections on three real brokers: of a job's input topic, of its output topic, and
of the topics in which Kafka keeps transactions and consumer groups.

Kafka has then lost acknowledged records. If the job can detect the loss, it ends with an error that
names the lost data: positions of its input, or transactions that a checkpoint has published. No
client can detect that committed output is gone. A test shows this case too, because the
documentation describes it.

One cluster has two elections: one for user topics, and one for Kafka's own topics. Each takes
seconds, so each is prepared once for several tests.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest

from integration.faults.kill_points.kill_points import Trap
from integration.faults.kill_points.killed_runs import Job
from integration.faults.unclean_elections import KEEPS, LOSES, UncleanCluster
from integration.support.session_cluster import tidegate
from integration.support.user_project import TOTALS, Folder, Outcome, paragraph
from integration.support.user_project import Run as FolderRun

pytestmark = [pytest.mark.kafka, pytest.mark.slow, pytest.mark.timeout(600)]

CONFIRMATION_S = 10.0
KEPT, READ = 60, 100
"""The number of records that both replicas have, and the number that the job has read."""
STATE_TOPICS = ("__transaction_state", "__consumer_offsets")


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[UncleanCluster]:
    with UncleanCluster("4.3.1", tmp_path_factory.mktemp("unclean")) as made:
        yield made


def job_on(cluster: UncleanCluster, path: Path, *, orders: bool, totals: bool) -> Folder:
    """Make a job. `orders` and `totals` say whether its input and output lose records in the
    election.
    """
    path.mkdir()
    folder = Folder(path, cluster.bootstrap)
    for name, loses in (("orders", orders), ("totals", totals)):
        folder.topics[name] = cluster.topic(name, LOSES if loses else KEEPS)
    folder.write("job.py", TOTALS)
    return folder


@dataclass(slots=True)
class Elected:
    """Three jobs that have each read 100 orders. The elected replica has only 60 of them."""

    stopped: Folder
    running: Folder
    run: FolderRun
    writing: Folder
    """A job whose output topic has lost records. Its input topic has lost no records."""


@pytest.fixture(scope="module")
def elected(cluster: UncleanCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Elected]:
    path = tmp_path_factory.mktemp("jobs")
    stopped = job_on(cluster, path / "stopped", orders=True, totals=False)
    running = job_on(cluster, path / "running", orders=True, totals=False)
    writing = job_on(cluster, path / "writing", orders=False, totals=True)
    lost = [stopped.topics["orders"], running.topics["orders"], writing.topics["totals"]]
    with ExitStack() as stack:
        for folder in (stopped, running, writing):
            folder.orders(KEPT)
        cluster.fall_behind(lost)
        for folder in (stopped, running, writing):
            folder.orders(READ - KEPT, first=KEPT)
        runs = [stack.enter_context(each.started()) for each in (stopped, writing)]
        run = stack.enter_context(
            running.started(bounded=False, config={"checkpoint.interval": "1s"})
        )
        for each in runs:
            outcome = each.wait()
            assert outcome.code == 0, outcome.err
        run.until(lambda: len(running.read("totals")) == READ, "at the end of its input")
        for folder in (stopped, writing):
            folder.assert_exact(READ)
        cluster.elect_unclean(lost)
        running.orders(3 * READ)
        yield Elected(stopped, running, run, writing)


def assert_truncated(folder: Folder, outcome: Outcome, code: int, end: int) -> None:
    """Check that the error of the job names the lost records and their partition."""
    assert outcome.code == code, outcome.err
    said = paragraph(outcome.err)
    topic = re.escape(folder.topics["orders"])
    for part in (
        rf"position in partition 0 of topic '{topic}'",
        rf"is offset {READ}, in leader epoch 0, but the log of that epoch ends at offset {KEPT}",
        rf"ends at offset {end}",
        "unclean leader election",
    ):
        assert re.search(part, said), said
    folder.assert_exact(READ)


def test_input_log_truncated_by_an_unclean_election_fails_a_running_job(elected: Elected) -> None:
    """The new log is longer than the job's position when the job reads on. In an earlier version
    the job skipped 40 of its records.
    """
    assert_truncated(elected.running, elected.run.wait(180.0), 1, KEPT + 3 * READ)


def test_start_of_a_stopped_job_refuses_an_input_log_truncated_by_an_unclean_election(
    elected: Elected,
) -> None:
    """The first start finds no new records, and the second a log beyond the position."""
    folder = elected.stopped
    outcome = folder.run()
    assert outcome.took_s >= CONFIRMATION_S
    assert_truncated(folder, outcome, 2, KEPT)
    folder.orders(2 * READ)
    assert_truncated(folder, folder.run(), 2, KEPT + 2 * READ)


def test_job_continues_after_an_unclean_election_has_lost_its_committed_output(
    elected: Elected,
) -> None:
    """Kafka reports the loss of committed records to no client, so the job continues after them."""
    folder = elected.writing
    assert folder.read("totals") == [], "all of it was written while one replica was away"
    folder.orders(READ, first=READ)
    outcome = folder.run()
    assert outcome.code == 0, outcome.err
    totals = [json.loads(each.value() or b"") for each in folder.read("totals")]
    for customer in ("c0", "c1", "c2"):
        found = [each["total"] for each in totals if each["customer"] == customer]
        due = len(range(int(customer[1]), 2 * READ, 3))
        assert found == list(range(due - len(found) + 1, due + 1))
    assert len(totals) == READ


@dataclass(slots=True)
class Forgotten:
    """Two jobs whose transactions and group offsets only a replica knew that has since died."""

    published: Job
    """A job with a published checkpoint. None of the listed transactions is committed."""
    ended: Folder


@pytest.fixture(scope="module")
def forgotten(
    elected: Elected, cluster: UncleanCluster, tmp_path_factory: pytest.TempPathFactory
) -> Forgotten:
    path = tmp_path_factory.mktemp("forgotten")
    for topic in STATE_TOPICS:
        cluster.move(topic, LOSES)
    ended = job_on(cluster, path / "ended", orders=False, totals=False)
    published = Job.make(cluster.bootstrap, path, "TwoSinks")
    published.write(500, seed=1)
    cluster.fall_behind(STATE_TOPICS)
    ended.orders(READ)
    with published.started(traps=[Trap("jobmaster.published", holds=True)]) as run:
        outcome = ended.run()
        assert outcome.code == 0, outcome.err
        run.until_snapped(0)
        run.kill()
    assert published.journal()[-1]["transactions"]
    cluster.elect_unclean(STATE_TOPICS)
    return Forgotten(published, ended)


def test_job_without_open_publications_continues_if_its_group_offsets_are_lost(
    forgotten: Forgotten,
) -> None:
    folder = forgotten.ended
    folder.orders(READ, first=READ)
    outcome = folder.run()
    assert outcome.code == 0, outcome.err
    folder.assert_exact(2 * READ)


def test_published_transactions_that_the_coordinator_has_forgotten_are_a_loss_by_name(
    forgotten: Forgotten,
) -> None:
    """Every run fails and names the lost transactions until the user accepts the loss."""
    job = forgotten.published
    named = job.journal()[-1]["transactions"]
    for _ in range(2):
        with job.started() as run:
            assert run.wait(120.0) == 1, run.story()
        said = run.reports()[-1]["error"]["message"]
        assert "has lost output" in said
        assert named[0]["transactional_id"] in said
    job.write(200, seed=2)
    with job.started("--accept-data-loss", "--bounded") as run:
        assert run.wait(120.0) == 0, run.story()
    # The transactions stay open in the partitions, and no coordinator will ever end them.
    asked = tidegate("txn", "why-stuck", job.topics["large"], "--kafka", job.bootstrap, "--json")
    held = [
        each["blocked_by"] for each in json.loads(asked.stdout)["partitions"] if each["blocked_by"]
    ]
    assert {each["cause"] for each in held} == {"possibly_hanging"}, "younger than 15 minutes"
