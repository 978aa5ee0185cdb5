"""Requests to a cluster of three brokers, one of which was just killed or does not answer.

Until its session ends, such a broker is still the leader of its partitions, and may be the
controller. A client must not wait for this broker when other brokers have taken its place. It must
never treat a missing answer of a leader as an offset.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import pytest
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from integration.support.running import in_time
from tidegate.drivers.kafka.admin import KafkaClusterAdmin
from tidegate.drivers.kafka.embedded import EmbeddedKafka
from tidegate.drivers.kafka.transactions import KafkaTransactionAdmin
from tidegate.errors import KafkaError
from tidegate.stream_elements import TopicPartition

pytestmark = pytest.mark.slow

T = TypeVar("T")

NODES = 3
PARTITIONS = 6
TOPIC = "orders"
BESIDE_S = 6.0
"""The time that the requests may take after the brokers' own failover, in seconds. Two requests
need leaders, and each may wait a second for a new client. The rest is for a busy machine."""
GIVE_UP_S = 60.0


@pytest.fixture(scope="module")
def brokers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedKafka]:
    folder: Path = tmp_path_factory.mktemp("kafka")
    with EmbeddedKafka.start(directory=folder, nodes=NODES, owned=True) as kafka:
        admin = AdminClient({"bootstrap.servers": kafka.bootstrap, "log_level": 0})
        for made in admin.create_topics([NewTopic(TOPIC, PARTITIONS, NODES)]).values():
            made.result()
        # A broker that does not know the topic yet answers that it does not exist.
        for each in kafka.bootstrap.split(","):
            _until(partial(_knows, each))
        yield kafka


@pytest.mark.parametrize("node", range(NODES))
def test_requests_do_not_wait_for_a_dead_broker_after_failover(
    brokers: EmbeddedKafka, node: int
) -> None:
    """These are the requests of a recovery and of a submit. In an earlier version each of them took
    nine seconds, or failed the submit.
    """
    topic_partitions = [TopicPartition(TOPIC, partition) for partition in range(PARTITIONS)]
    brokers.kill(node)
    try:
        answered = threading.Thread(target=_ask_all, args=(brokers.bootstrap, topic_partitions))
        answered.start()
        dead = node + 1
        _wait_until(brokers, lambda part: part.leader not in {dead, -1}, TOPIC)
        failover_s = time.monotonic()
        answered.join(GIVE_UP_S)
        in_time(time.monotonic() - failover_s < BESIDE_S, "it took too long")
    finally:
        brokers.restart(node)
        _wait_until(brokers, lambda part: len(part.isrs) == NODES)


def test_transactions_of_a_broker_that_came_back_are_listed(brokers: EmbeddedKafka) -> None:
    """A JobMaster starts while the broker is away, so its client does not know that broker.

    In an earlier version its next recovery, and each fencing of zombies, failed for five minutes.
    """
    brokers.kill(0)
    try:
        admin = AdminClient({"bootstrap.servers": brokers.bootstrap, "log_level": 0})
        _until(lambda: len(admin.list_topics(timeout=10).brokers) < NODES)
        log = KafkaTransactionAdmin({"bootstrap.servers": brokers.bootstrap}, deadline_s=10.0)
        assert log.list("tidegate.") == {}
    finally:
        brokers.restart(0)
        _wait_until(brokers, lambda part: len(part.isrs) == NODES)
    try:
        assert log.list("tidegate.") == {}
    finally:
        log.close()


def test_silent_broker_leaves_time_to_connect_to_other_brokers(
    brokers: EmbeddedKafka, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The silent broker is like a host that is gone. In an earlier version the first broker got all
    of the eight seconds, and an attempt failed because all of its slots had to connect.
    """
    frozen, *others = brokers.bootstrap.split(",")
    tried: list[int] = []

    def frozen_first(bootstrap: Sequence[Any]) -> Any:
        ports = [int(each.partition(":")[2]) for each in (others if tried else [frozen])]
        tried.append(ports[0])
        return next(each for each in bootstrap if each.port == ports[0])

    monkeypatch.setattr("kafka.net.manager.random.choice", frozen_first)
    (pid, *_) = brokers.pids
    os.kill(pid, signal.SIGSTOP)
    try:
        log = KafkaTransactionAdmin({"bootstrap.servers": brokers.bootstrap})
        try:
            assert log.cluster_id()
        finally:
            log.close()
        assert len(tried) >= 2
    finally:
        os.kill(pid, signal.SIGCONT)
        _wait_until(brokers, lambda part: len(part.isrs) == NODES)


def _ask_all(bootstrap: str, topic_partitions: list[TopicPartition]) -> None:
    """Repeat each request until it is answered. A failover can take longer than one request
    waits.
    """
    admin = KafkaClusterAdmin({"bootstrap.servers": bootstrap})
    assert _answer(lambda: admin.partitions(TOPIC)) == PARTITIONS
    assert _answer(admin.transaction_max_timeout_ms)
    assert _answer(lambda: admin.earliest(topic_partitions)) == dict.fromkeys(topic_partitions, 0)
    assert _answer(lambda: admin.latest(topic_partitions)) == dict.fromkeys(topic_partitions, 0)
    assert _answer(lambda: admin.max_message_bytes([TOPIC]))[TOPIC]


def _answer(ask: Callable[[], T]) -> T:
    while True:
        try:
            return ask()
        except KafkaError:
            time.sleep(
                0.1
            )  # each request makes clients, and their threads use CPU that the brokers need


def _wait_until(brokers: EmbeddedKafka, holds: Callable[[Any], bool], *topics: str) -> None:
    """Wait until the condition holds for every partition, as seen by a new client."""

    def whole() -> bool:
        admin = AdminClient({"bootstrap.servers": brokers.bootstrap, "log_level": 0})
        found = admin.list_topics(timeout=10).topics
        wanted = topics or tuple(found)
        if not all(name in found for name in wanted):
            return False  # a broker that starts knows no topic yet
        parts = [part for name in wanted for part in found[name].partitions.values()]
        return all(map(holds, parts))

    _until(whole)


def _knows(address: str) -> bool:
    found = AdminClient({"bootstrap.servers": address, "log_level": 0}).list_topics(timeout=10)
    return TOPIC in found.topics and len(found.topics[TOPIC].partitions) == PARTITIONS


def _until(condition: Callable[[], bool]) -> None:
    end_s = time.monotonic() + GIVE_UP_S
    while not condition():
        if time.monotonic() > end_s:
            raise TimeoutError("the brokers do not recover")
        time.sleep(0.1)
