"""Brokers for all integration tests: real ones, started when first asked for, one per version.

They belong to the test process and die with it, also when it is killed. Tests share them, so every
test uses topics (`topic_factory`), consumer groups, jobs and transactional ids of its own. A test
that stops or kills a broker starts one for itself.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator, Mapping

import pytest

from integration.brokers import TopicFactory, create_topic, unique
from tidegate.drivers.kafka.embedded import EmbeddedKafka


@pytest.fixture(scope="session", autouse=True)
def _interruptible() -> None:
    """Started in the background by a shell, tests would inherit that SIGINT is ignored, and so
    would what they start and interrupt.
    """
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedKafka]:
    """Kafka 4.3.0, one node."""
    directory = tmp_path_factory.mktemp("kafka-4.3.0")
    with EmbeddedKafka.start("4.3.0", directory=directory, owned=True) as cluster:
        yield cluster


@pytest.fixture(scope="session")
def kafka_39(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedKafka]:
    """Kafka 3.9.1, one node: the oldest that is supported."""
    directory = tmp_path_factory.mktemp("kafka-3.9.1")
    with EmbeddedKafka.start("3.9.1", directory=directory, owned=True) as cluster:
        yield cluster


@pytest.fixture(params=["kafka", "kafka_39"])
def any_kafka(request: pytest.FixtureRequest) -> EmbeddedKafka:
    """Both, one after the other: for a test that must hold on either."""
    cluster = request.getfixturevalue(request.param)
    assert isinstance(cluster, EmbeddedKafka)
    return cluster


@pytest.fixture
def topic_factory(request: pytest.FixtureRequest) -> TopicFactory:
    """Makes topics with names of their own, on the broker that the test has asked for."""

    def make(
        name: str = "topic",
        *,
        partitions: int = 4,
        bootstrap: str | None = None,
        config: Mapping[str, str] | None = None,
    ) -> str:
        full = unique(name)
        create_topic(bootstrap or broker_of(request), full, partitions=partitions, config=config)
        return full

    return make


def broker_of(request: pytest.FixtureRequest) -> str:
    for name in ("any_kafka", "kafka_39", "kafka"):
        if name in request.fixturenames:
            cluster = request.getfixturevalue(name)
            assert isinstance(cluster, EmbeddedKafka)
            return cluster.bootstrap
    raise LookupError("the test asks for no broker: name kafka, kafka_39 or any_kafka")
