"""The job of the tests on Spark, and the check of its output."""

from __future__ import annotations

from pathlib import Path

from integration.demo.checker import check
from integration.demo.orders import write
from integration.support.backfills import BackfillJob
from integration.support.brokers import create_topic, unique
from tidegate.drivers.kafka.embedded import EmbeddedKafka

ROOT = Path(__file__).parent.parent.parent
ORDERS = 20_000


def new_job(broker: EmbeddedKafka, folder: Path, *, orders: int = ORDERS) -> BackfillJob:
    """Make a running total over this number of orders, with its own topics and name."""
    source, sink = unique("orders"), unique("totals")
    for topic in (source, sink):
        create_topic(broker.bootstrap, topic, partitions=4)
    write(broker.bootstrap, source, seed=1, rate=1_000_000, count=orders)
    module = unique("backfilled").replace("-", "_")
    folder.joinpath(f"{module}.py").write_text(
        "from pipelines.order_totals import OrderTotals\n\n\n"
        f'class Job(OrderTotals, name="{unique("backfilled")}"):\n'
        '    """A job with a name of its own."""\n'
    )
    return BackfillJob(
        f"{module}:Job",
        folder,
        {
            "kafka.bootstrap_servers": broker.bootstrap,
            "sources.orders.topic": source,
            "sinks.totals.topic": sink,
        },
    )


def exact(job: BackfillJob) -> bool:
    """Return whether the output is exactly what the input leads to. AssertionError if the number of
    records is wrong.
    """
    verdict = check(
        job.settings["kafka.bootstrap_servers"],
        job.settings["sources.orders.topic"],
        job.settings["sinks.totals.topic"],
    )
    assert verdict.records_out == verdict.records_expected, verdict
    return verdict.exact
