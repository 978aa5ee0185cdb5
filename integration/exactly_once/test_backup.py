"""A checkpoint storage that is replaced by an older copy of it, as from a backup."""

from __future__ import annotations

import shutil
import time
from pathlib import Path

import pytest

from integration.support.brokers import Kafka
from integration.support.user_project import TOTALS, Folder
from tidegate.commit.lost_tail import parse_commit_metadata
from tidegate.drivers.kafka.admin import KafkaClusterAdmin

pytestmark = [pytest.mark.slow, pytest.mark.kafka, pytest.mark.timeout(300)]

AT_LEAST_ONCE = TOTALS.replace(
    "record_key=lambda total: total.customer)",
    'record_key=lambda total: total.customer, guarantee="at_least_once")',
)
"""A job without transactions. Only its consumer groups show newer checkpoints."""
COMMITTED_S_MAX = 30.0


def await_offsets(folder: Folder) -> None:
    """Wait until the consumer group holds a checkpoint of the job's newest attempt."""
    admin = KafkaClusterAdmin({"bootstrap.servers": folder.bootstrap})
    newest = folder.published()[-1].split("-")[0]
    end_s = time.monotonic() + COMMITTED_S_MAX
    while True:
        commits = admin.group_commits(f"tidegate.{folder.job}.orders").values()
        found = [parse_commit_metadata(each.metadata) for each in commits]
        if any(each is not None and str(each[1].attempt) == newest for each in found):
            return
        assert time.monotonic() < end_s, f"no offsets of attempt {newest}: {commits}"
        time.sleep(0.1)


@pytest.mark.parametrize("text", [TOTALS, AT_LEAST_ONCE], ids=["exactly_once", "at_least_once"])
def test_run_is_refused_if_the_checkpoint_storage_is_an_older_copy(
    kafka: Kafka, tmp_path: Path, text: str
) -> None:
    """An earlier version read all records after the copy again, and exited with 0."""
    folder = Folder.make(tmp_path, kafka.bootstrap, text)
    folder.orders(100)
    assert folder.run().code == 0
    storage = tmp_path / ".tidegate" / "checkpoints" / folder.job
    old = folder.published()[-1]
    copy = tmp_path / "backup"
    shutil.copytree(storage, copy)

    folder.orders(200, first=100)
    with folder.started(bounded=False) as run:
        run.until(lambda: len(folder.read("totals")) == 300, "the totals", timeout_s=60)
        await_offsets(folder)
        assert run.stop().code == 0
    newest = [entry["number"] for entry in folder.journal() if entry["kind"] == "claim"][-1]

    shutil.rmtree(storage)
    shutil.copytree(copy, storage)
    before = folder.journal()
    refused = folder.run()
    assert refused.code == 2, refused.err
    again = f"{folder.topics['orders']}-0 offsets 100 to 299"
    for part in (f"Kafka knows attempt {newest}", f"--restore {old}", again):
        assert part in refused.err
    assert folder.journal() == before, "a refused run changes nothing"
    assert len(folder.read("totals")) == 300

    decided = folder.run("--restore", old)
    assert decided.code == 0, decided.err
    assert again in decided.err, "the report of what is written again"
    assert len(folder.read("totals")) == 500
    folder.orders(50, first=300)
    assert folder.run().code == 0, "the decision is in the journal"
    assert len(folder.read("totals")) == 550
