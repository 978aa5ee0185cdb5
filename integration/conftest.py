"""Real brokers for all integration tests. One broker per version starts at its first use.

There are two backends. Processes are the default and need only this repository. Containers are used
with `TIDEGATE_TEST_BROKERS=container`. Broker processes die with the test process, also when it is
killed. Containers are removed when the test process ends, or when the next one starts. Tests share
the brokers, so each test uses its own topics (`topic_factory`), consumer groups, jobs and
transactional ids. A test that stops or kills a broker starts its own. `either_backend` runs such a
test on both backends.
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

from integration.support.brokers import Kafka, TopicFactory, create_topic, unique
from tidegate.drivers.kafka.embedded import NO_PROPERTIES, EmbeddedKafka

pytest_plugins = ["integration.support.failures"]


@pytest.fixture(scope="session", autouse=True)
def _collected() -> Iterator[None]:
    """Collect garbage at the end, without ResourceWarnings.

    kafka-python leaves sockets of failed connections to the garbage collector. The warnings about
    the last of them would come after all tests, where no test's filter applies, and fail the run.
    """
    yield
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        gc.collect()


@pytest.fixture(scope="session", autouse=True)
def _interruptible() -> None:
    """Restore the default SIGINT handler.

    A shell starts background processes with SIGINT ignored. The test process would inherit that,
    and so would the processes that tests start and then interrupt.
    """
    signal.signal(signal.SIGINT, signal.default_int_handler)


NEVER_FENCED = {
    "broker.session.timeout.ms": "60000",
    "broker.heartbeat.interval.ms": "10000",
    "metadata.max.idle.interval.ms": "0",
}
"""Properties of the brokers that no test kills.

If the machine pauses, the only broker of a cluster must not be fenced, so its session is long.
Brokers that tests kill have short sessions: a killed broker can register again only after its
session has ended. Nine of these brokers wait for tests at the same time. An idle one therefore
sends few heartbeats and writes no empty records, which halves its CPU use.
"""


@pytest.hookimpl(tryfirst=True)  # before `-m` chooses by the marks
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Leave to `make test-all` each test on another version than Kafka 4.3.0, and each case but
    the first one of a test that is marked `once`.
    """
    begun: set[str] = set()
    for item in items:
        test = item.nodeid.partition("[")[0]
        if test in begun and item.get_closest_marker("once"):
            item.add_marker(pytest.mark.slow)
        begun.add(test)
        drawn = item.callspec.params.values() if hasattr(item, "callspec") else ()
        needs = {*getattr(item, "fixturenames", ()), *map(str, drawn)}
        if needs & {"kafka_39", "3.9.1"}:
            item.add_marker(pytest.mark.kafka_39)
        if needs & {"kafka_39", "3.9.1", "kafka_431"}:
            item.add_marker(pytest.mark.slow)


BACKENDS = ("process", "container")
BACKEND = environ.get("TIDEGATE_TEST_BROKERS", "process")

KafkaStarter = Callable[..., Kafka]
"""The type of the fixture `either_backend`: `start(version="4.3.0", nodes=1)`."""


def start_brokers(
    backend: str,
    version: str,
    directory: Path,
    nodes: int = 1,
    properties: Mapping[str, str] = NO_PROPERTIES,
) -> Kafka:
    """Start a cluster on a backend. Skip the test, with the reason, if there is no engine."""
    if backend not in BACKENDS:
        pytest.fail(f"TIDEGATE_TEST_BROKERS is {backend!r}, not one of {', '.join(BACKENDS)}")
    if backend == "process":
        return EmbeddedKafka.start(
            version, directory=directory, nodes=nodes, owned=True, properties=properties
        )
    from integration.support import engine

    if reason := engine.why_not():
        pytest.skip(reason)
    from integration.support.container_kafka import ContainerKafka

    return ContainerKafka.start(version, nodes=nodes, properties=properties)


@pytest.fixture(scope="session")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kafka]:
    """Kafka 4.3.0, one node."""
    yield from _one("4.3.0", tmp_path_factory)


@pytest.fixture(scope="session")
def kafka_39(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kafka]:
    """Kafka 3.9.1, one node: the oldest supported version."""
    yield from _one("3.9.1", tmp_path_factory)


@pytest.fixture(scope="session")
def kafka_431(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kafka]:
    """Kafka 4.3.1, one node: the newest tested version."""
    yield from _one("4.3.1", tmp_path_factory)


soak_on_39 = pytest.mark.parametrize(
    "any_kafka",
    ["kafka", pytest.param("kafka_39", marks=pytest.mark.soak)],
    indirect=True,
)
"""Mark of a long test with `any_kafka` that does not depend on the version of the broker.
`make test` runs it on 4.3.0, and `-m soak` on 3.9.1. In `make test-all`, a sample of the kill
matrix (`integration/exactly_once/test_kill_matrix.py`) attacks processes on both versions.
"""


def _one(version: str, folders: pytest.TempPathFactory) -> Iterator[Kafka]:
    folder = folders.mktemp(f"kafka-{version}")
    cluster = start_brokers(BACKEND, version, folder, properties=NEVER_FENCED)
    try:
        yield cluster
    finally:
        cluster.stop()


@pytest.fixture(params=["kafka", "kafka_39"])
def any_kafka(request: pytest.FixtureRequest) -> Kafka:
    """Kafka 4.3.0, then 3.9.1: for a test that must pass on both."""
    cluster: Kafka = request.getfixturevalue(request.param)
    return cluster


@pytest.fixture(params=["kafka", "kafka_39", "kafka_431"])
def every_kafka(request: pytest.FixtureRequest) -> Kafka:
    """Kafka 4.3.0, 3.9.1 and 4.3.1: for tests that depend on how brokers handle transactions."""
    cluster: Kafka = request.getfixturevalue(request.param)
    return cluster


@pytest.fixture(
    params=[
        "process",
        pytest.param("container", marks=(pytest.mark.slow, pytest.mark.containers)),
    ]
)
def either_backend(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[KafkaStarter]:
    """A function that starts clusters for one test. The test runs on processes, then on
    containers.
    """
    with ExitStack() as cleanup:

        def start(version: str = "4.3.0", nodes: int = 1) -> Kafka:
            cluster = start_brokers(request.param, version, tmp_path / unique("kafka"), nodes)
            cleanup.callback(cluster.stop)
            return cluster

        yield start


@pytest.fixture
def topic_factory(request: pytest.FixtureRequest) -> TopicFactory:
    """A function that makes topics with unique names, on the broker that the test uses."""

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
