"""The hook of faults, which decides the fate of each request to the fake brokers.

A `Call` describes every request, including the coordinator's own requests to partition leaders
(`WRITE_MARKERS`). A `Faults` object gets the call and answers with a `Verdict`. A verdict says when
the request arrives, when its answer arrives, and which of the two is lost. A process that is killed
or stops waiting therefore leaves requests behind that still take effect.

This module makes no random decisions. A simulator that needs them passes a hook with a seed.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Final, NamedTuple, Protocol

from tidegate.ids import TransactionalId
from tidegate.stream_elements import TopicPartition


class Api(enum.Enum):
    """Kinds of requests, by Kafka's names."""

    INIT_PRODUCER_ID = "InitProducerId"
    ADD_PARTITIONS = "AddPartitionsToTxn"
    PRODUCE = "Produce"
    FETCH = "Fetch"
    END_TXN = "EndTxn"
    DESCRIBE_TRANSACTIONS = "DescribeTransactions"
    LIST_TRANSACTIONS = "ListTransactions"
    METADATA = "Metadata"
    LIST_OFFSETS = "ListOffsets"
    OFFSET_FOR_LEADER_EPOCH = "OffsetForLeaderEpoch"
    OFFSET_COMMIT = "OffsetCommit"
    OFFSET_FETCH = "OffsetFetch"
    WRITE_MARKERS = "WriteTxnMarkers"


class Code(enum.Enum):
    """Error codes of the brokers, with the names of Kafka."""

    NO_ANSWER = "no answer"
    """Not a code of Kafka: the connection broke, or the request timed out at the client."""
    NOT_COORDINATOR = "NOT_COORDINATOR"
    COORDINATOR_LOAD_IN_PROGRESS = "COORDINATOR_LOAD_IN_PROGRESS"
    COORDINATOR_NOT_AVAILABLE = "COORDINATOR_NOT_AVAILABLE"
    NOT_LEADER_OR_FOLLOWER = "NOT_LEADER_OR_FOLLOWER"
    CONCURRENT_TRANSACTIONS = "CONCURRENT_TRANSACTIONS"
    UNKNOWN_TOPIC_OR_PARTITION = "UNKNOWN_TOPIC_OR_PARTITION"
    OFFSET_OUT_OF_RANGE = "OFFSET_OUT_OF_RANGE"
    MESSAGE_TOO_LARGE = "MESSAGE_TOO_LARGE"
    OUT_OF_ORDER_SEQUENCE_NUMBER = "OUT_OF_ORDER_SEQUENCE_NUMBER"
    INVALID_PRODUCER_EPOCH = "INVALID_PRODUCER_EPOCH"
    INVALID_PRODUCER_ID_MAPPING = "INVALID_PRODUCER_ID_MAPPING"
    INVALID_TXN_STATE = "INVALID_TXN_STATE"
    INVALID_TRANSACTION_TIMEOUT = "INVALID_TRANSACTION_TIMEOUT"
    PRODUCER_FENCED = "PRODUCER_FENCED"
    TRANSACTIONAL_ID_NOT_FOUND = "TRANSACTIONAL_ID_NOT_FOUND"
    TRANSACTIONAL_ID_AUTHORIZATION_FAILED = "TRANSACTIONAL_ID_AUTHORIZATION_FAILED"
    TOPIC_AUTHORIZATION_FAILED = "TOPIC_AUTHORIZATION_FAILED"
    GROUP_AUTHORIZATION_FAILED = "GROUP_AUTHORIZATION_FAILED"


RETRIABLE: Final = frozenset(
    {
        Code.NO_ANSWER,
        Code.NOT_COORDINATOR,
        Code.COORDINATOR_LOAD_IN_PROGRESS,
        Code.COORDINATOR_NOT_AVAILABLE,
        Code.NOT_LEADER_OR_FOLLOWER,
        Code.CONCURRENT_TRANSACTIONS,
    }
)
"""Codes after which the same request may succeed later."""


class BrokerError(Exception):
    """An unsuccessful request. It never leaves the fake, because the clients translate it."""

    def __init__(self, code: Code) -> None:
        super().__init__(code.value)
        self.code = code


class Call(NamedTuple):
    """One request, with its transactional id, partition, group or topic, as far as it has them."""

    api: Api
    process: str
    """Name of the process that asks. It is empty for the coordinator's own requests."""
    transactional_id: TransactionalId | None = None
    topic_partition: TopicPartition | None = None
    name: str = ""
    """Name of the consumer group or topic, or a prefix."""
    producer: tuple[int, int] | None = None
    """Producer id and epoch of an EndTxn."""


class LostPart(enum.Enum):
    """The part of an exchange that never arrives."""

    REQUEST = "request"
    """The brokers never receive the request, so it has no effect."""
    ANSWER = "answer"
    """The request takes effect, but the caller gets no answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """The fate of one request. All durations are in seconds and not negative.

    A caller waits no longer than its own request timeout. A request that arrives later still takes
    effect. If the request or the answer is lost, the caller notices it after the sum of `request_s`
    and `answer_s`, as with a broken connection.
    """

    request_s: float = 0.0
    """Time until the request arrives."""
    answer_s: float = 0.0
    """Time from the arrival of the request until the caller has the answer."""
    lost: LostPart | None = None
    refusal: Code | None = None
    """Error code that is returned instead of running the request: the coordinator has moved, is
    loading, and so on.
    """


PROCEED: Final = Verdict()
"""The verdict without delay and without fault."""


def unreachable(after_s: float = 0.0) -> Verdict:
    """Return a verdict: the request is lost, and the caller notices it after some time."""
    return Verdict(request_s=after_s, lost=LostPart.REQUEST)


def answer_lost(request_s: float = 0.0, noticed_s: float = 0.0) -> Verdict:
    """Return a verdict: the request takes effect, but its answer is lost.

    The caller notices it `noticed_s` after the arrival of the request.
    """
    return Verdict(request_s=request_s, answer_s=noticed_s, lost=LostPart.ANSWER)


def refused(code: Code, after_s: float = 0.0) -> Verdict:
    """Return a verdict: the broker answers with `code` and does not run the request."""
    return Verdict(answer_s=after_s, refusal=code)


class Faults(Protocol):
    """The hook that decides the fate of each request. It is called when the request is sent."""

    def decide(self, call: Call) -> Verdict: ...


class NoFaults:
    """The hook without faults: every request arrives and is answered at once."""

    def decide(self, call: Call) -> Verdict:
        return PROCEED
