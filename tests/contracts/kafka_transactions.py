"""The contract of transactions, table by table: what brokers answer in every state, and what their
readers see.

A test class inherits it together with `KafkaContract` and gives a `cluster`. The behaviour was
measured first on Apache Kafka 3.9.1 and 4.3.0. No test has a broker of its own, so ids, topics and
groups are fresh.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.contracts.kafka import TIMEOUT_S, TRANSACTION_TIMEOUT_MS, KafkaUnderTest, write
from tidegate.errors import RefusedError, TransactionError
from tidegate.ids import TransactionalId
from tidegate.ports.kafka import EndTxnResult, Producer, TransactionDescription, TransactionState
from tidegate.stream_elements import TopicPartition

EMPTY, ONGOING = TransactionState.EMPTY, TransactionState.ONGOING
COMMITTED, ABORTED = TransactionState.COMPLETE_COMMIT, TransactionState.COMPLETE_ABORT
ACCEPTED, REFUSED, RETRY = EndTxnResult.ACCEPTED, EndTxnResult.REFUSED, EndTxnResult.RETRY


def opened(
    cluster: KafkaUnderTest,
    topic: str,
    *values: bytes | None,
    timeout_ms: int = TRANSACTION_TIMEOUT_MS,
) -> tuple[TransactionalId, Producer]:
    """A flushed transaction."""
    name = cluster.new_id()
    producer = cluster.drivers.producer(cluster.settings, name, timeout_ms)
    producer.begin()
    write(producer, topic, *(values or (b"a",)))
    return name, producer


def end(cluster: KafkaUnderTest, name: TransactionalId, *, commit: bool) -> TransactionDescription:
    """End the present transaction of an id, as often as it takes, and wait for its markers."""
    description = cluster.description(name)
    cluster.eventually(
        lambda: cluster.log.end(name, description.producer_id, description.epoch, commit=commit),
        lambda outcome: outcome is not RETRY,
    )
    return cluster.settled(name)


def keeps_start(cluster: KafkaUnderTest) -> bool:
    """Whether an id that is initialised again is still described with the start of its last
    transaction: so before Kafka 4.
    """
    return cluster.version.startswith("3.")


def in_state(cluster: KafkaUnderTest, topic: str, state: TransactionState) -> TransactionalId:
    """An id in a state, by the shortest way."""
    if state is EMPTY:
        name = cluster.new_id()
        cluster.producer(name)
        return name
    name, _ = opened(cluster, topic)
    if state is not ONGOING:
        end(cluster, name, commit=state is COMMITTED)
    return name


class TransactionContract:
    """Inherit, and override the fixture `cluster`."""

    @pytest.fixture
    def cluster(self) -> KafkaUnderTest:
        raise NotImplementedError

    # --- EndTxn, by the state that it meets ---

    @pytest.mark.parametrize(
        ("state", "commit", "abort"),
        [
            (EMPTY, REFUSED, REFUSED),
            (COMMITTED, ACCEPTED, REFUSED),
            (ABORTED, REFUSED, ACCEPTED),
        ],
    )
    def test_end_without_an_open_transaction_changes_nothing(
        self,
        cluster: KafkaUnderTest,
        state: TransactionState,
        commit: EndTxnResult,
        abort: EndTxnResult,
    ) -> None:
        topic = cluster.make_topic(1)
        name = in_state(cluster, topic, state)
        description = cluster.description(name)
        offsets = cluster.admin.latest([TopicPartition(topic, 0)])
        of = (description.producer_id, description.epoch)
        assert cluster.log.end(name, *of, commit=True) is commit
        assert cluster.log.end(name, *of, commit=False) is abort
        assert cluster.log.end(name, *of, commit=True) is commit
        assert cluster.description(name) == description
        assert cluster.admin.latest([TopicPartition(topic, 0)]) == offsets, "no marker was written"

    def test_each_initialisation_of_an_empty_id_raises_its_epoch_by_one(
        self, cluster: KafkaUnderTest
    ) -> None:
        """The producers of a job's claims rely on it (`commit/claim_producer.py`)."""
        name = cluster.new_id()
        assert cluster.log.describe(name) is None
        cluster.log.fence(name)
        first = cluster.description(name)
        assert (first.state, first.epoch) == (EMPTY, 0)
        for epoch in (1, 2, 3):
            cluster.log.fence(name)
            found = cluster.description(name)
            assert (found.state, found.producer_id, found.epoch) == (
                EMPTY,
                first.producer_id,
                epoch,
            )

    @pytest.mark.parametrize("state", [EMPTY, ONGOING, COMMITTED, ABORTED])
    def test_an_end_by_another_epoch_or_producer_is_refused_in_every_state(
        self, cluster: KafkaUnderTest, state: TransactionState
    ) -> None:
        topic = cluster.make_topic(1)
        name = in_state(cluster, topic, state)
        cluster.log.fence(name)
        cluster.producer(name)  # so that there is an epoch below and one above
        if state is not EMPTY:
            producer = cluster.producer(name)
            producer.begin()
            write(producer, topic, b"a")
        if state in {COMMITTED, ABORTED}:
            end(cluster, name, commit=state is COMMITTED)
        description = cluster.description(name)
        assert description.state is state
        for commit in (True, False):
            for producer_id, epoch in (
                (description.producer_id, description.epoch - 1),
                (description.producer_id, description.epoch + 1),
                (description.producer_id - 1, description.epoch),
                (description.producer_id + 1_000_000, description.epoch),
            ):
                outcome = cluster.log.end(name, producer_id, epoch, commit=commit)
                assert outcome is REFUSED, (producer_id, epoch, commit)
            assert cluster.log.end(cluster.new_id(), 1, 0, commit=commit) is REFUSED
        assert cluster.description(name) == description

    def test_repeated_end_is_accepted_and_the_opposite_end_is_refused(
        self, cluster: KafkaUnderTest
    ) -> None:
        topic = cluster.make_topic(1)
        for commit in (True, False):
            name, _ = opened(cluster, topic, b"%d" % commit)
            description = cluster.description(name)
            of = (description.producer_id, description.epoch)
            first, *others = (cluster.log.end(name, *of, commit=commit) for _ in range(6))
            assert first is ACCEPTED
            assert set(others) <= {ACCEPTED, RETRY}, "busy with the markers, or done"
            while (against := cluster.log.end(name, *of, commit=not commit)) is RETRY:
                pass  # the decision is still being written down
            assert against is REFUSED, "the decision stands"
            assert cluster.settled(name).state is (COMMITTED if commit else ABORTED)
            assert cluster.log.end(name, *of, commit=commit) is ACCEPTED
        assert cluster.read(topic) == [[b"1"]]

    # --- Describe ---

    def test_description_follows_every_state_of_a_transaction(
        self, cluster: KafkaUnderTest
    ) -> None:
        topic, other, name = cluster.make_topic(1), cluster.make_topic(1), cluster.new_id()
        cluster.log.fence(name)
        assert cluster.description(name).state is EMPTY, "fencing an unknown id makes it known"
        assert (cluster.description(name).epoch, cluster.description(name).start_ms) == (0, -1)
        producer = cluster.producer(name)
        made = cluster.description(name)
        assert (made.state, made.epoch, made.start_ms) == (EMPTY, 1, -1)
        producer.begin()
        producer.flush(TIMEOUT_S)
        assert cluster.description(name) == made, "nothing was written: nothing is open"
        of = (made.producer_id, made.epoch)
        assert cluster.log.end(name, *of, commit=True) is REFUSED
        write(producer, topic, b"a")
        ongoing = cluster.description(name)
        assert ongoing.state is ONGOING, "and the same producer can still write"
        assert (ongoing.producer_id, ongoing.epoch) == of
        cluster.clock.sleep(0.02)
        write(producer, other, b"b")
        assert cluster.description(name) == ongoing, "its start is the first write's"
        committed = end(cluster, name, commit=True)
        assert committed.state is COMMITTED
        assert (committed.producer_id, committed.epoch) == of
        assert committed.start_ms == ongoing.start_ms
        cluster.log.fence(name)
        fenced = cluster.description(name)
        assert (fenced.state, fenced.producer_id, fenced.epoch) == (EMPTY, made.producer_id, 2)
        assert fenced.start_ms == (ongoing.start_ms if keeps_start(cluster) else -1)

    def test_each_transactional_id_has_its_own_producer_id(self, cluster: KafkaUnderTest) -> None:
        names = [cluster.new_id() for _ in range(3)]
        for name in names:
            cluster.log.fence(name)
        assert len({cluster.description(name).producer_id for name in names}) == 3

    # --- InitProducerId, by the state that it meets ---

    @pytest.mark.parametrize("by", ["fence", "producer"])
    @pytest.mark.parametrize(
        ("state", "step"), [(EMPTY, 1), (ONGOING, 2), (COMMITTED, 1), (ABORTED, 1)]
    )
    def test_initialising_a_transactional_id_raises_its_epoch(
        self, cluster: KafkaUnderTest, state: TransactionState, step: int, by: str
    ) -> None:
        topic = cluster.make_topic(1)
        name = in_state(cluster, topic, state)
        before = cluster.description(name)
        assert before.state is state
        initialise: dict[str, Callable[[TransactionalId], object]] = {
            "fence": cluster.log.fence,
            "producer": cluster.producer,
        }
        initialise[by](name)
        after = cluster.description(name)
        assert after.state is EMPTY
        assert (after.producer_id, after.epoch) == (before.producer_id, before.epoch + step)
        assert after.start_ms == (before.start_ms if keeps_start(cluster) else -1)
        for commit in (True, False):
            outcome = cluster.log.end(name, before.producer_id, before.epoch, commit=commit)
            assert outcome is REFUSED
        assert cluster.read(topic) == [[b"a"] if state is COMMITTED else []]

    def test_transaction_timeout_above_the_maximum_of_the_brokers_is_refused(
        self, cluster: KafkaUnderTest
    ) -> None:
        maximum = cluster.admin.transaction_max_timeout_ms()
        assert maximum is not None
        name = cluster.new_id()
        with pytest.raises(RefusedError):
            cluster.drivers.producer(cluster.settings, name, maximum + 1)
        assert cluster.log.describe(name) is None
        cluster.drivers.producer(cluster.settings, name, maximum)
        assert cluster.description(name).state is EMPTY

    # --- timeouts ---

    def test_transaction_is_aborted_by_the_brokers_after_its_timeout(
        self, cluster: KafkaUnderTest
    ) -> None:
        topic, other = cluster.make_topic(1), cluster.make_topic(1)
        patient, _ = opened(cluster, other)
        idle = cluster.new_id()
        warm = cluster.drivers.producer(cluster.settings, idle, 2_000)
        of_idle = cluster.description(idle)
        name, producer = opened(cluster, topic, timeout_ms=2_000)
        before = cluster.description(name)
        assert before.state is ONGOING
        aborted = cluster.eventually(
            lambda: cluster.description(name), lambda description: description.state is ABORTED
        )
        assert (aborted.producer_id, aborted.epoch, aborted.start_ms) == (
            before.producer_id,
            before.epoch + 1,
            before.start_ms,
        )
        for commit in (True, False):
            outcome = cluster.log.end(name, before.producer_id, before.epoch, commit=commit)
            assert outcome is REFUSED
        assert cluster.log.end(name, aborted.producer_id, aborted.epoch, commit=True) is REFUSED
        assert cluster.read(topic) == [[]]
        with pytest.raises(TransactionError):
            write(producer, topic, b"late")
        cluster.log.fence(name)
        assert cluster.description(name).epoch == aborted.epoch + 1
        assert cluster.description(patient).state is ONGOING
        assert cluster.description(idle) == of_idle, "only what is open times out"
        warm.begin()
        write(warm, topic, b"b")
        assert end(cluster, idle, commit=True).state is COMMITTED
        assert cluster.read(topic) == [[b"b"]]
        cluster.log.fence(patient)

    # --- zombies ---

    def test_record_written_after_the_end_of_its_transaction_is_refused(
        self, cluster: KafkaUnderTest
    ) -> None:
        """Its epoch is still right, but the partition is in no transaction of it."""
        for commit in (True, False):
            topic = cluster.make_topic(1)
            name, producer = opened(cluster, topic)
            ended = end(cluster, name, commit=commit)
            with pytest.raises(TransactionError):
                write(producer, topic, b"late")
            assert cluster.description(name) == ended
            cluster.log.fence(name)
            assert cluster.read(topic) == [[b"a"] if commit else []]

    def test_a_used_producer_opens_another_transaction_under_the_same_epoch(
        self, cluster: KafkaUnderTest
    ) -> None:
        """Shows why each transaction has its own producer: two of one producer differ only in start
        time.
        """
        first, second = cluster.make_topic(1), cluster.make_topic(1)
        name, producer = opened(cluster, first)
        ended = end(cluster, name, commit=True)
        cluster.clock.sleep(0.02)
        write(producer, second, b"another")
        again = cluster.description(name)
        assert again.state is ONGOING
        assert (again.producer_id, again.epoch) == (ended.producer_id, ended.epoch)
        assert again.start_ms > ended.start_ms
        cluster.log.fence(name)
        assert (cluster.read(first), cluster.read(second)) == ([[b"a"]], [[]])

    def test_fenced_producer_that_had_written_nothing_opens_no_transaction(
        self, cluster: KafkaUnderTest
    ) -> None:
        topic, name = cluster.make_topic(1), cluster.new_id()
        zombie = cluster.producer(name)
        zombie.begin()
        successor = cluster.producer(name)
        description = cluster.description(name)
        with pytest.raises(TransactionError):
            write(zombie, topic, b"late")
        assert cluster.description(name) == description
        successor.begin()
        write(successor, topic, b"a")
        with pytest.raises(TransactionError):
            write(zombie, topic, b"later")
        end(cluster, name, commit=True)
        assert cluster.read(topic) == [[b"a"]]

    def test_fenced_producer_writes_nothing_into_the_transaction_of_its_successor(
        self, cluster: KafkaUnderTest
    ) -> None:
        """Both write to one partition, and have one producer id."""
        topic = cluster.make_topic(1)
        name, zombie = opened(cluster, topic, b"a")
        successor = cluster.producer(name)
        successor.begin()
        write(successor, topic, b"b")
        with pytest.raises(TransactionError):
            write(zombie, topic, b"late")
        end(cluster, name, commit=True)
        assert cluster.read(topic) == [[b"b"]]

    # --- producers ---

    def test_producer_refuses_to_begin_a_second_transaction(self, cluster: KafkaUnderTest) -> None:
        topic, name = cluster.make_topic(1), cluster.new_id()
        producer = cluster.producer(name)
        producer.begin()
        write(producer, topic, b"a")
        with pytest.raises(TransactionError):
            producer.begin()
        with pytest.raises(TransactionError):
            producer.flush(TIMEOUT_S)
        assert cluster.description(name).state is ONGOING
        cluster.log.fence(name)

    def test_producer_refuses_to_send_outside_a_transaction(self, cluster: KafkaUnderTest) -> None:
        topic, name = cluster.make_topic(1), cluster.new_id()
        producer = cluster.producer(name)
        with pytest.raises(TransactionError, match=topic):
            producer.send(topic, [b"a"], None)
        with pytest.raises(TransactionError, match=topic):
            producer.begin()
        assert cluster.description(name).state is EMPTY
        assert cluster.read(topic) == [[]]

    # --- listing ---

    def test_list_returns_transactions_in_every_state_or_only_unfinished_ones(
        self, cluster: KafkaUnderTest
    ) -> None:
        topic, before = cluster.make_topic(1), cluster.log.list("tidegate.job")
        made = {
            in_state(cluster, topic, state): state for state in (EMPTY, ONGOING, COMMITTED, ABORTED)
        }
        fenced = in_state(cluster, topic, ONGOING)
        cluster.log.fence(fenced)
        listed = cluster.log.list("tidegate.job")
        assert {name: listed[name] for name in made} == made
        assert listed[fenced] is EMPTY
        assert before.keys() <= listed.keys()
        unfinished = cluster.log.list("tidegate.job", unfinished=True)
        assert unfinished == {
            name: state for name, state in listed.items() if state in {EMPTY, ONGOING}
        }
        assert made.keys() - unfinished.keys() == {
            name for name, state in made.items() if state in {COMMITTED, ABORTED}
        }
        for name, state in made.items():
            assert cluster.log.list(name)[name] is state
            if state is ONGOING:
                cluster.log.fence(name)

    # --- topics ---

    def test_transaction_commits_although_one_of_its_topics_was_deleted(
        self, cluster: KafkaUnderTest
    ) -> None:
        kept, gone, name = cluster.make_topic(1), cluster.make_topic(1), cluster.new_id()
        producer = cluster.producer(name)
        producer.begin()
        write(producer, kept, b"a")
        write(producer, gone, b"b")
        cluster.delete_topic(gone)
        assert end(cluster, name, commit=True).state is COMMITTED
        assert cluster.read(kept) == [[b"a"]]

    def test_write_to_a_deleted_topic_fails_the_producer(self, cluster: KafkaUnderTest) -> None:
        topic = cluster.make_topic(1)
        settings = {**cluster.settings, "topic.metadata.propagation.max.ms": "1000"}
        producer = cluster.drivers.producer(settings, None, 0)
        write(producer, topic, b"a")
        cluster.delete_topic(topic)
        with pytest.raises(TransactionError, match=topic):
            cluster.eventually(lambda: write(producer, topic, b"b"), lambda _: False)

    def test_rights_on_a_topic_have_the_names_of_kafka(self, cluster: KafkaUnderTest) -> None:
        rights = cluster.admin.rights(cluster.make_topic(1))
        assert rights is not None
        assert {"READ", "WRITE", "DESCRIBE"} <= rights
