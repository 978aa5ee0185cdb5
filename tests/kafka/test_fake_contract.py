"""The fake Kafka keeps the contract that the real drivers keep on real brokers."""

from __future__ import annotations

from itertools import count

import pytest

from tests.contracts.kafka import KafkaContract, KafkaUnderTest
from tests.kafka.clocks import SleepingClock
from tidegate.testing.sim.kafka.cluster import FakeKafka


def under_test(kafka: FakeKafka, clock: SleepingClock) -> KafkaUnderTest:
    numbers = count()
    process = kafka.process("test", clock)

    def unique(name: str) -> str:
        return f"{name}-{next(numbers)}"

    def make_topic(partitions: int) -> str:
        name = unique("drivers")
        kafka.create_topic(name, partitions)
        return name

    return KafkaUnderTest(
        drivers=process,
        settings={},
        make_topic=make_topic,
        unique=unique,
        log=process.transaction_log({}),
        admin=process.kafka_admin({}),
        clock=clock,
    )


class TestFakeKafka(KafkaContract):
    @pytest.fixture
    def cluster(self) -> KafkaUnderTest:
        clock = SleepingClock()
        return under_test(FakeKafka(clock), clock)
