"""The fake Kafka keeps the contract that the real drivers keep on real brokers."""

from __future__ import annotations

from itertools import count

import pytest

from tests.contracts.kafka import KafkaContract, KafkaUnderTest
from tests.contracts.kafka_rights import RightsContract
from tests.contracts.kafka_topics import TopicContract
from tests.contracts.kafka_transactions import TransactionContract
from tests.contracts.kafka_visibility import VisibilityContract
from tests.drivers.kafka.clocks import SleepingClock
from tests.simulator.kafka.cluster import FakeKafka


def under_test(
    kafka: FakeKafka, clock: SleepingClock, *, user: str | None = None, version: str = "4.3.0"
) -> KafkaUnderTest:
    process = kafka.process("test", clock)
    settings = {} if user is None else {"sasl.username": user}
    numbers = count()

    def unique(name: str) -> str:
        return f"{name}-{user}-{next(numbers)}"

    def make_topic(partitions: int, prefix: str = "drivers") -> str:
        name = unique(prefix)
        kafka.create_topic(name, partitions)
        return name

    return KafkaUnderTest(
        version=version,
        drivers=process,
        settings=settings,
        make_topic=make_topic,
        delete_topic=kafka.delete_topic,
        create_again=lambda name: kafka.create_topic(name, 1),
        unique=unique,
        log=process.transaction_admin(settings),
        admin=process.kafka_admin(settings),
        clock=clock,
    )


class TestFakeKafka(KafkaContract, TransactionContract, VisibilityContract, TopicContract):
    @pytest.fixture(params=["3.9.1", "4.3.0"])
    def cluster(self, request: pytest.FixtureRequest) -> KafkaUnderTest:
        clock = SleepingClock()
        return under_test(FakeKafka(clock, version=request.param), clock, version=request.param)


class TestFakeRights(RightsContract):
    @pytest.fixture
    def clock(self) -> SleepingClock:
        return SleepingClock()

    @pytest.fixture
    def kafka(self, clock: SleepingClock) -> FakeKafka:
        made = FakeKafka(clock)
        made.rights.restrict("guest")
        made.rights.restrict("writer", ("WRITE", "drivers"), ("WRITE", "tidegate"))
        return made

    @pytest.fixture
    def guest(self, kafka: FakeKafka, clock: SleepingClock) -> KafkaUnderTest:
        return under_test(kafka, clock, user="guest")

    @pytest.fixture
    def writer(self, kafka: FakeKafka, clock: SleepingClock) -> KafkaUnderTest:
        return under_test(kafka, clock, user="writer")
