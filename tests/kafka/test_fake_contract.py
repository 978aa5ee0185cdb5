"""The fake Kafka keeps the contract that the real drivers keep on real brokers."""

from __future__ import annotations

from itertools import count

import pytest

from tests.contracts.kafka import KafkaContract, KafkaUnderTest
from tests.contracts.kafka_transactions import TransactionContract
from tests.contracts.kafka_visibility import VisibilityContract
from tests.kafka.clocks import SleepingClock
from tidegate.testing.sim.kafka.cluster import FakeKafka


def under_test(version: str) -> KafkaUnderTest:
    clock = SleepingClock()
    kafka = FakeKafka(clock, version=version)
    numbers = count()
    process = kafka.process("test", clock)

    def unique(name: str) -> str:
        return f"{name}-{next(numbers)}"

    def make_topic(partitions: int) -> str:
        name = unique("drivers")
        kafka.create_topic(name, partitions)
        return name

    return KafkaUnderTest(
        version=version,
        drivers=process,
        settings={},
        make_topic=make_topic,
        delete_topic=kafka.delete_topic,
        unique=unique,
        log=process.transaction_log({}),
        admin=process.kafka_admin({}),
        clock=clock,
    )


class TestFakeKafka(KafkaContract, TransactionContract, VisibilityContract):
    @pytest.fixture(params=["3.9.1", "4.3.0"])
    def cluster(self, request: pytest.FixtureRequest) -> KafkaUnderTest:
        return under_test(request.param)
