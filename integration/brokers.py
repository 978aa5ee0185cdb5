"""What every integration test does with a broker: make a topic, write to it, read it whole.

Plain functions over confluent-kafka, for tests, the demo and the benchmark. They are no part of
what is tested and check nothing themselves; the independent checker is a module of its own.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Mapping, Sequence
from typing import Protocol

from confluent_kafka import Consumer, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

TIMEOUT_S = 30.0
METADATA_POLL_S = 0.01
BATCH_S = 0.1  # a call returns when it is over or the batch is full, and not before


class Kafka(Protocol):
    """A cluster that a fixture gives: of processes or of containers (`TIDEGATE_TEST_BROKERS`)."""

    @property
    def version(self) -> str: ...

    @property
    def bootstrap(self) -> str: ...

    @property
    def alive(self) -> list[bool]:
        """Whether each node runs."""
        ...

    def kill(self, node: int = 0) -> None:
        """SIGKILL; its data stays."""
        ...

    def restart(self, node: int = 0) -> None:
        """Start a node again on its data, at its address."""
        ...

    def stop(self) -> None:
        """End all; again does nothing."""
        ...


class TopicFactory(Protocol):
    """What the fixture `topic_factory` gives: makes a topic whose name nobody else uses."""

    def __call__(
        self,
        name: str = "topic",
        *,
        partitions: int = 4,
        bootstrap: str | None = None,
        config: Mapping[str, str] | None = None,
    ) -> str: ...


def create_topic(
    bootstrap: str,
    name: str,
    *,
    partitions: int = 4,
    config: Mapping[str, str] | None = None,
) -> None:
    """Create a topic and wait until it is there; an error if it was there before."""
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
    topic = NewTopic(name, num_partitions=partitions, config=dict(config or {}))
    admin.create_topics([topic], operation_timeout=TIMEOUT_S)[name].result(TIMEOUT_S)
    # The controller has it then, but brokers may still tell clients that there is no such topic.
    end_s = time.monotonic() + TIMEOUT_S
    while True:
        known = admin.list_topics(name, TIMEOUT_S).topics[name].partitions
        if len(known) == partitions and all(each.leader >= 0 for each in known.values()):
            return
        if time.monotonic() > end_s:
            raise TimeoutError(f"topic {name} was created and is not seen: {known}")
        time.sleep(METADATA_POLL_S)


def unique(name: str) -> str:
    """`name` with a suffix that nobody else has."""
    return f"{name}-{uuid.uuid4().hex[:8]}"


def produce(
    bootstrap: str, topic: str, records: Sequence[tuple[bytes | None, bytes | None]]
) -> None:
    """Write key-value pairs, partitioned as the Java producer would, and wait for all of them."""
    failures: list[object] = []
    producer = Producer(
        {
            "bootstrap.servers": bootstrap,
            "enable.idempotence": True,
            "partitioner": "murmur2_random",
            "linger.ms": 5,
            "log_level": 0,
        }
    )

    def delivered(error: object, _message: object) -> None:
        if error is not None:
            failures.append(error)

    for key, value in records:
        while True:
            try:
                producer.produce(topic, key=key, value=value, on_delivery=delivered)
                break
            except BufferError:
                producer.poll(0.1)
    left = producer.flush(TIMEOUT_S)
    if left or failures:
        message = f"{left} records unsent, {len(failures)} refused: {failures[:1]}"
        raise RuntimeError(message)


def read_all(
    bootstrap: str, topic: str, *, isolation: str = "read_committed", timeout_s: float = TIMEOUT_S
) -> list[Message]:
    """Every record of a topic up to its end as it is now, in offset order per partition.

    `timeout_s` bounds how long nothing at all may arrive.
    """
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "unused",
            "enable.auto.commit": False,
            "auto.offset.reset": "error",
            "isolation.level": isolation,
            "enable.partition.eof": True,
            "log_level": 0,
        }
    )
    try:
        partitions = consumer.list_topics(topic, timeout_s).topics[topic].partitions
        consumer.assign([TopicPartition(topic, number, 0) for number in partitions])
        found: list[Message] = []
        open_ends = set(partitions)
        heard = time.monotonic()
        while open_ends:
            batch = consumer.consume(10_000, timeout=BATCH_S)
            if batch:
                heard = time.monotonic()
            elif time.monotonic() - heard > timeout_s:
                message = f"no end of {topic} seen in {timeout_s} s: {sorted(open_ends)}"
                raise TimeoutError(message)
            for record in batch:
                error = record.error()
                if error is None:
                    found.append(record)
                elif error.name() == "_PARTITION_EOF":
                    open_ends.discard(record.partition())
                else:
                    raise RuntimeError(error)
        return found
    finally:
        consumer.close()
