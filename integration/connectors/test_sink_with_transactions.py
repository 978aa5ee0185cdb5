"""A sink with transactions of its own, on a real broker: `tests/dataplane/folder_sink.py`.

Its guarantee is "exactly_once". Slots are killed while they write, and the JobMaster is killed
directly before and directly after it commits a transaction. Each order is then in a committed file
exactly once.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from integration.support.brokers import Kafka
from integration.support.running import code_of_stop
from integration.support.user_project import Folder
from tests.dataplane import folder_sink

pytestmark = [pytest.mark.kafka, pytest.mark.timeout(240)]

ORDERS = 40_000
REFERENCE = "killed:Shipments"

KILLED = """
import os
import signal
from pathlib import Path

from folder_sink import Delivery, FolderCoordinator, FolderSink, FOLDER
from tidegate import Json, KafkaSource, Pipeline
from tidegate.drivers.transaction_coordinators import TRANSACTION_COORDINATORS


def die_if_asked(folder, moment):
    asked = Path(folder, f"die-{moment}")
    if asked.exists():
        asked.unlink()
        os.kill(os.getpid(), signal.SIGKILL)


class Killed(FolderCoordinator):
    def end(self, transactional_id, handle, *, commit):
        die_if_asked(handle, "before")
        result = super().end(transactional_id, handle, commit=commit)
        die_if_asked(handle, "after")
        return result


TRANSACTION_COORDINATORS[FOLDER] = Killed


class Shipments(Pipeline, name="shipments"):
    orders = KafkaSource("orders", value=Json(Delivery))
    lines = FolderSink("lines", value=Json(Delivery))

    def define(self):
        self.orders.to(self.lines)
"""
"""The toy's pipeline with a coordinator that kills its process when a file asks for it."""


def test_each_order_is_in_a_committed_file_once_after_kills_of_slots_and_jobmaster(
    kafka: Kafka, tmp_path: Path
) -> None:
    folder = Folder.make(tmp_path, kafka.bootstrap, "", topics=["orders"], partitions=4)
    folder.write("folder_sink.py", Path(folder_sink.__file__).read_text())
    folder.write("killed.py", KILLED)
    config = {"job.name": folder.job, "sources.orders.topic": folder.topics["orders"]}
    lines = tmp_path / "lines"
    part = ORDERS // 4
    folder.send_amounts(range(part))
    with folder.started(
        "--parallelism", "2", reference=REFERENCE, config=config, bounded=False
    ) as run:
        run.until(lambda: folder_sink.amounts(lines), "a committed file")
        leave_prepared_file(lines)
        for number, moment in enumerate(("before", "after"), start=1):
            asked = lines / f"die-{moment}"
            asked.touch()
            folder.send_amounts(range(number * part, (number + 1) * part))
            run.until(lambda: not asked.exists(), "a kill of the JobMaster")  # noqa: B023
        folder.send_amounts(range(3 * part, ORDERS))
        before = len(folder.published())
        run.until(lambda: len(folder.published()) > before + 1, "a checkpoint after the kills")
        run.kill_slots()
        code = run.stop().code
        assert code == code_of_stop(folder.journal()), run.err
    outcome = folder.run("--parallelism", "2", reference=REFERENCE, config=config)
    assert outcome.code == 0, outcome.err
    found = Counter(folder_sink.amounts(lines))
    assert found == Counter(range(ORDERS)), "each order is there exactly once"
    assert not list(lines.glob(".*")), "no prepared file stays behind"


def leave_prepared_file(lines: Path) -> None:
    """Leave what a slot leaves that dies between its flush and its acknowledgement."""
    committed = next(lines.glob("*.jsonl")).stem
    (lines / f".{committed.rpartition('.')[0]}.999").write_text('{"amount": -1}\n')
