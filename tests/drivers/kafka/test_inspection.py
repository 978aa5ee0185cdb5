"""An inspector without a broker: what it sends, whom it asks, and what it says of who is silent.

The client's manager is replaced by a script of answers per broker; the real exchange is in
integration/cli/test_txn.py.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from types import SimpleNamespace
from typing import Any, cast

import kafka.errors as theirs
import msgspec
import pytest
from kafka.protocol.admin.transactions import (
    DescribeProducersRequest,
    DescribeTransactionsRequest,
    ListTransactionsRequest,
)
from kafka.protocol.consumer.offsets import ListOffsetsRequest
from kafka.protocol.metadata import MetadataRequest
from kafka.protocol.producer.transaction import InitProducerIdRequest, WriteTxnMarkersRequest

from tidegate.drivers.kafka import coordinator_connection, inspection, inspection_wire
from tidegate.drivers.kafka.inspection import KafkaTransactionInspector
from tidegate.errors import (
    KafkaError,
    KafkaNotAuthorisedError,
    KafkaUnavailableError,
    RefusedError,
)
from tidegate.ids import TransactionalId
from tidegate.ports.inspection import (
    AbortResult,
    PartitionEndOffsets,
    ProducerState,
    Transaction,
    no_progress,
)
from tidegate.ports.kafka import TransactionState
from tidegate.stream_elements import TopicPartition

Answers = dict[type, Callable[[Any, int | None], Any]]
OK = 0
A, B, C = TopicPartition("orders", 0), TopicPartition("orders", 1), TopicPartition("totals", 0)
KNOWN = Transaction(
    transactional_id=TransactionalId("app"),
    coordinator=1,
    state=TransactionState.ONGOING,
    producer_id=7,
    epoch=2,
    start_ms=99,
    timeout_ms=900_000,
    partitions=(A,),
)


class Cluster:
    """Stands for the client and its manager: two brokers, and an answer per kind of request."""

    def __init__(self, answers: Answers) -> None:
        self.answers: Answers = {MetadataRequest: lambda _request, _node: metadata(), **answers}
        self.sent: list[tuple[int | None, Any]] = []
        self.cluster = SimpleNamespace(_coordinators={}, cluster_id="c")
        self._manager = self

    async def _find_coordinator_ids(self, names: list[str], key_type: Any) -> dict[str, int]:
        return dict.fromkeys(names, 2)

    async def send(self, request: Any, node_id: int | None = None) -> Any:
        self.sent.append((node_id, request))
        answer = self.answers[type(request)](request, node_id)
        if isinstance(answer, Exception):
            raise answer
        return answer

    def run(self, action: Callable[..., Coroutine[Any, Any, Any]], *args: Any) -> Any:
        return asyncio.run(action(*args))

    def asked(self, kind: type) -> list[int | None]:
        return [node for node, request in self.sent if isinstance(request, kind)]


def metadata(
    leaders: tuple[int, ...] = (1, 2), brokers: tuple[int, ...] = (1, 2), error: int = OK
) -> SimpleNamespace:
    parts = [
        SimpleNamespace(partition_index=index, leader_id=leader, leader_epoch=5)
        for index, leader in enumerate(leaders)
    ]
    return SimpleNamespace(
        brokers=[SimpleNamespace(node_id=id_, host="h", port=id_) for id_ in brokers],
        topics=[SimpleNamespace(name="orders", error_code=error, partitions=parts)],
    )


def listed(*names: str, error: int = OK) -> SimpleNamespace:
    rows = [SimpleNamespace(transactional_id=name) for name in names]
    return SimpleNamespace(error_code=error, transaction_states=rows)


def described(request: Any, _node: int | None) -> SimpleNamespace:
    rows = [
        SimpleNamespace(
            error_code=theirs.TransactionalIdNotFoundError.errno if name == "gone" else OK,
            transactional_id=name,
            transaction_state="Ongoing",
            producer_id=7,
            producer_epoch=2,
            transaction_start_time_ms=99,
            transaction_timeout_ms=900_000,
            topics=[SimpleNamespace(topic="orders", partitions=[0])],
        )
        for name in request.transactional_ids
    ]
    return SimpleNamespace(transaction_states=rows)


def by_broker(**answers: Any) -> Callable[[Any, int | None], Any]:
    return lambda _request, node: answers[f"b{node}"]


def partition_answer(error: int = OK) -> Callable[[Any, int | None], Any]:
    def answer(request: Any, _node: int | None) -> SimpleNamespace:
        rows = [
            SimpleNamespace(
                producer_id=id_,
                producer_epoch=0,
                coordinator_epoch=-1,
                last_timestamp=1,
                current_txn_start_offset=start,
            )
            for id_, start in ((7, 40), (8, -1), (9, 12))
        ]
        return SimpleNamespace(
            topics=[
                SimpleNamespace(
                    name=topic.name,
                    partitions=[
                        SimpleNamespace(partition_index=n, error_code=error, active_producers=rows)
                        for n in topic.partition_indexes
                    ],
                )
                for topic in request.topics
            ]
        )

    return answer


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(coordinator_connection, "RETRY_PAUSE_S", (0.0, 0.0))
    monkeypatch.setattr(inspection, "TRY_PAUSE_S", 0.0)


def inspector_of(cluster: Cluster, deadline_s: float = 0.05) -> KafkaTransactionInspector:
    made = KafkaTransactionInspector({"bootstrap.servers": "broker:1"}, deadline_s=deadline_s)
    made._connection._admin = cast("Any", cluster)
    return made


class TestSurvey:
    def test_survey_asks_every_coordinator_for_its_transactions(self) -> None:
        cluster = Cluster(
            {
                ListTransactionsRequest: by_broker(b1=listed("b", "other"), b2=listed("a", "gone")),
                DescribeTransactionsRequest: described,
            }
        )
        steps: list[tuple[str, int, int]] = []
        found = inspector_of(cluster).find_transactions(
            states=[TransactionState.ONGOING],
            producer_ids=[7],
            progress=lambda *step: steps.append(step),
        )
        assert found.unreachable == ()
        assert [each.transactional_id for each in found.transactions] == ["a", "b", "other"]
        assert [each.coordinator for each in found.transactions] == [2, 1, 1]
        assert found.transactions[0].partitions == (A,)
        (_, request), *_ = [s for s in cluster.sent if isinstance(s[1], ListTransactionsRequest)]
        assert (request.state_filters, request.producer_id_filters) == (["Ongoing"], [7])
        assert steps == [("coordinators", done, 2) for done in range(3)]

    def test_survey_describes_only_ids_with_the_prefix_in_parts(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(inspection_wire, "IDS_AT_ONCE", 2)
        names = [f"app-{number}" for number in range(5)]
        cluster = Cluster(
            {
                ListTransactionsRequest: by_broker(b1=listed(*names, "other"), b2=listed()),
                DescribeTransactionsRequest: described,
            }
        )
        found = inspector_of(cluster).find_transactions(prefix="app-", progress=no_progress)
        assert [each.transactional_id for each in found.transactions] == names
        assert cluster.asked(DescribeTransactionsRequest) == [1, 1, 1]

    @pytest.mark.parametrize(
        ("silent", "tries"),
        [
            (theirs.KafkaConnectionError("refused"), inspection.TRIES),
            (listed(error=theirs.CoordinatorLoadInProgressError.errno), inspection.TRIES),
            (theirs.KafkaTimeoutError("10 s"), 1),
        ],
    )
    def test_survey_reports_a_silent_broker_and_the_transactions_of_the_others(
        self, silent: Any, tries: int
    ) -> None:
        cluster = Cluster(
            {
                ListTransactionsRequest: by_broker(b1=silent, b2=listed("a")),
                DescribeTransactionsRequest: described,
            }
        )
        found = inspector_of(cluster).find_transactions(progress=no_progress)
        assert [each.transactional_id for each in found.transactions] == ["a"]
        (unreachable,) = found.unreachable
        assert "broker 1 at h:1" in unreachable
        assert cluster.asked(ListTransactionsRequest) == [1] * tries + [2]

    def test_survey_reports_coordinator_partitions_without_a_leader(self) -> None:
        cluster = Cluster(
            {
                MetadataRequest: lambda _r, _n: metadata(leaders=(1, -1, 3)),
                ListTransactionsRequest: by_broker(b1=listed(), b2=listed()),
            }
        )
        found = inspector_of(cluster).find_transactions(progress=no_progress)
        assert found.unreachable == (
            "2 of 3 partitions of __transaction_state: they have no leader",
        )

    def test_survey_is_repeated_while_coordinators_move(self) -> None:
        views = iter([(1, 2), (2, 2), (2, 2)])
        cluster = Cluster(
            {
                MetadataRequest: lambda _r, _n: metadata(leaders=next(views)),
                ListTransactionsRequest: by_broker(b1=listed(), b2=listed("a")),
                DescribeTransactionsRequest: described,
            }
        )
        found = inspector_of(cluster).find_transactions(progress=no_progress)
        assert found.unreachable == ()
        assert cluster.asked(ListTransactionsRequest) == [1, 2, 1, 2]

    def test_survey_is_incomplete_if_coordinators_never_stop_moving(self) -> None:
        views = iter([(1, 2), (2, 1)] * inspection.TRIES)
        cluster = Cluster(
            {
                MetadataRequest: lambda _r, _n: metadata(leaders=next(views)),
                ListTransactionsRequest: by_broker(b1=listed(), b2=listed()),
            }
        )
        assert inspector_of(cluster).find_transactions(progress=no_progress).unreachable

    def test_survey_raises_an_authorisation_error(self) -> None:
        error = theirs.ClusterAuthorizationFailedError.errno
        cluster = Cluster({ListTransactionsRequest: by_broker(b1=listed(error=error), b2=listed())})
        with pytest.raises(KafkaNotAuthorisedError, match="DESCRIBE"):
            inspector_of(cluster).find_transactions(progress=no_progress)


def test_describe_returns_none_for_an_unknown_transactional_id() -> None:
    cluster = Cluster({DescribeTransactionsRequest: described})
    inspector = inspector_of(cluster)
    assert inspector.describe(TransactionalId("gone")) is None
    found = inspector.describe(TransactionalId("app"))
    assert found == msgspec.structs.replace(KNOWN, coordinator=2)


class TestPartitions:
    def test_partitions_returns_the_leader_of_each_partition(self) -> None:
        assert inspector_of(Cluster({})).partitions("orders") == {A: 1, B: 2}

    def test_partitions_of_a_missing_topic_are_refused_with_its_name(self) -> None:
        error = theirs.UnknownTopicOrPartitionError.errno
        cluster = Cluster({MetadataRequest: lambda _r, _n: metadata((), error=error)})
        with pytest.raises(RefusedError, match="no topic 'orders'"):
            inspector_of(cluster).partitions("orders")

    def test_partitions_of_an_unauthorised_topic_raise_an_authorisation_error(self) -> None:
        error = theirs.TopicAuthorizationFailedError.errno
        cluster = Cluster({MetadataRequest: lambda _r, _n: metadata((), error=error)})
        with pytest.raises(KafkaNotAuthorisedError, match="READ on their topics"):
            inspector_of(cluster).partitions("orders")

    def test_metadata_request_does_not_create_a_topic(self) -> None:
        cluster = Cluster({})
        inspector_of(cluster).partitions("orders")
        ((_, request),) = cluster.sent
        assert not request.allow_auto_topic_creation


class TestOpenTransactions:
    def test_open_transactions_have_a_start_offset_and_are_sorted_by_it(self) -> None:
        cluster = Cluster({DescribeProducersRequest: partition_answer()})
        found = inspector_of(cluster).open_transactions({A: 2, B: 1, C: 2}, progress=no_progress)
        assert found.unreachable == ()
        assert set(found.producers) == {A, B, C}
        assert [(p.producer_id, p.start_offset) for p in found.producers[A]] == [(9, 12), (7, 40)]
        assert cluster.asked(DescribeProducersRequest) == [1, 2]

    def test_many_partitions_are_asked_in_parts(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(inspection_wire, "PARTITIONS_AT_ONCE", 2)
        leaders = {TopicPartition("orders", number): 1 for number in range(5)}
        cluster = Cluster({DescribeProducersRequest: partition_answer()})
        found = inspector_of(cluster).open_transactions(leaders, progress=no_progress)
        assert set(found.producers) == set(leaders)
        assert cluster.asked(DescribeProducersRequest) == [1, 1, 1]

    def test_open_transactions_reports_unreachable_partitions(self) -> None:
        answer = partition_answer()
        down = theirs.KafkaConnectionError("refused")
        cluster = Cluster(
            {DescribeProducersRequest: lambda r, node: down if node == 2 else answer(r, node)}
        )
        found = inspector_of(cluster).open_transactions({A: 2, B: 1, C: -1}, progress=no_progress)
        assert set(found.producers) == {B}
        without, silent = found.unreachable
        assert without == "totals-0: it has no leader"
        assert silent.startswith("orders-0: its leader, broker 2, did not answer")

    def test_open_transactions_raises_an_error_without_topic_permission(self) -> None:
        error = theirs.TopicAuthorizationFailedError.errno
        cluster = Cluster({DescribeProducersRequest: partition_answer(error)})
        with pytest.raises(KafkaNotAuthorisedError, match="topic orders"):
            inspector_of(cluster).open_transactions({A: 1}, progress=no_progress)


def test_ends_reads_stable_and_end_offsets_and_omits_silent_leaders() -> None:
    def answer(request: Any, node: int | None) -> Any:
        if node == 2:
            return theirs.KafkaConnectionError("refused")
        offset = 12 if request.isolation_level == 1 else 40
        part = SimpleNamespace(partition_index=0, error_code=OK, offset=offset)
        moved = SimpleNamespace(
            partition_index=1, error_code=theirs.NotLeaderForPartitionError.errno, offset=-1
        )
        return SimpleNamespace(topics=[SimpleNamespace(name="orders", partitions=[part, moved])])

    cluster = Cluster({ListOffsetsRequest: answer})
    found = inspector_of(cluster).end_offsets({A: 1, B: 1, C: 2, TopicPartition("totals", 1): -1})
    assert found == {A: PartitionEndOffsets(stable=12, end=40)}
    levels = [request.isolation_level for node, request in cluster.sent if node == 1]
    assert levels == [1, 0], "the end is asked last: it never lies before the stable one"


@pytest.mark.parametrize(
    ("error", "answer"),
    [
        (theirs.ConcurrentTransactionsError, AbortResult.ACCEPTED),
        (None, AbortResult.ACCEPTED),
        (theirs.ProducerFencedError, AbortResult.CHANGED),
        (theirs.InvalidProducerEpochError, AbortResult.CHANGED),
        (theirs.InvalidProducerIdMappingError, AbortResult.CHANGED),
    ],
)
def test_abort_changes_only_the_given_producer_epoch(
    error: type[theirs.BrokerResponseError] | None, answer: AbortResult
) -> None:
    code = OK if error is None else error.errno
    cluster = Cluster({InitProducerIdRequest: lambda _r, _n: SimpleNamespace(error_code=code)})
    assert inspector_of(cluster).abort(KNOWN) is answer
    ((node, request),) = cluster.sent
    assert node == 2
    assert (request.producer_id, request.producer_epoch) == (7, 2)
    assert (request._min_version, request._max_version) == (4, 4)


def test_abort_without_permission_raises_an_error_with_the_missing_right() -> None:
    code = theirs.TransactionalIdAuthorizationFailedError.errno
    cluster = Cluster({InitProducerIdRequest: lambda _r, _n: SimpleNamespace(error_code=code)})
    with pytest.raises(KafkaNotAuthorisedError, match="needs WRITE on its id"):
        inspector_of(cluster).abort(KNOWN)


class TestMarker:
    PRODUCER = ProducerState(
        producer_id=7, epoch=3, coordinator_epoch=-1, last_ms=1, start_offset=12
    )

    def written(self, *codes: int) -> Cluster:
        left = list(codes)

        def answer(_request: Any, _node: int | None) -> SimpleNamespace:
            part = SimpleNamespace(error_code=left.pop(0))
            topic = SimpleNamespace(partitions=[part])
            return SimpleNamespace(markers=[SimpleNamespace(topics=[topic])])

        return Cluster({WriteTxnMarkersRequest: answer})

    @pytest.mark.parametrize(("seen", "sent"), [(-1, 0), (0, 0), (6, 6)])
    def test_abort_marker_is_written_for_one_producer_on_one_partition(
        self, seen: int, sent: int
    ) -> None:
        cluster = self.written(OK)
        producer = msgspec.structs.replace(self.PRODUCER, coordinator_epoch=seen)
        inspector_of(cluster).write_abort_marker(B, producer)
        node, request = cluster.sent[-1]
        (marker,) = request.markers
        assert node == 2, "the leader of the partition"
        assert (marker.producer_id, marker.producer_epoch, marker.coordinator_epoch) == (7, 3, sent)
        assert marker.transaction_result is False
        assert [(t.name, t.partition_indexes) for t in marker.topics] == [("orders", [1])]
        assert request._max_version == 1

    def test_abort_marker_is_retried_if_the_leader_moved(self) -> None:
        cluster = self.written(theirs.NotLeaderForPartitionError.errno, OK)
        inspector_of(cluster, deadline_s=30.0).write_abort_marker(B, self.PRODUCER)
        assert cluster.asked(WriteTxnMarkersRequest) == [2, 2]

    def test_abort_marker_is_not_sent_without_a_leader(self) -> None:
        cluster = self.written()
        with pytest.raises(KafkaUnavailableError, match="orders-5 has no leader"):
            inspector_of(cluster).write_abort_marker(TopicPartition("orders", 5), self.PRODUCER)
        assert not cluster.asked(WriteTxnMarkersRequest)

    def test_abort_marker_refused_by_the_leader_raises_kafka_error(self) -> None:
        cluster = self.written(theirs.TransactionCoordinatorFencedError.errno)
        with pytest.raises(KafkaError, match="abort marker into orders-1"):
            inspector_of(cluster).write_abort_marker(B, self.PRODUCER)
        denied = self.written(theirs.ClusterAuthorizationFailedError.errno)
        with pytest.raises(KafkaNotAuthorisedError, match="ALTER"):
            inspector_of(denied).write_abort_marker(B, self.PRODUCER)
