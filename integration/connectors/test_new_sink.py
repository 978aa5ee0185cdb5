"""A sink without Kafka, in slots on a real broker: the toy of `tests/dataplane/file_sink.py`.

Its guarantee is "at_least_once": after kills no record is missing, and records may come twice.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from integration.support.brokers import Kafka
from integration.support.running import code_of_stop
from integration.support.user_project import Folder
from tests.dataplane import file_sink

pytestmark = [pytest.mark.kafka, pytest.mark.timeout(180)]

ORDERS = 30_000
REFERENCE = "file_sink:Copies"


def test_a_sink_without_kafka_loses_nothing_when_slots_are_killed(
    kafka: Kafka, tmp_path: Path
) -> None:
    folder = Folder.make(tmp_path, kafka.bootstrap, "", topics=["orders"], partitions=4)
    folder.write("file_sink.py", Path(file_sink.__file__).read_text())
    config = {"job.name": folder.job, "sources.orders.topic": folder.topics["orders"]}
    lines = tmp_path / "lines"
    folder.send_amounts(range(ORDERS // 3))
    with folder.started(
        "--parallelism", "2", reference=REFERENCE, config=config, bounded=False
    ) as run:
        for kills in range(1, 3):
            before = len(folder.published())
            run.until(lambda: len(folder.published()) > before + 1, "a checkpoint")  # noqa: B023
            folder.send_amounts(range(kills * ORDERS // 3, (kills + 1) * ORDERS // 3))
            assert len(run.slots()) == 2, "both slots write"
            run.kill_slots()
        code = run.stop().code
        assert code == code_of_stop(folder.journal()), run.err
    outcome = folder.run("--parallelism", "2", reference=REFERENCE, config=config)
    assert outcome.code == 0, outcome.err
    found = set(file_sink.amounts(lines))
    due = {2 * amount for amount in range(ORDERS)}
    assert not due - found, "no record is missing"
    assert not found - due, "no record is wrong"
