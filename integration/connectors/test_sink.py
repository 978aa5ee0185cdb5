"""The sink on real brokers: a prepared transaction survives its process, and holds nothing else."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from integration.connectors.test_kafka_drivers import under_test
from integration.support.sink_process import numbered
from tests.contracts.kafka import KafkaUnderTest, eventually
from tests.drivers.kafka.surroundings import SubtaskHarness
from tidegate.api.connectors.kafka_sink import KafkaSink
from tidegate.api.records.formats import Raw
from tidegate.config import Config, KafkaSettings
from tidegate.dataplane.sinks.kafka import KafkaSinkWriter
from tidegate.drivers.kafka.embedded import EmbeddedKafka
from tidegate.errors import RecordTooLargeError, TransactionError
from tidegate.ids import Attempt, CheckpointId, Uid
from tidegate.ports.kafka import TransactionState
from tidegate.protocol.subtask_snapshot import PreparedTransaction

pytestmark = pytest.mark.kafka
ROOT = Path(__file__).parents[2]


class SinkBench:
    """A writer with the threads of a slot, whose mailbox the test runs."""

    def __init__(self, cluster: KafkaUnderTest, topic: str, **options: Any) -> None:
        self.cluster, self.topic = cluster, topic
        timeout_ms = options.pop("timeout_ms", 60_000)
        attempt = options.pop("attempt", 1)
        pooled = options.pop("pooled", 1)
        self.job = options.pop("job", cluster.unique("sink"))
        bootstrap = cluster.settings["bootstrap.servers"]
        self.harness = SubtaskHarness(
            cluster.drivers,
            cluster.log,
            job=self.job,
            attempt=attempt,
            timeout_ms=timeout_ms,
            pooled=pooled,
            slots=4,
            config=Config(kafka=KafkaSettings(bootstrap_servers=bootstrap)),
            threads=True,
        )
        sink = KafkaSink(topic, value=Raw(), **options)
        self.writer = KafkaSinkWriter(sink, Uid("out"), self.harness.context)
        self.writer.open()
        self.acks: list[tuple[PreparedTransaction, ...]] = []
        self.barriers = 0

    def prepare(self) -> None:
        self.barriers += 1
        self.writer.prepare(CheckpointId(Attempt(1), self.barriers), self.acks.append)

    def acknowledged(self) -> tuple[PreparedTransaction, ...]:
        self.harness.until(lambda: len(self.acks) == self.barriers)
        return self.acks[-1]

    def commit(self) -> None:
        """Commit all transactions of the last acknowledgement, and inform the writer."""
        names = [each.transactional_id for each in self.acks[-1]]
        for name in names:
            self.cluster.commit(name)
        self.writer.ended(names)
        self.writer.freed(names)

    def close(self) -> None:
        self.harness.close()


@pytest.fixture
def cluster(every_kafka: EmbeddedKafka) -> Iterator[KafkaUnderTest]:
    made = under_test(every_kafka.bootstrap)
    yield made
    made.log.close()


@pytest.fixture
def topic(cluster: KafkaUnderTest) -> str:
    return cluster.make_topic(1)


@pytest.fixture
def bench(cluster: KafkaUnderTest, topic: str) -> Iterator[SinkBench]:
    bench = SinkBench(cluster, topic)
    yield bench
    bench.close()


def numbers(cluster: KafkaUnderTest, topic: str) -> list[int]:
    (values,) = cluster.read(topic)
    return [int(value or b"-1") for value in values]


def killed_after_prepare(cluster: KafkaUnderTest, topic: str, *mistakes: str) -> list[int]:
    """Kill a writer within an interval, recover from it, and return the numbers that readers see.

    This process commits the transactions of the writer's last acknowledgement, and fences its other
    transactional ids. A second writer then writes again the records that no acknowledgement covers.
    """
    intervals, records = (1, 40) if mistakes else (3, 40)
    bootstrap, job = cluster.settings["bootstrap.servers"], cluster.unique("sink")
    arguments = [bootstrap, topic, job, str(intervals), str(records), *mistakes]
    process = subprocess.Popen(
        [sys.executable, "-m", "integration.support.sink_process", *arguments],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": f"{ROOT}/framework"},
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    acks = []
    for line in process.stdout:
        told = json.loads(line)
        if told == "unprepared":
            break
        acks.append(msgspec.convert(told, tuple[PreparedTransaction, ...]))
    process.send_signal(signal.SIGKILL)
    assert process.wait(30) == -signal.SIGKILL
    process.stdout.close()
    assert [len(ack) for ack in acks] == list(range(1, intervals + 1))
    named = acks[-1]
    for each in named:
        facts = cluster.log.describe(each.transactional_id)
        assert facts is not None
        assert (facts.state, facts.start_ms) == (TransactionState.ONGOING, each.start_ms)
        cluster.commit(each.transactional_id)
    names = {each.transactional_id for each in named}
    others = cluster.log.list(f"tidegate.{job}.").keys() - names
    for name in others:
        cluster.log.fence(name)
    successor = SinkBench(cluster, topic, job=job, attempt=2)
    successor.writer.write(numbered(intervals * records, records))
    successor.prepare()
    successor.acknowledged()
    successor.commit()
    successor.close()
    return numbers(cluster, topic)


def test_another_process_commits_the_prepared_transactions_of_a_killed_writer_exactly(
    cluster: KafkaUnderTest, topic: str
) -> None:
    assert killed_after_prepare(cluster, topic) == list(range(160))


@pytest.mark.slow
def test_control_reused_producer_causes_duplicates(cluster: KafkaUnderTest, topic: str) -> None:
    """The records of the half interval are in the transaction of the acknowledgement."""
    found = killed_after_prepare(cluster, topic, "reuse")
    assert found != list(range(80))
    assert sorted(found) == sorted([*range(80), *range(40, 60)])


@pytest.mark.slow
def test_order_holds_across_a_barrier_while_the_flush_is_slow(
    cluster: KafkaUnderTest, topic: str
) -> None:
    """The first interval needs 400 requests one after the other, and the second only one."""
    slow = {"batch.num.messages": 100}
    bench = SinkBench(cluster, topic, properties=slow, pooled=2)
    eventually(lambda: len(cluster.log.list(f"tidegate.{bench.job}.")), lambda n: n >= 2)
    bench.harness.mailbox.run_posted()
    for start in range(0, 40_000, 1000):
        bench.writer.write(numbered(start, 1000))
    bench.prepare()
    bench.writer.write(numbered(40_000, 100))
    bench.prepare()
    bench.acknowledged()
    bench.commit()
    assert numbers(cluster, topic) == list(range(40_100))
    bench.close()


@pytest.mark.slow
def test_order_holds_across_barriers_while_the_broker_stalls(tmp_path: Path) -> None:
    with EmbeddedKafka.start("4.3.0", directory=tmp_path, owned=True) as broker:
        cluster = under_test(broker.bootstrap)
        topic = cluster.make_topic(1)
        bench = SinkBench(cluster, topic)
        bench.writer.write(numbered(0, 1000))
        bench.prepare()
        bench.acknowledged()
        total = 1000
        for _ in range(4):
            os.kill(broker.pids[0], signal.SIGSTOP)
            for _ in range(3):
                if bench.writer.writable():
                    bench.writer.write(numbered(total, 1000))
                    total += 1000
                bench.prepare()
                bench.harness.mailbox.run_posted()
            os.kill(broker.pids[0], signal.SIGCONT)
            bench.acknowledged()
            bench.commit()
        assert total > 4000
        assert numbers(cluster, topic) == list(range(total))
        bench.close()
        cluster.log.close()


@pytest.mark.slow
def test_a_record_that_the_broker_refuses_fails_the_attempt(
    cluster: KafkaUnderTest, topic: str
) -> None:
    bench = SinkBench(cluster, topic, properties={"message.max.bytes": 8_000_000})
    batch = numbered(0, 10)
    batch.values[5] = b"x" * 3_000_000
    bench.writer.write(batch)
    bench.prepare()
    with pytest.raises(RecordTooLargeError, match=r"3000000 bytes .*max\.message\.bytes"):
        bench.acknowledged()
    assert bench.acks == []
    bench.close()


def test_a_fenced_writer_cannot_prepare(bench: SinkBench) -> None:
    bench.writer.write(numbered(0, 10))
    prefix = f"tidegate.{bench.job}."
    log = bench.cluster.log
    bench.harness.until(lambda: TransactionState.ONGOING in log.list(prefix).values())
    for name in log.list(prefix):
        log.fence(name)
    bench.prepare()
    with pytest.raises(TransactionError):
        bench.acknowledged()
    assert bench.acks == []
    assert numbers(bench.cluster, bench.topic) == []


@pytest.mark.slow
def test_transactional_ids_are_reused_across_checkpoint_intervals(bench: SinkBench) -> None:
    for interval in range(10):
        bench.harness.until(bench.writer.writable)
        bench.writer.write(numbered(interval * 10, 10))
        bench.prepare()
        assert len(bench.acknowledged()) == 1
        bench.commit()
    assert numbers(bench.cluster, bench.topic) == list(range(100))
    assert len(bench.cluster.log.list(f"tidegate.{bench.job}.")) <= 4


@pytest.mark.slow
def test_uncommitted_transactions_are_listed_again_in_each_acknowledgement(
    bench: SinkBench,
) -> None:
    for interval in range(3):
        bench.writer.write(numbered(interval * 10, 10))
        bench.prepare()
        assert len(bench.acknowledged()) == interval + 1
    bench.prepare()
    assert len(bench.acknowledged()) == 3, "nothing was written: nothing new is named"
    bench.commit()
    assert numbers(bench.cluster, bench.topic) == list(range(30))


@pytest.mark.once
@pytest.mark.parametrize("guarantee", ["at_least_once", "none"])
def test_records_of_weaker_guarantees_are_visible_without_a_commit(
    cluster: KafkaUnderTest, topic: str, guarantee: str
) -> None:
    bench = SinkBench(cluster, topic, guarantee=guarantee)
    bench.writer.write(numbered(0, 10))
    bench.prepare()
    assert bench.acknowledged() == ()
    if guarantee == "at_least_once":
        assert numbers(cluster, topic) == list(range(10))
    else:
        eventually(lambda: numbers(cluster, topic), lambda found: found == list(range(10)))
    assert cluster.log.list(f"tidegate.{bench.job}.") == {}
    bench.close()
