"""Topics by hand: create, list, describe and delete them, with confluent-kafka's admin client.

The command line uses this module: `tidegate kafka topics`, `tidegate dev`, and `tidegate run` with
`--create-topics`. A job never creates or deletes a topic. The class adds these requests to those of
`KafkaClusterAdmin`, and it has the same errors, which name the brokers, the topic and the remedy.

Invariant: a request that changes topics is sent once. A repetition after a lost answer would find
the first one's result, and report it as the mistake of the user.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from concurrent.futures import TimeoutError as NoAnswerError
from typing import Any, Final, NamedTuple

from confluent_kafka import KafkaError as Code
from confluent_kafka import KafkaException
from confluent_kafka.admin import (  # type: ignore[attr-defined]  # exported by assignment
    AdminClient,
    ConfigResource,
    ConfigSource,
    NewTopic,
)

from tidegate.drivers.kafka.admin import ANSWER_TIMEOUT_S, KafkaClusterAdmin, configs_of
from tidegate.errors import KafkaError, NotAllowedError, RefusedError, TopicAbsentError
from tidegate.stream_elements import TopicPartition

BROKER_DEFAULT: Final = -1
"""The number of partitions or replicas with which the brokers choose their own default."""
VISIBLE_S: Final = 15.0
"""The longest time in seconds until each broker knows a new topic or has dropped a deleted one. It
takes milliseconds; the rest is for a busy machine.
"""
VISIBLE_PAUSE_S: Final = 0.05

_WRONG_REQUEST: Final = frozenset(
    {
        Code.INVALID_PARTITIONS,
        Code.INVALID_REPLICATION_FACTOR,
        Code.INVALID_CONFIG,
        Code.INVALID_REQUEST,
        Code.POLICY_VIOLATION,
        Code.TOPIC_EXCEPTION,
        Code.INVALID_REPLICA_ASSIGNMENT,
        Code._INVALID_ARG,
    }
)
"""Codes of a request that no broker will accept."""


class PartitionDescription(NamedTuple):
    """A partition of a topic. `end` is the end for `read_committed` readers, and `high_watermark`
    the end for all readers.
    """

    partition: int
    leader: int | None
    replicas: tuple[int, ...]
    in_sync: tuple[int, ...]
    beginning: int
    end: int
    high_watermark: int


class TopicDescription(NamedTuple):
    """A topic with its partitions, and its settings that differ from the brokers' defaults.
    `config` is None if the principal may not read it.
    """

    topic: str
    partitions: tuple[PartitionDescription, ...]
    config: dict[str, str] | None


class KafkaTopicAdmin(KafkaClusterAdmin):
    """An admin client that also changes topics."""

    def topics(self, *, internal: bool = False) -> dict[str, tuple[int, int]]:
        """Return the number of partitions and of replicas of each topic, by name. `internal` adds
        those that Kafka uses itself.
        """
        found = self._metadata().topics
        return {
            name: (len(each.partitions), max(map(_replicas, each.partitions.values()), default=0))
            for name, each in sorted(found.items())
            if internal or not name.startswith("__")
        }

    def create(
        self,
        topic: str,
        *,
        partitions: int = BROKER_DEFAULT,
        replication_factor: int = BROKER_DEFAULT,
        config: Mapping[str, str] | None = None,
    ) -> int:
        """Create a topic, wait until it is visible, and return the number of its partitions.

        RefusedError if it exists already, or if the brokers do not accept the numbers or settings.
        """
        new = NewTopic(topic, partitions, replication_factor, config=dict(config or {}))
        self._change(
            f"create topic {topic}",
            lambda client: client.create_topics([new], request_timeout=ANSWER_TIMEOUT_S),
        )
        return self._wait_until_visible(topic)

    def create_missing(self, topics: Iterable[str], partitions: int) -> list[str]:
        """Create the topics that do not exist, and return their names."""
        created = []
        for topic in dict.fromkeys(topics):
            try:
                self.partitions(topic)
            except TopicAbsentError:
                self.create(topic, partitions=partitions)
                created.append(topic)
        return created

    def delete(self, topic: str) -> None:
        """Delete a topic and its records. Return when a description no longer finds it.
        TopicAbsentError if it does not exist.
        """
        self._change(
            f"delete topic {topic}",
            lambda client: client.delete_topics([topic], request_timeout=ANSWER_TIMEOUT_S),
        )
        end_s = time.monotonic() + VISIBLE_S
        while time.monotonic() < end_s:
            try:
                self.partitions(topic)
            except TopicAbsentError:
                return
            time.sleep(VISIBLE_PAUSE_S)

    def describe(self, topic: str) -> TopicDescription:
        """Return everything about a topic. TopicAbsentError if it does not exist."""
        described = self._described(topic)
        if not described.partitions:
            raise self._absent(f"describe topic {topic}")
        ids = [TopicPartition(topic, each.id) for each in described.partitions]
        first_offsets, ends = self.earliest(ids), self.latest(ids)
        high_watermarks = self.high_watermarks(ids)
        partitions = tuple(
            PartitionDescription(
                partition=each.id,
                leader=None if each.leader is None else each.leader.id,
                replicas=tuple(node.id for node in each.replicas),
                in_sync=tuple(node.id for node in each.isr),
                beginning=first_offsets[of],
                end=ends[of],
                high_watermark=high_watermarks[of],
            )
            for each, of in zip(described.partitions, ids, strict=True)
        )
        return TopicDescription(topic, partitions, self._own_config(topic))

    def _own_config(self, topic: str) -> dict[str, str] | None:
        ask = configs_of(ConfigResource.Type.TOPIC)
        try:
            found = self._answers([topic], lambda name: f"read the settings of {name}", ask)[topic]
        except NotAllowedError:
            return None
        own = ConfigSource.DYNAMIC_TOPIC_CONFIG.value
        return {
            name: entry.value or ""
            for name, entry in sorted(found.items())
            if entry.source == own and not entry.is_sensitive
        }

    def _wait_until_visible(self, topic: str) -> int:
        """Return the number of partitions once each has a leader that answers."""
        end_s = time.monotonic() + VISIBLE_S
        while True:
            try:
                found = self.partitions(topic)
                self.latest([TopicPartition(topic, number) for number in range(found)])
            except TopicAbsentError:
                if time.monotonic() >= end_s:
                    raise
                time.sleep(VISIBLE_PAUSE_S)
            else:
                return found

    def _change(self, what: str, ask: Callable[[AdminClient], Mapping[str, Future[Any]]]) -> None:
        self._metadata()  # reports unreachable brokers and refused credentials within seconds
        [answer] = ask(self._clients.current).values()
        try:
            answer.result(ANSWER_TIMEOUT_S)
        except KafkaException as error:
            cause = error.args[0]
            if cause.code() == Code.TOPIC_ALREADY_EXISTS:
                raise RefusedError(
                    f"Kafka at {self._servers} could not {what}: it exists already. Use it as it "
                    "is, choose another name, or delete it first: tidegate kafka topics delete."
                ) from None
            if cause.code() in _WRONG_REQUEST:
                raise RefusedError(
                    f"Kafka at {self._servers} could not {what}: {cause.str()}"
                ) from None
            raise self._translated(what, cause) from None
        except NoAnswerError:
            raise KafkaError(
                f"Kafka at {self._servers} did not {what} within {ANSWER_TIMEOUT_S:.0f} s. It may "
                "do so later: see tidegate kafka topics list."
            ) from None


def _replicas(partition: Any) -> int:
    return len(partition.replicas)
