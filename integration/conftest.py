"""Brokers for all integration tests: real ones, started when first asked for, one per version.

They have two backends: processes, which need nothing but this repository, and containers, where
`TIDEGATE_TEST_BROKERS=container` says so. Processes die with the test process, also when it is
killed; containers are removed at its end, or when the next one begins. Tests share them, so every
test uses topics (`topic_factory`), consumer groups, jobs and transactional ids of its own. A test
that stops or kills a broker starts one for itself; `either_backend` runs
it on both.
"""

from __future__ import annotations

import gc
import signal
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from os import environ
from pathlib import Path

import pytest

from integration.brokers import Kafka, TopicFactory, create_topic, unique
from tidegate.drivers.kafka.embedded import NO_PROPERTIES, EmbeddedKafka


@pytest.fixture(scope="session", autouse=True)
def _collected() -> Iterator[None]:
    """kafka-python leaves sockets of failed connections to the garbage collector: those of the last
    tests would fail the run after all of its tests, where no test's filter holds.
    """
    yield
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        gc.collect()


@pytest.fixture(scope="session", autouse=True)
def _interruptible() -> None:
    """Started in the background by a shell, tests would inherit that SIGINT is ignored, and so
    would what they start and interrupt.
    """
    signal.signal(signal.SIGINT, signal.default_int_handler)


NEVER_FENCED = {
    "broker.session.timeout.ms": "60000",
    "broker.heartbeat.interval.ms": "10000",
    "metadata.max.idle.interval.ms": "0",
}
"""For brokers that nobody kills. A stall of the machine must not take the only broker from its
cluster. A killed broker may register again only when its session has ended, so the session of one
that is killed is short. Nine of these brokers wait for tests at the same time, so an idle one sends
few heartbeats and writes no empty records: it needs half of the CPU then.
"""

BACKENDS = ("process", "container")
BACKEND = environ.get("TIDEGATE_TEST_BROKERS", "process")

KafkaStarter = Callable[..., Kafka]
"""What the fixture `either_backend` gives: `start(version="4.3.0", nodes=1)`."""


def start_brokers(
    backend: str,
    version: str,
    directory: Path,
    nodes: int = 1,
    properties: Mapping[str, str] = NO_PROPERTIES,
) -> Kafka:
    """A cluster of that backend; the test is skipped, with the reason, where there is no engine."""
    if backend not in BACKENDS:
        pytest.fail(f"TIDEGATE_TEST_BROKERS is {backend!r}, not one of {', '.join(BACKENDS)}")
    if backend == "process":
        return EmbeddedKafka.start(
            version, directory=directory, nodes=nodes, owned=True, properties=properties
        )
    from integration import engine

    if reason := engine.why_not():
        pytest.skip(reason)
    from integration.container_kafka import ContainerKafka

    return ContainerKafka.start(version, nodes=nodes, properties=properties)


@pytest.fixture(scope="session")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kafka]:
    """Kafka 4.3.0, one node."""
    yield from _one("4.3.0", tmp_path_factory)


@pytest.fixture(scope="session")
def kafka_39(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kafka]:
    """Kafka 3.9.1, one node: the oldest that is supported."""
    yield from _one("3.9.1", tmp_path_factory)


@pytest.fixture(scope="session")
def kafka_431(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kafka]:
    """Kafka 4.3.1, one node: the newest that is tested."""
    yield from _one("4.3.1", tmp_path_factory)


def _one(version: str, folders: pytest.TempPathFactory) -> Iterator[Kafka]:
    folder = folders.mktemp(f"kafka-{version}")
    cluster = start_brokers(BACKEND, version, folder, properties=NEVER_FENCED)
    try:
        yield cluster
    finally:
        cluster.stop()


@pytest.fixture(params=["kafka", "kafka_39"])
def any_kafka(request: pytest.FixtureRequest) -> Kafka:
    """Both, one after the other: for a test that must hold on either."""
    cluster: Kafka = request.getfixturevalue(request.param)
    return cluster


@pytest.fixture(params=["kafka", "kafka_39", "kafka_431"])
def every_kafka(request: pytest.FixtureRequest) -> Kafka:
    """Also the newest: for what hangs on how a broker handles transactions."""
    cluster: Kafka = request.getfixturevalue(request.param)
    return cluster


@pytest.fixture(params=["process", pytest.param("container", marks=pytest.mark.containers)])
def either_backend(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[KafkaStarter]:
    """Starts clusters of the test's own: first processes, then the same test on containers."""
    with ExitStack() as cleanup:

        def start(version: str = "4.3.0", nodes: int = 1) -> Kafka:
            cluster = start_brokers(request.param, version, tmp_path / unique("kafka"), nodes)
            cleanup.callback(cluster.stop)
            return cluster

        yield start


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
    for name in ("every_kafka", "any_kafka", "kafka_431", "kafka_39", "kafka"):
        if name in request.fixturenames:
            cluster: Kafka = request.getfixturevalue(name)
            return cluster.bootstrap
    raise LookupError("the test asks for no broker: name one of the fixtures that give one")
