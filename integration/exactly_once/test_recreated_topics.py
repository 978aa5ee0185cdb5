"""Topics that are deleted and created again, and logs that lose records, while a job uses them.

The tests run on real brokers with the user's command. A job that continued at the old offsets would
skip records silently. The start of such a job is therefore refused, and a running job ends, each
with an error that names the cause. The job publishes output only of records that it has read.
"""

from __future__ import annotations

import os
import re
import signal
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient

from integration.support.brokers import TIMEOUT_S, Kafka, create_topic
from integration.support.running import in_time
from integration.support.user_project import TOTALS, Folder, Outcome, assert_golden, paragraph
from tidegate.drivers.kafka.embedded import EmbeddedKafka

pytestmark = [pytest.mark.kafka, pytest.mark.timeout(300)]

CONFIRMATION_S = 10.0
"""The time in seconds for which the leaders must repeat a finding before it is final."""


@pytest.fixture
def own(tmp_path: Path) -> Iterator[EmbeddedKafka]:
    """A broker that the test may kill, and whose files it may truncate."""
    with EmbeddedKafka.start("4.3.0", directory=tmp_path / "broker", owned=True) as broker:
        yield broker


@pytest.fixture
def folder(kafka: Kafka, tmp_path: Path) -> Folder:
    return Folder.make(tmp_path, kafka.bootstrap)


def create_again(folder: Folder) -> None:
    """Delete the input topic, and create a topic of the same name."""
    name = folder.topics["orders"]
    admin = AdminClient({"bootstrap.servers": folder.bootstrap, "log_level": 0})
    admin.delete_topics([name], operation_timeout=TIMEOUT_S)[name].result(TIMEOUT_S)
    end_s = time.monotonic() + TIMEOUT_S
    while name in admin.list_topics(timeout=TIMEOUT_S).topics:
        in_time(time.monotonic() < end_s, "it is not deleted")
        time.sleep(0.05)
    create_topic(folder.bootstrap, name, partitions=1)


def totals(folder: Folder) -> int:
    return len(folder.read("totals"))


def refused(folder: Folder, golden: str, outcome: Outcome) -> None:
    """Check that the first attempt was refused, after the leaders had repeated their answers."""
    assert outcome.code == 2, outcome.err
    assert outcome.took_s >= CONFIRMATION_S
    assert_golden(golden, folder.normalised(paragraph(outcome.err)))


@pytest.mark.once
@pytest.mark.parametrize(("records", "shape"), [(400, "longer"), (40, "shorter")])
def test_a_topic_that_was_created_again_while_the_job_was_stopped_is_refused(
    folder: Folder, records: int, shape: str
) -> None:
    folder.orders(100)
    assert folder.run().code == 0
    folder.assert_exact(100)
    create_again(folder)
    folder.orders(records)
    refused(folder, f"topic-created-again-{shape}", folder.run())
    folder.assert_exact(100)
    again = folder.run("--restore", "none")
    assert again.code == 0, "the remedy helps"
    assert totals(folder) == 100 + records


@pytest.mark.slow
@pytest.mark.parametrize("unseen", [False, True], ids=["seen by the reader", "unseen"])
def test_topic_recreated_while_the_job_runs_fails_the_job(folder: Folder, unseen: bool) -> None:
    """The new topic grows beyond the position. Without the check the job would restart there, and
    skip the beginning of the new topic.

    With `unseen`, the readers are frozen meanwhile. They then notice nothing, and continue in the
    middle of the new topic. Only the comparison of topic ids before the publication shows it.
    """
    folder.orders(100)
    config = {"checkpoint.interval": "1s", "cluster.heartbeat_timeout": "60s"}
    with folder.started(bounded=False, config=config) as run:
        run.until(lambda: totals(folder) == 100, "at the end of its input")
        with stopped(run.slots() if unseen else []):
            create_again(folder)
            folder.orders(900)
        outcome = run.wait(120.0)
    assert outcome.code == 1, outcome.err
    said = folder.normalised(paragraph(outcome.err))
    assert re.search(
        r"topic id TOPIC-ID\) is offset \d+.*topic of this name with id TOPIC-ID", said
    )
    assert "deleted and created again" in said
    # The job has published no record of the new topic as a record of the old one.
    folder.assert_exact(100)


@contextmanager
def stopped(pids: Sequence[int]) -> Iterator[None]:
    """Freeze processes with SIGSTOP for the time of the block."""
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGCONT)


@pytest.mark.slow
def test_position_after_the_end_of_the_log_is_refused_if_no_leader_epoch_is_known(
    own: EmbeddedKafka, tmp_path: Path
) -> None:
    """No record before the position was read, so only the end of the log shows the loss.

    A bounded run must not end with "0 records". `test_unclean_elections` tests the case in which
    the leader epoch is known.
    """
    from_the_end = TOTALS.replace(
        "value=Json(Order))", 'value=Json(Order), starting_offsets="latest")'
    )
    folder, kept = with_a_tail(own, tmp_path, from_the_end)
    assert folder.run().code == 0
    lose_the_tail(own, folder, kept)
    outcome = folder.run()
    assert outcome.code == 2, outcome.err
    said = folder.normalised(paragraph(outcome.err))
    assert "ends at offset 60, 40 offsets before the position" in said
    assert folder.read("totals") == []


@pytest.mark.slow
def test_a_truncated_log_that_has_grown_again_is_refused(
    own: EmbeddedKafka, tmp_path: Path
) -> None:
    """This is the effect of an unclean election: the new records have a newer leader epoch."""
    folder, kept = with_a_tail(own, tmp_path)
    assert folder.run().code == 0
    lose_the_tail(own, folder, kept)
    folder.orders(200)
    refused(folder, "log-truncated", folder.run())
    folder.assert_exact(100)


@pytest.mark.slow
def test_log_truncated_while_the_job_runs_fails_the_job(own: EmbeddedKafka, tmp_path: Path) -> None:
    folder, kept = with_a_tail(own, tmp_path)
    with folder.started(bounded=False, config={"checkpoint.interval": "1s"}) as run:
        run.until(lambda: totals(folder) == 100, "at the end of its input")
        lose_the_tail(own, folder, kept)
        folder.orders(200)
        outcome = run.wait(120.0)
    assert outcome.code == 1, outcome.err
    said = folder.normalised(paragraph(outcome.err))
    assert "is offset 100, in leader epoch 0, but the log of that epoch ends at offset 60" in said
    folder.assert_exact(100)


def with_a_tail(broker: EmbeddedKafka, path: Path, text: str = TOTALS) -> tuple[Folder, int]:
    """Make a folder with 100 orders. Return it with the size of the log of the first 60 orders."""
    folder = Folder.make(path, broker.bootstrap, text)
    folder.orders(60)
    kept = log_size(broker, folder)
    folder.orders(40, first=60)
    return folder, kept


def segment(broker: EmbeddedKafka, folder: Folder) -> Path:
    (found,) = broker.directory.rglob(f"{folder.topics['orders']}-0/*.log")
    return found


def log_size(broker: EmbeddedKafka, folder: Folder) -> int:
    return segment(broker, folder).stat().st_size


def lose_the_tail(broker: EmbeddedKafka, folder: Folder, kept: int) -> None:
    """Kill the broker, cut the end of its log, and start it again as a new leader."""
    broker.kill()
    os.truncate(segment(broker, folder), kept)
    broker.restart()
