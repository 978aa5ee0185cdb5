"""The hook of faults: what becomes of each request between a process and the fake brokers.

Every request, also the coordinator's own to partition leaders (`WRITE_MARKERS`), is described by a
`Call` and shown to a `Faults` object, which answers with a `Verdict`. What can go wrong is told by
a few numbers: when the request arrives, when its answer does, and which of the two never does. So a
process that is killed, or gives up waiting, leaves requests behind that still take effect.

Nothing here decides by chance: a simulator that wants chance brings a hook with a seed.
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
    """What a broker answers other than success, by Kafka's names."""

    NO_ANSWER = "no answer"
    """None of Kafka's: the connection broke, or the client waited as long as it waits."""
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
"""The same request may succeed later."""


class BrokerError(Exception):
    """A request was not answered with success. Never leaves the fake: its clients translate it."""

    def __init__(self, code: Code) -> None:
        super().__init__(code.value)
        self.code = code


class Call(NamedTuple):
    """One request. What it is about: a transactional id, a partition, a group or topic, or two."""

    api: Api
    process: str
    """The process that asks; empty for the coordinator's own requests."""
    transactional_id: TransactionalId | None = None
    origin: TopicPartition | None = None
    name: str = ""
    """Consumer group, topic or prefix."""
    producer: tuple[int, int] | None = None
    """Of an EndTxn: producer id and epoch."""


class Lost(enum.Enum):
    """What of an exchange never arrives."""

    REQUEST = "request"
    """The brokers never see it: it had no effect."""
    ANSWER = "answer"
    """It took effect, and the caller does not learn so."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What becomes of one request. All durations are seconds, not negative.

    A caller waits no longer than its own request timeout: a request that takes longer to arrive
    still takes effect when it does. Where something is lost, the caller notices after `request_s`
    and `answer_s` together, as of a broken connection.
    """

    request_s: float = 0.0
    """Until the request arrives."""
    answer_s: float = 0.0
    """From then on, until the caller has the answer."""
    lost: Lost | None = None
    refusal: Code | None = None
    """Answered in place of the request's effect: a coordinator that has moved, is loading, …"""


PROCEED: Final = Verdict()
"""At once and without fault."""


def unreachable(after_s: float = 0.0) -> Verdict:
    """The request does not arrive; the caller notices after a while."""
    return Verdict(request_s=after_s, lost=Lost.REQUEST)


def answer_lost(request_s: float = 0.0, noticed_s: float = 0.0) -> Verdict:
    """The request takes effect; the caller notices, so much later, that there is no answer."""
    return Verdict(request_s=request_s, answer_s=noticed_s, lost=Lost.ANSWER)


def refused(code: Code, after_s: float = 0.0) -> Verdict:
    """The broker answers with `code` and does nothing."""
    return Verdict(answer_s=after_s, refusal=code)


class Faults(Protocol):
    """Decides what becomes of each request; asked once per request, when it is sent."""

    def decide(self, call: Call) -> Verdict: ...


class NoFaults:
    """Every request arrives and is answered at once."""

    def decide(self, call: Call) -> Verdict:  # noqa: ARG002  # every call alike
        return PROCEED
