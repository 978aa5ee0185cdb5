"""Transaction control without a broker: what is retried, when the coordinator is looked up again.

The client's manager is replaced by a script of answers; the real exchange is in
integration/connectors/test_kafka_drivers.py.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine
from types import SimpleNamespace
from typing import Any, cast

import kafka.errors as theirs
import pytest
from kafka.protocol.metadata import CoordinatorType

from tidegate.drivers.kafka import coordinator_connection
from tidegate.drivers.kafka.transactions import KafkaTransactionAdmin
from tidegate.errors import KafkaError, KafkaNotAuthorisedError, KafkaUnavailableError
from tidegate.ids import TransactionalId
from tidegate.ports.kafka import EndTxnResult, TransactionState

NAME = TransactionalId("tidegate.j.n.s.1.0.0")
KEY = (CoordinatorType.TRANSACTION, NAME)


class Script:
    """Stands for the client and its manager. Answers are taken in order: objects, or errors."""

    def __init__(self, *answers: Any) -> None:
        self.answers = list(answers)
        self.requests: list[Any] = []
        self.nodes: list[int] = []
        self.timeouts_ms: list[int | None] = []
        self.lookups = 0
        self.updates = 0
        self.cluster = SimpleNamespace(
            _coordinators={}, cluster_id="c", request_update=self._request_update
        )
        self._conns: dict[int, Any] = {}
        self._manager = self

    def _request_update(self) -> None:
        self.updates += 1

    async def _find_coordinator_ids(self, names: list[str], key_type: Any) -> dict[str, int]:
        known = self.cluster._coordinators
        if KEY not in known:
            self.lookups += 1
            known[KEY] = 100 + self.lookups
        return {names[0]: known[KEY]}

    async def send(
        self, request: Any, node_id: int | None = None, request_timeout_ms: int | None = None
    ) -> Any:
        self.requests.append(request)
        self.timeouts_ms.append(request_timeout_ms)
        self.nodes.append(-1 if node_id is None else node_id)
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    def run(self, action: Callable[..., Coroutine[Any, Any, Any]], *args: Any) -> Any:
        return asyncio.run(action(*args))

    def close(self) -> None:
        pass


def code(error: type[theirs.BrokerResponseError] | None) -> SimpleNamespace:
    return SimpleNamespace(error_code=0 if error is None else error.errno)


def described(error: Any = None, state: str = "Ongoing") -> SimpleNamespace:
    row = SimpleNamespace(
        error_code=0 if error is None else error.errno,
        transaction_state=state,
        producer_id=7,
        producer_epoch=2,
        transaction_start_time_ms=99,
    )
    return SimpleNamespace(transaction_states=[row])


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(coordinator_connection, "RETRY_PAUSE_S", (0.0, 0.0))


def log_of(script: Script, deadline_s: float = 5.0) -> KafkaTransactionAdmin:
    log = KafkaTransactionAdmin({"bootstrap.servers": "broker:1"}, deadline_s=deadline_s)
    log._connection._admin = cast("Any", script)
    return log


@pytest.mark.parametrize(
    "moved",
    [
        described(theirs.NotCoordinatorError),
        described(theirs.CoordinatorNotAvailableError),
        described(theirs.CoordinatorLoadInProgressError),
        theirs.KafkaConnectionError(),
        theirs.NodeNotReadyError(),
        theirs.KafkaTimeoutError(),
        theirs.RequestTimedOutError(),
        theirs.UnknownBrokerIdError(),
    ],
)
def test_a_coordinator_that_moved_is_looked_up_again(moved: Any) -> None:
    script = Script(moved, moved, described())
    facts = log_of(script).describe(NAME)
    assert facts is not None
    assert facts.state is TransactionState.ONGOING
    assert (facts.producer_id, facts.epoch, facts.start_ms) == (7, 2, 99)
    assert script.nodes == [101, 102, 103]


def test_metadata_update_is_requested_after_an_unknown_broker_id() -> None:
    """One that came back since the client connected: the library would learn of it in five
    minutes, and a recovery that lists transactions of all brokers waited for that.
    """
    script = Script(theirs.UnknownBrokerIdError(), described())
    assert log_of(script).describe(NAME) is not None
    assert script.updates == 1
    moved = Script(theirs.NotCoordinatorError(), described())
    log_of(moved).describe(NAME)
    assert moved.updates == 0


class Connection:
    """A connection of the library, with the fields that tidegate reads."""

    def __init__(self, silent_s: float, *in_flight: object) -> None:
        self.connected = True
        self.in_flight_requests = in_flight
        self.transport = SimpleNamespace(last_read=time.monotonic() - silent_s)

    def close(self) -> None:
        self.connected = False


def test_request_timeout_closes_other_silent_connections_without_requests() -> None:
    """If all of them were forgotten, each would cost ten seconds, one after the other."""
    script = Script(theirs.RequestTimedOutError(), described())
    heard, silent, asked = Connection(1.0), Connection(11.0), Connection(11.0, "request")
    script._conns = {1: heard, 2: silent, 3: asked}
    assert log_of(script).describe(NAME) is not None
    assert [each.connected for each in (heard, silent, asked)] == [True, False, True]


def test_concurrent_transactions_error_is_retried_at_the_same_coordinator() -> None:
    script = Script(code(theirs.ConcurrentTransactionsError), code(None))
    log_of(script).fence(NAME)
    assert script.nodes == [101, 101]


def test_describe_returns_none_for_an_unknown_transactional_id() -> None:
    assert log_of(Script(described(theirs.TransactionalIdNotFoundError))).describe(NAME) is None


def test_end_and_fence_requests_use_the_api_versions_of_the_producer() -> None:
    script = Script(code(None), code(None))
    log = log_of(script)
    log.end(NAME, 7, 2, commit=True)
    log.fence(NAME)
    end, fence = script.requests
    assert (end._min_version, end._max_version) == (3, 3)
    assert (end.producer_id, end.producer_epoch, end.committed) == (7, 2, True)
    assert (fence._min_version, fence._max_version) == (4, 4)
    assert (fence.producer_id, fence.producer_epoch) == (-1, -1)


@pytest.mark.parametrize(
    ("answer", "outcome"),
    [
        (code(None), EndTxnResult.ACCEPTED),
        (code(theirs.ConcurrentTransactionsError), EndTxnResult.RETRY),
        (code(theirs.NotCoordinatorError), EndTxnResult.RETRY),
        (theirs.KafkaConnectionError(), EndTxnResult.RETRY),
        (theirs.KafkaTimeoutError(), EndTxnResult.RETRY),
        (code(theirs.UnknownError), EndTxnResult.RETRY),
        (code(theirs.InvalidTxnStateError), EndTxnResult.REFUSED),
        (code(theirs.ProducerFencedError), EndTxnResult.REFUSED),
        (code(theirs.InvalidProducerEpochError), EndTxnResult.REFUSED),
        (code(theirs.InvalidProducerIdMappingError), EndTxnResult.REFUSED),
        (code(theirs.TransactionalIdAuthorizationFailedError), EndTxnResult.NOT_AUTHORISED),
    ],
)
def test_end_is_sent_once_and_returns_the_result_of_its_answer(
    answer: Any, outcome: EndTxnResult
) -> None:
    script = Script(answer)
    assert log_of(script).end(NAME, 7, 2, commit=True) is outcome
    assert len(script.requests) == 1
    forgotten = KEY not in script.cluster._coordinators
    busy = isinstance(answer, SimpleNamespace) and answer.error_code == 51
    assert forgotten == (outcome is EndTxnResult.RETRY and not busy)


def test_retry_ends_at_its_deadline_with_brokers_and_cause_in_the_error() -> None:
    script = Script(*[theirs.KafkaConnectionError("refused")] * 10_000)
    with pytest.raises(KafkaUnavailableError) as raised:
        log_of(script, deadline_s=0.02).describe(NAME)
    assert "broker:1" in str(raised.value)
    assert "refused" in str(raised.value)
    assert NAME in str(raised.value)


def test_authorisation_error_is_raised_without_a_retry() -> None:
    script = Script(described(theirs.TransactionalIdAuthorizationFailedError))
    with pytest.raises(KafkaNotAuthorisedError, match="WRITE"):
        log_of(script).describe(NAME)
    assert len(script.requests) == 1


def test_unexpected_answer_raises_kafka_error_with_its_text() -> None:
    with pytest.raises(KafkaError, match="InvalidTransactionTimeoutError"):
        log_of(Script(code(theirs.InvalidTransactionTimeoutError))).fence(NAME)
    with pytest.raises(KafkaError, match="Napping"):
        log_of(Script(described(state="Napping"))).describe(NAME)


def test_a_closed_connection_is_not_made_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """A thread of an ended task may ask late, and no other code would close its connection."""
    made: list[object] = []
    monkeypatch.setattr(
        coordinator_connection, "KafkaAdminClient", lambda **settings: made.append(settings)
    )
    connection = coordinator_connection.CoordinatorConnection(
        {"bootstrap.servers": "localhost:1"}, deadline_s=1.0, rights=""
    )
    connection.close()
    with pytest.raises(KafkaUnavailableError, match="is closed"):
        connection.client()
    assert made == []


def test_the_cache_of_coordinators_has_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(coordinator_connection, "COORDINATORS_MAX", 2)
    script = Script(theirs.KafkaConnectionError(), described())
    script.cluster._coordinators.update({number: number for number in range(5)})
    log_of(script).describe(NAME)
    assert len(script.cluster._coordinators) == 1


class TestListing:
    BROKERS = (SimpleNamespace(node_id=1), SimpleNamespace(node_id=2))

    def leaders(self, *leaders: int, error: Any = None) -> SimpleNamespace:
        parts = [
            SimpleNamespace(partition_index=index, leader_id=leader, leader_epoch=leader)
            for index, leader in enumerate(leaders)
        ]
        row = SimpleNamespace(error_code=0 if error is None else error.errno, partitions=parts)
        return SimpleNamespace(brokers=self.BROKERS, topics=[row])

    def found(self, *names: str, error: Any = None) -> SimpleNamespace:
        rows = [
            SimpleNamespace(transactional_id=name, transaction_state="Ongoing") for name in names
        ]
        code = 0 if error is None else error.errno
        return SimpleNamespace(error_code=code, transaction_states=rows)

    def test_list_asks_every_broker_and_filters_by_prefix(self) -> None:
        script = Script(
            self.leaders(1, 2), self.found("a.1", "b.1"), self.found("a.2"), self.leaders(1, 2)
        )
        assert set(log_of(script).list("a.")) == {"a.1", "a.2"}
        assert script.nodes == [-1, 1, 2, -1]

    @pytest.mark.parametrize("first", ["loading", "leaderless", "moved", "gone"])
    def test_list_is_repeated_if_it_would_be_incomplete(self, first: str) -> None:
        good = [self.leaders(1, 2), self.found("a.1"), self.found(), self.leaders(1, 2)]
        bad: dict[str, list[Any]] = {
            "loading": [
                self.leaders(1, 2),
                self.found(error=theirs.CoordinatorLoadInProgressError),
            ],
            "leaderless": [self.leaders(1, -1)],
            "moved": [self.leaders(1, 2), self.found(), self.found(), self.leaders(2, 1)],
            "gone": [self.leaders(1, 2), self.found(), theirs.KafkaConnectionError()],
        }
        script = Script(*bad[first], *good)
        assert set(log_of(script).list("a.")) == {"a.1"}
        assert script.answers == []

    def test_list_doubles_the_timeout_at_each_retry_up_to_40_seconds(self) -> None:
        late = [self.leaders(1, 2), theirs.RequestTimedOutError()]
        good = [self.leaders(1, 2), self.found("a.1"), self.found(), self.leaders(1, 2)]
        script = Script(*late, *late, *late, *late, *good)
        assert set(log_of(script).list("a.")) == {"a.1"}
        asked = [each for each in script.timeouts_ms if each is not None]
        assert asked == [10_000, 20_000, 40_000, 40_000, 40_000, 40_000]

    def test_list_of_a_cluster_without_transactions_is_empty(self) -> None:
        absent = self.leaders(error=theirs.UnknownTopicOrPartitionError)
        script = Script(absent, self.found(), self.found(), absent)
        assert log_of(script).list("a.") == {}


@pytest.mark.parametrize("raised", [OSError("broken pipe"), RuntimeError("the loop is closed")])
def test_foreign_exception_during_end_raises_kafka_error(raised: Exception) -> None:
    with pytest.raises(KafkaError, match="could not end transaction"):
        log_of(Script(raised)).end(NAME, 7, 2, commit=True)
