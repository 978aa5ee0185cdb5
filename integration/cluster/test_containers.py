"""The real images and the compose file, and scenarios that run on both backends of brokers."""

from __future__ import annotations

import json
from collections import Counter

import pytest

from integration.conftest import KafkaStarter
from integration.support import engine
from integration.support.brokers import create_topic, produce, read_all
from integration.support.composed import Composed
from integration.support.session_cluster import JOB, exact_through_kills

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

RATE = 500


@pytest.fixture
def composed() -> Composed:
    """The cluster of the compose file, before its start."""
    if reason := engine.why_not():
        pytest.skip(reason)
    compose = engine.compose_command()
    if compose is None:
        pytest.skip("neither `docker compose` nor `docker-compose` is there")
    try:
        return Composed(compose)
    except engine.NoImageError as error:
        pytest.skip(str(error))


@pytest.mark.containers
@pytest.mark.slow
def test_the_composed_cluster_is_exact_when_its_containers_are_killed(composed: Composed) -> None:
    with composed as cluster:
        kills = ("taskmanager1", "jobmanager", "kafka2")
        took_s = exact_through_kills(cluster, kills, rate=RATE)
        print({name: round(seconds, 1) for name, seconds in took_s.items()})
        listed = json.loads(cluster.run("client", "list", "--json"))
        assert [job["state"] for job in listed["jobs"]] == ["FINISHED"]
        assert [manager["slots"] for manager in listed["task_managers"]] == [2, 2]
        assert cluster.run("checker").startswith("exact")
        assert JOB in cluster.run("client", "status", JOB)


def test_three_brokers_keep_records_and_address_when_one_is_killed(
    either_backend: KafkaStarter,
) -> None:
    kafka = either_backend(nodes=3)
    assert kafka.alive == [True, True, True]
    create_topic(kafka.bootstrap, "kept", partitions=3)
    produce(kafka.bootstrap, "kept", [(str(n).encode(), b"before") for n in range(100)])
    kafka.kill(1)
    assert kafka.alive == [True, False, True]
    produce(kafka.bootstrap, "kept", [(str(n).encode(), b"during") for n in range(100)])
    address = kafka.bootstrap
    kafka.restart(1)
    assert kafka.bootstrap == address
    assert kafka.alive == [True, True, True]
    values = Counter(record.value() for record in read_all(kafka.bootstrap, "kept"))
    assert values == {b"before": 100, b"during": 100}
