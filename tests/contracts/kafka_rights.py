"""The contract of rights: the error for a user without them, and the rights that writing needs.

A test class inherits it and gives two users of one cluster with an authorizer. `guest` may do
nothing. `writer` may WRITE to topics that begin with `drivers` and to transactional ids that begin
with `tidegate`. The `make_topic` of both belongs to a third user, who may create topics.
"""

from __future__ import annotations

import pytest

from tests.contracts.kafka import TIMEOUT_S, KafkaUnderTest, write
from tidegate.errors import KafkaError, KafkaNotAuthorisedError, RefusedError, TransactionError
from tidegate.ports.kafka import EndTxnResult, TransactionState
from tidegate.stream_elements import TopicPartition


class RightsContract:
    """Inherit, and override the fixtures `guest` and `writer`."""

    @pytest.fixture
    def guest(self) -> KafkaUnderTest:
        raise NotImplementedError

    @pytest.fixture
    def writer(self) -> KafkaUnderTest:
        raise NotImplementedError

    def test_error_names_the_missing_right_or_the_topic(self, guest: KafkaUnderTest) -> None:
        topic, name = guest.make_topic(1), guest.new_id()
        with pytest.raises(RefusedError, match=topic):
            guest.admin.partitions(topic)
        with pytest.raises(KafkaNotAuthorisedError, match="transactional ids with the prefix"):
            guest.producer(name)
        with pytest.raises(KafkaNotAuthorisedError, match="WRITE"):
            guest.log.fence(name)
        with pytest.raises(KafkaNotAuthorisedError, match="WRITE"):
            guest.log.describe(name)
        assert guest.log.end(name, 1, 1, commit=True) is EndTxnResult.NOT_AUTHORISED
        with pytest.raises(TransactionError, match=topic):
            write(guest.producer(None), topic, b"a")
        self.assert_not_read(guest, topic)

    def test_write_right_is_enough_for_a_transaction(
        self, writer: KafkaUnderTest, guest: KafkaUnderTest
    ) -> None:
        topic, name = writer.make_topic(1), writer.new_id()
        rights = writer.admin.rights(topic)
        assert rights is not None
        assert "WRITE" in rights
        assert "READ" not in rights
        producer = writer.producer(name)
        producer.begin()
        producer.send(topic, [b"a"], None)
        producer.flush(TIMEOUT_S)
        assert writer.description(name).state is TransactionState.ONGOING
        assert writer.log.list(name) == {name: TransactionState.ONGOING}
        assert guest.log.list(name) == {}, "ids that may not be described are left out"
        writer.commit(name)
        assert writer.admin.latest([TopicPartition(topic, 0)]) == {TopicPartition(topic, 0): 2}
        writer.log.fence(name)
        assert writer.description(name).state is TransactionState.EMPTY
        self.assert_not_read(writer, topic)

    def test_a_topic_that_may_not_be_written_leaves_the_transaction_empty(
        self, writer: KafkaUnderTest
    ) -> None:
        name, forbidden = writer.new_id(), writer.make_topic(1, "closed")
        producer = writer.producer(name)
        producer.begin()
        with pytest.raises(TransactionError, match=rf"{forbidden}.*(?i:authori[sz]ation)"):
            write(producer, forbidden, b"a")
        assert writer.description(name).state is TransactionState.EMPTY

    def assert_not_read(self, cluster: KafkaUnderTest, topic: str) -> None:
        reader = cluster.reader(topic)
        with pytest.raises(KafkaError, match=f"not allow .* {topic}"):
            cluster.eventually(lambda: reader.poll(10, 0.5), bool)
        reader.close()
