"""A checkpoint storage that is lost while a job runs, before its JobMaster is started again."""

from __future__ import annotations

import os
import shutil
import signal
from pathlib import Path

import pytest

from integration.support.brokers import Kafka
from integration.support.running import Report, TidegateRun, runs_with_checkpoint
from integration.support.user_project import TOTALS, Folder

pytestmark = [pytest.mark.slow, pytest.mark.kafka, pytest.mark.timeout(300)]

AT_LEAST_ONCE = TOTALS.replace(
    "value=Json(Total), record_key=lambda total: total.customer)",
    'value=Json(Total), record_key=lambda total: total.customer, guarantee="at_least_once")',
)
"""A job without transactions. Kafka has no transactional ids of it."""


@pytest.mark.parametrize("text", [TOTALS, AT_LEAST_ONCE], ids=["exactly_once", "at_least_once"])
def test_a_job_whose_journal_is_lost_does_not_start_from_nothing(
    kafka: Kafka, tmp_path: Path, text: str
) -> None:
    """In an earlier version a job with `--take-over` started from nothing at every loss, and a job
    without transactions did so always.
    """
    folder = Folder.make(tmp_path, kafka.bootstrap, text)
    folder.orders(300)
    journal = tmp_path / ".tidegate" / "checkpoints" / folder.job / "journal"
    with TidegateRun(
        tmp_path,
        kafka.bootstrap,
        pipeline="job:Totals",
        options=["--take-over"],
        config={"checkpoint.interval": "300 ms"},
    ) as run:
        report = run.wait_for("a checkpoint", runs_with_checkpoint)
        os.kill(report["jobmaster_pid"], signal.SIGSTOP)
        shutil.rmtree(journal)
        os.kill(report["jobmaster_pid"], signal.SIGKILL)

        def refused(said: Report) -> bool:
            return said["error"] is not None and said["error"]["kind"] == "JournalLostError"

        said = run.wait_for("the named error", refused)
        assert "checkpoint.dir" in said["error"]["message"]
        assert not list(journal.glob("*.json")), "no journal was begun"
    totals = [message.value() for message in folder.read("totals")]
    assert len(totals) == 300, "nothing was read again"
