"""Sinks with a weaker guarantee than exactly-once: the guarantee that they keep, also next to an
exactly-once sink.
"""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pytest

from integration.support.user_project import TOTALS, Folder, Run
from tidegate.drivers.kafka.embedded import EmbeddedKafka
from tidegate.drivers.kafka.transactions import KafkaTransactionAdmin
from tidegate.message_text import counted

pytestmark = [pytest.mark.kafka, pytest.mark.timeout(180)]

SECOND_SINK = """
    plain = KafkaSink("{plain}", value=Json(Order), guarantee="GUARANTEE")

    def define(self) -> None:
        self.orders.to(self.plain)
"""


def make(kafka: EmbeddedKafka, path: Path, guarantee: str, *, beside: bool) -> Folder:
    """Make the totals with a guarantee, or exactly-once totals with a second sink that has it."""
    if beside:
        second = SECOND_SINK.replace("GUARANTEE", guarantee)
        text = TOTALS.replace("\n    def define(self) -> None:\n", second)
    else:
        text = TOTALS.replace("value=Json(Total),", f'value=Json(Total), guarantee="{guarantee}",')
    return Folder.make(path, kafka.bootstrap, text, topics=("orders", "totals", "plain"))


def transactional_ids(folder: Folder) -> list[str]:
    log = KafkaTransactionAdmin({"bootstrap.servers": folder.bootstrap})
    try:
        return list(log.list(f"tidegate.{folder.job}."))
    finally:
        log.close()


def runs_again(err: str, restarts: int) -> bool:
    """Return whether the last status line reports a running job after this number of restarts.

    A job that is stopped while it deploys ends without a final checkpoint, with another exit code.
    """
    line = err.rstrip().rpartition("\n")[2]
    return ": running" in line and counted(restarts, "restart") in line


def wait_until_running(run: Run, restarts: int) -> None:
    run.until(lambda: runs_again(run.err, restarts), "running again", 60)


@pytest.mark.once
@pytest.mark.parametrize("guarantee", ["at_least_once", "none"])
def test_weaker_guarantees_write_each_record_once_without_a_failure_or_a_transaction(
    kafka: EmbeddedKafka, tmp_path: Path, guarantee: str
) -> None:
    folder = make(kafka, tmp_path, guarantee, beside=False)
    folder.orders(30)
    assert folder.run().code == 0
    folder.assert_exact(30)
    folder.orders(30, first=30)
    assert folder.run().code == 0
    folder.assert_exact(60)
    assert transactional_ids(folder) == []


def test_at_least_once_sink_loses_no_record_beside_an_exact_sink_after_slot_kills(
    any_kafka: EmbeddedKafka, tmp_path: Path
) -> None:
    folder = make(any_kafka, tmp_path, "at_least_once", beside=True)
    count = 0
    with folder.started(bounded=False) as run:
        for kills in (1, 2):
            folder.orders(300, first=count)
            count += 300
            run.until(lambda: folder.read("plain"), "writing")
            os.kill(run.until(run.slots, "with slots")[0], signal.SIGKILL)
            # Two kills within one attempt are one restart.
            wait_until_running(run, restarts=kills)
        run.until(lambda: len(folder.read("totals")) == count, "at the end of its input", 60)
        outcome = run.stop()
    assert outcome.code == 0, outcome.err
    folder.assert_exact(count)
    found = [json.loads(message.value() or b"")["customer"] for message in folder.read("plain")]
    for customer in range(3):
        assert found.count(f"c{customer}") >= count // 3, "a record is missing"


@pytest.mark.slow
def test_output_of_at_least_once_checkpoints_is_exact_without_a_failure(
    kafka: EmbeddedKafka, tmp_path: Path
) -> None:
    folder = make(kafka, tmp_path, "exactly_once", beside=False)
    folder.orders(300)
    outcome = folder.run("-p", "2", config={"checkpoint.mode": "at_least_once"})
    assert outcome.code == 0, outcome.err
    folder.assert_exact(300)
