"""A job whose `--kafka` is another Kafka cluster than the one of its checkpoints."""

from __future__ import annotations

from pathlib import Path

import pytest

from integration.faults.kill_points.kill_points import Trap
from integration.faults.kill_points.killed_runs import Job
from integration.support.brokers import Kafka, create_topic
from integration.support.user_project import Folder, Outcome

pytestmark = [pytest.mark.kafka, pytest.mark.timeout(300)]

CONSENT = "--restore-to-other-cluster"


@pytest.fixture
def folder(kafka: Kafka, kafka_39: Kafka, tmp_path: Path) -> Folder:
    """A job that has read 1,000 orders of one cluster, with topics of the same names on another."""
    made = Folder.make(tmp_path, kafka.bootstrap)
    for topic in made.topics.values():
        create_topic(kafka_39.bootstrap, topic, partitions=1)
    made.orders(1_000)
    outcome = made.run()
    assert outcome.code == 0, outcome.err
    made.assert_exact(1_000)
    made.bootstrap = kafka_39.bootstrap
    return made


def assert_refused(outcome: Outcome, *parts: str) -> None:
    assert outcome.code == 2, outcome.err
    for part in parts:
        assert part in outcome.err


def test_a_checkpoint_of_another_cluster_is_not_restored(folder: Folder) -> None:
    """An earlier version skipped 1,000 of the 5,000 records, and exited with 0."""
    folder.orders(5_000)
    before = folder.journal()
    cluster = before[0]["kafka_cluster"]
    assert_refused(folder.run(), cluster, "--restore none", CONSENT)
    assert_refused(folder.run("--restore", folder.published()[-1]), cluster, CONSENT)
    assert folder.journal() == before, "a refused run changes nothing"
    assert folder.read("totals") == []
    outcome = folder.run("--restore", "none")
    assert outcome.code == 0, outcome.err
    folder.assert_exact(5_000)
    claims = [entry for entry in folder.journal() if entry["kind"] == "claim"]
    assert claims[-1]["kafka_cluster"] not in {"", cluster}
    again = folder.run()
    assert again.code == 0, again.err
    folder.assert_exact(5_000)


def test_mirror_cluster_with_the_same_offsets_is_read_from_the_checkpoint_with_consent(
    folder: Folder, kafka: Kafka, kafka_39: Kafka
) -> None:
    for topic in ("orders", "totals"):
        folder.bootstrap = kafka.bootstrap
        mirrored = [(each.key(), each.value()) for each in folder.read(topic)]
        folder.bootstrap = kafka_39.bootstrap
        folder.send(topic, mirrored)
    folder.orders(500, first=1_000)
    outcome = folder.run(CONSENT)
    assert outcome.code == 0, outcome.err
    folder.assert_exact(1_500)
    consents = [entry for entry in folder.journal() if entry.get("restore_to_other_cluster")]
    assert len(consents) == 1
    folder.orders(300, first=1_500)
    assert folder.run().code == 0, "what is published on the mirror needs no consent"
    folder.assert_exact(1_800)


def test_restore_on_another_cluster_is_refused_if_published_transactions_are_uncommitted(
    kafka: Kafka, kafka_39: Kafka, tmp_path: Path
) -> None:
    """The run is killed between a publication and its commit. The error says how to settle the
    transactions.
    """
    job = Job.make(kafka.bootstrap, tmp_path, "TwoSinks")
    for topic in job.topics.values():
        create_topic(kafka_39.bootstrap, topic)
    job.write(1_000, seed=1)
    with job.started(traps=[Trap("jobmaster.published", holds=True)]) as run:
        run.until_snapped(0)
        run.kill()
    before = job.journal()
    named = before[-1]["transactions"]
    assert named
    job.bootstrap = kafka_39.bootstrap
    for restore in ("latest", "none"):
        with job.started("--restore", restore, CONSENT) as run:
            assert run.wait() == 2
        error = run.reports()[-1]["error"]["message"]
        for part in (named[0]["transactional_id"], "start the job once", "--accept-data-loss"):
            assert part in error
    assert job.journal() == before, "a refused run changes nothing"
    job.bootstrap = kafka.bootstrap
    job.run()
    job.assert_exact()
