"""Operations on brokers while a job runs, by operators and by the brokers themselves.

Partitions move to other brokers, quotas throttle clients, and brokers are upgraded one after the
other. A topic is compacted, a partition's leader moves several times under load, and brokers forget
producers. The output stays exact through all of this, although a slot is killed in between. Each
test shows that the broker has really performed the operation. `test_sequences` tests single
requests that fail.
"""

from __future__ import annotations

import itertools
import os
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
from confluent_kafka import Producer
from kafka.admin import KafkaAdminClient
from kafka.structs import TopicPartition

from integration.demo import checker
from integration.faults.kill_points.killed_runs import LARGE, PARTITIONS, Job, Run
from integration.support.brokers import TIMEOUT_S, create_topic, unique
from integration.support.running import in_time
from tidegate.drivers.kafka.embedded import EmbeddedKafka
from tidegate.drivers.kafka.java import find_java, java_environment

pytestmark = [pytest.mark.kafka, pytest.mark.slow, pytest.mark.timeout(500)]

PACE = 300
FED_RECORDS = 200
FED_EVERY_S = 0.5
STATE_TOPIC = "__transaction_state"


@contextmanager
def fed(job: Job) -> Iterator[list[int]]:
    """Write orders all the time during the block. The yielded list grows by each batch's size."""
    over = threading.Event()
    written: list[int] = []

    def feed() -> None:
        for seed in itertools.count(1):
            job.write(FED_RECORDS, seed=seed)
            written.append(FED_RECORDS)
            if over.wait(FED_EVERY_S):
                return

    thread = threading.Thread(target=feed, name="feed")
    thread.start()
    try:
        yield written
    finally:
        over.set()
        thread.join()


def published(run: Run) -> None:
    """Wait for two more publications. The limit is long, because up to three brokers share the
    machine with the job.
    """
    before = run.publications()
    run.until(lambda: run.publications() >= before + 2, "two publications", 150)


def kill_a_slot(run: Run) -> None:
    """Kill one of the job's slots with SIGKILL."""
    slots = run.until(lambda: run.reports()[-1]["slots"], "slots")
    os.kill(slots[0]["pid"], signal.SIGKILL)


def reassign(admin: KafkaAdminClient, topics: list[str], shift: int) -> None:
    """Move every partition of the topics to two of the three brokers, and wait until it is done."""
    wanted = {
        TopicPartition(each["name"], partition["partition_index"]): [
            (partition["partition_index"] + shift + step) % 3 + 1 for step in range(2)
        ]
        for each in admin.describe_topics(topics)
        for partition in each["partitions"]
    }
    answers = admin.alter_partition_reassignments(wanted)
    assert [error for error in answers.values() if error is not None] == []
    end_s = time.monotonic() + 90
    while admin.list_partition_reassignments():
        in_time(time.monotonic() < end_s, "the partitions did not move in time")
        time.sleep(0.1)


def test_partitions_that_move_under_load_leave_the_output_exact(tmp_path: Path) -> None:
    with EmbeddedKafka.start(directory=tmp_path / "kafka", nodes=3, owned=True) as kafka:
        job = Job.make(kafka.bootstrap, tmp_path, "TwoSinks")
        job.write(500, seed=10_000)
        admin = KafkaAdminClient(bootstrap_servers=kafka.bootstrap.split(","))
        topics = [*job.topics.values(), STATE_TOPIC]
        try:
            with job.started(pace=PACE) as run, fed(job):
                published(run)
                for shift in range(3):
                    reassign(admin, topics, shift)
                    published(run)
                kill_a_slot(run)
                # Now partitions move quickly, so one producer's sequences meet several brokers.
                for shift in range(3, 9):
                    reassign(admin, list(job.topics.values()), shift)
                published(run)
                run.kill()
        finally:
            admin.close()
        job.run()
        job.assert_exact()


SHORT_WINDOW = {"quota.window.num": "3", "quota.window.size.seconds": "1"}
"""The brokers average over two seconds instead of ten. Over ten seconds they would accept so little
data as a burst.
"""


def set_quota(kafka: EmbeddedKafka, change: str, value: str) -> None:
    """Change the default quota of all clients with Kafka's own tool."""
    words = ("--bootstrap-server", kafka.bootstrap, "--alter", change, value)
    command = find_java(kafka.version, lambda _: None).command(
        "kafka.admin.ConfigCommand", *words, "--entity-type", "clients", "--entity-default"
    )
    done = subprocess.run(
        command, env=java_environment(), capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def assert_throttled(job: Job) -> None:
    """Check that the quota throttles a client that sets no client id, like the job's clients."""
    told: list[float] = []
    settings = {
        "bootstrap.servers": job.bootstrap,
        "throttle_cb": lambda event: told.append(event.throttle_time),
    }
    scratch = unique("scratch")
    create_topic(job.bootstrap, scratch)
    producer = Producer(settings)
    for _ in range(6):
        producer.produce(scratch, b"x" * 20_000)
        producer.flush(TIMEOUT_S)
    assert told, "the broker throttles nobody"


def test_output_is_exact_when_quotas_throttle_the_job(tmp_path: Path) -> None:
    folder = tmp_path / "kafka"
    with EmbeddedKafka.start(directory=folder, owned=True, properties=SHORT_WINDOW) as kafka:
        job = Job.make(kafka.bootstrap, tmp_path, "TwoSinks")
        job.write(4_000, seed=1)
        with job.started() as run:
            run.until_published(1)
            set_quota(kafka, "--add-config", "producer_byte_rate=20000,consumer_byte_rate=20000")
            assert_throttled(job)
            job.write(1_000, seed=2)
            run.until_published(3)
            kill_a_slot(run)
            published(run)
            set_quota(kafka, "--delete-config", "producer_byte_rate,consumer_byte_rate")
            run.until(job.is_settled, "settled", 120)
            run.kill()
        job.run()
        job.assert_exact()


def test_brokers_that_are_upgraded_one_after_the_other_leave_the_output_exact(
    tmp_path: Path,
) -> None:
    with EmbeddedKafka.start("3.9.1", directory=tmp_path / "kafka", nodes=3, owned=True) as kafka:
        job = Job.make(kafka.bootstrap, tmp_path, "TwoSinks")
        job.write(500, seed=10_000)
        with job.started(pace=PACE) as run, fed(job):
            published(run)
            for node in range(3):
                kafka.upgrade(node, "4.3.1", timeout_s=120)
                published(run)
                if node == 1:
                    kill_a_slot(run)
            assert kafka.version == "4.3.1"
            run.kill()
        job.run()
        job.assert_exact()


COMPACTED = {
    "cleanup.policy": "compact",
    "segment.ms": "500",
    "min.cleanable.dirty.ratio": "0.01",
    "delete.retention.ms": "100",
    "max.compaction.lag.ms": "500",
}
CLEANS_OFTEN = {"log.cleaner.backoff.ms": "200"}


def values(job: Job, topic: str) -> list[tuple[int, bytes, dict[str, object]]]:
    """Return the partition, key and value of each visible record."""
    found = checker.read_committed(job.bootstrap, job.topics[topic])
    return [(each.partition, each.key or b"", checker._json(each)) for each in found]


def test_all_kept_records_of_a_topic_compacted_during_the_run_are_read(
    tmp_path: Path,
) -> None:
    folder = tmp_path / "kafka"
    with EmbeddedKafka.start(directory=folder, owned=True, properties=CLEANS_OFTEN) as kafka:
        job = Job.make(kafka.bootstrap, tmp_path, "LargeOrders")
        job.topics["orders"] = unique("compacted")
        create_topic(kafka.bootstrap, job.topics["orders"], config=COMPACTED)
        job.write(500, seed=10_000)
        with job.started(pace=PACE) as run, fed(job) as fed_records:
            run.until_published(3)
            kill_a_slot(run)

            def is_compacted() -> bool:
                return len(values(job, "orders")) < sum(fed_records) / 2

            run.until(is_compacted, "records that compaction has removed", 120)
            published(run)
            kill_a_slot(run)
            published(run)
            run.kill()
        job.run()
        written = [value["order_id"] for _, _, value in values(job, "large")]
        assert len(written) == len(set(written)), "an order was written twice"
        kept = {
            value["order_id"]
            for _, _, value in values(job, "orders")
            if float(str(value["amount"])) > float(LARGE)
        }
        assert kept <= set(written), "an order that the topic has kept was not read"
        assert job.open_transactions() == []


SHORT_MEMORY = {
    "producer.id.expiration.ms": "2000",
    "producer.id.expiration.check.interval.ms": "200",
}
"""With these, partitions forget a producer's sequence numbers two seconds after its last record."""


def known_producers(job: Job) -> set[int]:
    """Return the ids of the producers whose sequence numbers the output's leaders remember."""
    partitions = [
        TopicPartition(job.topics[sink], number)
        for sink in job.sinks
        for number in range(PARTITIONS)
    ]
    with closing(KafkaAdminClient(bootstrap_servers=job.bootstrap.split(","))) as admin:
        found = admin.describe_producers(partitions)
    states = [state.active_producers for state in found.values()]
    return {producer.producer_id for producers in states for producer in producers}


def test_a_broker_that_forgets_idle_producers_leaves_the_output_exact(tmp_path: Path) -> None:
    folder = tmp_path / "kafka"
    with EmbeddedKafka.start(directory=folder, owned=True, properties=SHORT_MEMORY) as kafka:
        job = Job.make(kafka.bootstrap, tmp_path, "TwoSinks")
        config = {"checkpoint.interval": "6 s", "checkpoint.interval_during_backlog": "0 ms"}
        with job.started(config=config) as run:
            job.write(20, seed=1)
            first = run.until(lambda: known_producers(job), "known producers")
            for seed in range(2, 6):
                job.write(20, seed=seed)
                time.sleep(3)  # the producer's transaction is open and idle meanwhile
            run.until(lambda: not first <= known_producers(job), "a forgotten producer")
            run.until_published(1)
            kill_a_slot(run)
            job.write(20, seed=8)
            run.until(job.is_settled, "settled", 120)
            run.kill()
        job.run()
        job.assert_exact()
