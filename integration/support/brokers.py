"""The basic operations of every integration test: make a topic, write to it, read all of it.

These are plain functions over confluent-kafka, for tests, the demo and the benchmark. They are not
part of the tested code and check nothing themselves. The independent checker is another module,
`checker`.
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
BATCH_S = 0.1  # `consume` returns after this time, or earlier if the batch is full


class Kafka(Protocol):
    """A cluster from a fixture, in processes or in containers (`TIDEGATE_TEST_BROKERS`)."""

    @property
    def version(self) -> str: ...

    @property
    def bootstrap(self) -> str: ...

    @property
    def alive(self) -> list[bool]:
        """Whether each node runs."""
        ...

    def kill(self, node: int = 0) -> None:
        """Kill a node with SIGKILL. Its data stays."""
        ...

    def restart(self, node: int = 0) -> None:
        """Start a node again with its data and its address."""
        ...

    def stop(self) -> None:
        """Stop all nodes. A second call does nothing."""
        ...


class TopicFactory(Protocol):
    """The fixture `topic_factory`: makes a topic with a unique name and returns the name."""

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
    """Create a topic and wait until clients see it. Raise an error if it exists already."""
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
    topic = NewTopic(name, num_partitions=partitions, config=dict(config or {}))
    admin.create_topics([topic], operation_timeout=TIMEOUT_S)[name].result(TIMEOUT_S)
    # The controller knows the topic now, but brokers may still answer that it does not exist.
    end_s = time.monotonic() + TIMEOUT_S
    while True:
        known = admin.list_topics(name, TIMEOUT_S).topics[name].partitions
        if len(known) == partitions and all(each.leader >= 0 for each in known.values()):
            return
        if time.monotonic() > end_s:
            raise TimeoutError(f"topic {name} was created and is not seen: {known}")
        time.sleep(METADATA_POLL_S)


def unique(name: str) -> str:
    """Return `name` with a unique suffix."""
    return f"{name}-{uuid.uuid4().hex[:8]}"


def produce(
    bootstrap: str, topic: str, records: Sequence[tuple[bytes | None, bytes | None]]
) -> None:
    """Write key-value pairs with the Java producer's partitioner, and wait until all are written.

    Raises RuntimeError if a record was not written.
    """
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


readings = 0
"""The number of calls of `read_all` in this process (`Run.until` compares it)."""


def read_all(
    bootstrap: str, topic: str, *, isolation: str = "read_committed", timeout_s: float = TIMEOUT_S
) -> list[Message]:
    """Read every record of a topic up to its present end, in offset order per partition.

    Raises TimeoutError if no record arrives for `timeout_s` before the end is reached.
    """
    global readings  # noqa: PLW0603 - a test has one thread that waits and reads
    readings += 1
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
