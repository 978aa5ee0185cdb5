"""What the procedures of this room ask of the world: effect requests, and how they are awaited.

A procedure is a generator that yields effects and is sent their results; it does nothing itself, so
the same code runs against real drivers (`controlplane/jobmaster/effect_runner.py`) and under a
scheduler that interleaves two JobMasters step by step (the tests). An effect that fails is thrown
into the generator as an error of the one tree: KafkaError, KafkaUnavailableError, StorageError.

The small functions below (`create_entry`, `describe`, ...) give each effect its result's type, so
that procedures are checked; they are the only code that yields.
"""

from __future__ import annotations

from collections.abc import Collection, Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from tidegate.errors import InternalError
from tidegate.ids import TransactionalId
from tidegate.ports.blobs import CreateResult
from tidegate.ports.kafka import EndTxnResult, TransactionDescription, TransactionState
from tidegate.protocol.snapshots import PreparedTransaction
from tidegate.stream_elements import TopicPartition

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class CreateEntry:
    """BlobStore.create. Result: CreateResult; StorageError only if surely nothing was written."""

    path: str
    data: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadObject:
    """BlobStore.get. Result: bytes, or None where there is none."""

    path: str


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteObject:
    """BlobStore.put. Result: None."""

    path: str
    data: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class ListObjects:
    """BlobStore.list. Result: list of paths."""

    prefix: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteObject:
    """BlobStore.delete. Result: None."""

    path: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Describe:
    """TransactionAdmin.describe on the cluster of that id. Result: TransactionDescription or None.

    A runner that is connected to another cluster throws RefusedError.
    """

    cluster_id: str
    transactional_id: TransactionalId


@dataclass(frozen=True, slots=True, kw_only=True)
class EndTransaction:
    """TransactionAdmin.end on the transaction's cluster. Result: EndTxnResult."""

    transaction: PreparedTransaction
    commit: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterId:
    """TransactionAdmin.cluster_id: which Kafka cluster the brokers belong to now. Result: str."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ListTransactions:
    """TransactionAdmin.list. Result: dict of TransactionalId to TransactionState."""

    prefix: str
    unfinished: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Fence:
    """TransactionAdmin.fence. Result: None."""

    transactional_id: TransactionalId


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicIds:
    """TransactionAdmin.topic_ids. Result: dict of topic to id."""

    topics: frozenset[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochEnds:
    """TransactionAdmin.epoch_ends. Result: dict of TopicPartition to offset."""

    epochs: dict[TopicPartition, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Sleep:
    """Clock.sleep. Result: None."""

    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class MonotonicTime:
    """Clock.monotonic. Result: seconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WallClock:
    """Clock.now_ms. Result: milliseconds; for records and display only."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Nonce:
    """A fresh random name. Result: 16 lower-case hexadecimal digits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Gather:
    """Procedures that wait for nothing but Kafka, at the same time: begun in their order, done in
    any. Result: list of their results, in their order.

    All are carried on to their end; then the error of the first that failed is thrown. None of them
    asks for others together.
    """

    procedures: tuple[Procedure[Any], ...]


Effect = (
    CreateEntry
    | ReadObject
    | WriteObject
    | ListObjects
    | DeleteObject
    | Describe
    | EndTransaction
    | ClusterId
    | ListTransactions
    | Fence
    | TopicIds
    | EpochEnds
    | Sleep
    | MonotonicTime
    | WallClock
    | Nonce
    | Gather
)

Procedure = Generator[Effect, Any, T]
"""A sans-IO procedure that returns a T."""


def create_entry(path: str, data: bytes) -> Procedure[CreateResult]:
    """Create if absent."""
    result = yield CreateEntry(path=path, data=data)
    return _typed(result, CreateResult)


def read_object(path: str) -> Procedure[bytes | None]:
    """Read, None where there is nothing."""
    result = yield ReadObject(path=path)
    return None if result is None else _typed(result, bytes)


def write_object(path: str, data: bytes) -> Procedure[None]:
    """Write or replace."""
    yield WriteObject(path=path, data=data)


def list_objects(prefix: str) -> Procedure[list[str]]:
    """Paths below a folder."""
    result = yield ListObjects(prefix=prefix)
    return list(_typed(result, list))


def delete_object(path: str) -> Procedure[None]:
    """Remove."""
    yield DeleteObject(path=path)


def describe(transaction: PreparedTransaction) -> Procedure[TransactionDescription | None]:
    """What the coordinator knows of the transaction's id."""
    result = yield Describe(
        cluster_id=transaction.cluster_id, transactional_id=transaction.transactional_id
    )
    return None if result is None else _typed(result, TransactionDescription)


def end_transaction(
    transaction: PreparedTransaction, *, commit: bool = True
) -> Procedure[EndTxnResult]:
    """Send one EndTxn."""
    result = yield EndTransaction(transaction=transaction, commit=commit)
    return _typed(result, EndTxnResult)


def cluster_id() -> Procedure[str]:
    """The id of the Kafka cluster that the brokers belong to."""
    result = yield ClusterId()
    return _typed(result, str)


def list_transactions(
    prefix: str, *, unfinished: bool = False
) -> Procedure[dict[TransactionalId, TransactionState]]:
    """All ids that begin so; `unfinished`: but for those with a complete transaction."""
    result = yield ListTransactions(prefix=prefix, unfinished=unfinished)
    return dict(_typed(result, dict))


def fence(transactional_id: TransactionalId) -> Procedure[None]:
    """Abort what is open under an id and lock its producers out."""
    yield Fence(transactional_id=transactional_id)


def topic_ids(topics: Collection[str]) -> Procedure[dict[str, str]]:
    """The ids of those topics that exist."""
    if not topics:
        return {}
    result = yield TopicIds(topics=frozenset(topics))
    return dict(_typed(result, dict))


def epoch_ends(epochs: Mapping[TopicPartition, int]) -> Procedure[dict[TopicPartition, int]]:
    """Where the log of each partition ends for a leader epoch."""
    if not epochs:
        return {}
    result = yield EpochEnds(epochs=dict(epochs))
    return dict(_typed(result, dict))


def pause(seconds: float) -> Procedure[None]:
    """Wait."""
    yield Sleep(seconds=seconds)


def now() -> Procedure[float]:
    """Monotonic seconds."""
    result = yield MonotonicTime()
    return _typed(result, float)


def wall_clock() -> Procedure[int]:
    """Milliseconds since the epoch."""
    result = yield WallClock()
    return _typed(result, int)


def nonce() -> Procedure[str]:
    """A fresh random name."""
    result = yield Nonce()
    return _typed(result, str)


def gather(procedures: Sequence[Procedure[T]]) -> Procedure[list[T]]:
    """The results of procedures that may run at the same time."""
    if not procedures:
        return []
    if len(procedures) == 1:
        return [(yield from procedures[0])]
    result = yield Gather(procedures=tuple(procedures))
    return list(_typed(result, list))


def _typed(result: object, kind: type[T]) -> T:
    if not isinstance(result, kind):
        raise InternalError(f"an effect was answered by {type(result).__name__}: {result!r}")
    return result
