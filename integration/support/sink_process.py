"""A process that writes numbered records through the sink, prepares them, and waits to be killed.

    python -m integration.support.sink_process BOOTSTRAP TOPIC JOB INTERVALS RECORDS [reuse]

The process writes INTERVALS intervals of RECORDS records each. It prepares each interval, and
prints the acknowledgement as a line of JSON. Then it writes half an interval more, flushes it,
prints `"unprepared"`, and waits for its end. With `reuse` it makes a mistake that the sink must not
make: it writes the last records with the producer of a prepared transaction.
"""

from __future__ import annotations

import json
import sys
import time

import msgspec

from tests.drivers.kafka.surroundings import SubtaskHarness
from tidegate.api.connectors.kafka_sink import KafkaSink
from tidegate.api.records.formats import Raw
from tidegate.config import Config, KafkaSettings
from tidegate.dataplane.sinks.delivery import TransactionalDelivery
from tidegate.dataplane.sinks.kafka import KafkaSinkWriter
from tidegate.drivers.kafka.transactions import KafkaTransactionAdmin
from tidegate.drivers.system import SystemDrivers
from tidegate.ids import Attempt, CheckpointId, Uid
from tidegate.protocol.subtask_snapshot import PreparedTransaction
from tidegate.stream_elements import RecordBatch, TopicPartition


def numbered(first: int, count: int) -> RecordBatch:
    numbers = range(first, first + count)
    return RecordBatch(
        values=[b"%d" % number for number in numbers],
        offsets=list(numbers),
        topic_partition=TopicPartition("in", 0),
    )


def main() -> None:
    bootstrap, topic, job, intervals, records, *mistakes = sys.argv[1:]
    harness = SubtaskHarness(
        SystemDrivers(),
        KafkaTransactionAdmin({"bootstrap.servers": bootstrap}),
        job=job,
        config=Config(kafka=KafkaSettings(bootstrap_servers=bootstrap)),
        threads=True,
    )
    writer = KafkaSinkWriter(KafkaSink(topic, value=Raw()), Uid("out"), harness.context)
    writer.open()
    acks: list[tuple[PreparedTransaction, ...]] = []
    size, total = int(records), 0
    for interval in range(int(intervals)):
        writer.write(numbered(total, size))
        total += size
        if mistakes:
            harness.until(lambda: writer._intervals[0].lease)
            kept = writer._intervals[0].lease
        writer.prepare(CheckpointId(Attempt(1), interval), acks.append)
        done = interval + 1
        harness.until(lambda done=done: len(acks) == done)  # type: ignore[misc]
        print(json.dumps(msgspec.to_builtins(acks[-1])), flush=True)
    if mistakes:
        assert kept is not None
        producer = kept.producer
        producer.send(topic, numbered(total, size // 2).values, None)
    else:
        writer.write(numbered(total, size // 2))
        harness.until(lambda: writer._intervals[0].lease)
        lease = writer._intervals[0].lease
        assert lease is not None
        producer = lease.producer
    producer.flush(30)
    assert isinstance(writer._delivery, TransactionalDelivery)
    print('"unprepared"', flush=True)
    time.sleep(600)


if __name__ == "__main__":
    main()
