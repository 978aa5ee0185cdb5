"""Waves of a backfill on real brokers, the tasks run one after the other in this process."""

from __future__ import annotations

from pathlib import Path

import pytest

from integration.backfills import BackfillJob
from integration.brokers import TopicFactory
from integration.checker import check
from integration.orders import write
from tidegate.drivers.kafka.embedded import EmbeddedKafka

pytestmark = [pytest.mark.kafka, pytest.mark.timeout(300)]

ORDERS = 20_000


@pytest.fixture
def job(kafka: EmbeddedKafka, topic_factory: TopicFactory, tmp_path: Path) -> BackfillJob:
    source, sink = topic_factory("orders"), topic_factory("totals")
    write(kafka.bootstrap, source, seed=1, rate=1_000_000, count=ORDERS)
    return BackfillJob(
        "pipelines.order_totals:OrderTotals",
        tmp_path,
        {
            "kafka.bootstrap": kafka.bootstrap,
            "sources.orders.topic": source,
            "sinks.totals.topic": sink,
        },
    )


def exact(job: BackfillJob) -> bool:
    verdict = check(
        job.settings["kafka.bootstrap"],
        job.settings["sources.orders.topic"],
        job.settings["sinks.totals.topic"],
    )
    assert verdict.records_out == verdict.records_expected, verdict
    return verdict.exact


def test_a_backfill_in_waves_is_exact(job: BackfillJob) -> None:
    waves = job.backfill(wave_offsets=5_000)
    assert len(waves) >= 4
    assert sum(wave.records_in for wave in waves) == ORDERS
    assert waves[-1].offsets_left == 0
    assert exact(job)
