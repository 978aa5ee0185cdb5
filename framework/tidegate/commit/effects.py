"""The effect requests that the procedures yield, and how a procedure waits for their results.

A procedure is a generator that yields effects and receives their results. It does nothing itself.
So the same code runs with real drivers (`controlplane/journal/effect_runner.py`), and in tests
under a scheduler that interleaves two JobMasters step by step. The runner throws the error of a
failed effect into the generator, as a class of `tidegate.errors`: TransactionSystemError
(KafkaError, KafkaUnavailableError), StorageError.

The small functions below (`create_entry`, `describe`, ...) give the result of each effect its type,
so that mypy checks the procedures. No other code yields effects.
"""

from __future__ import annotations

from collections.abc import Collection, Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from tidegate.errors import InternalError
from tidegate.ids import TransactionalId
from tidegate.ports.blobs import CreateResult
from tidegate.ports.kafka import EndTxnResult, TransactionDescription, TransactionState
from tidegate.protocol.subtask_snapshot import PreparedTransaction
from tidegate.stream_elements import TopicPartition

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class CreateEntry:
    """BlobStore.create. Result: CreateResult. StorageError only if certainly nothing
    was written.
    """

    path: str
    data: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadObject:
    """BlobStore.get. Result: bytes, or None if the object does not exist."""

    path: str


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteObject:
    """BlobStore.put, which creates or replaces the object. Result: None."""

    path: str
    data: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class ListObjects:
    """BlobStore.list. Result: list of paths below `prefix`."""

    prefix: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteObject:
    """BlobStore.delete. Result: None."""

    path: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Describe:
    """TransactionAdmin.describe on the transaction's cluster. Result: TransactionDescription, or
    None if the coordinator does not know the id. The `TransactionCoordinator` of another system
    answers for its transactions.

    A runner that is connected to another Kafka cluster throws RefusedError.
    """

    transaction: PreparedTransaction


@dataclass(frozen=True, slots=True, kw_only=True)
class EndTransaction:
    """TransactionAdmin.end on the transaction's cluster, or `end` of another system's coordinator.
    Result: EndTxnResult. A runner that is connected to another Kafka cluster throws RefusedError.
    """

    transaction: PreparedTransaction
    commit: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterId:
    """TransactionAdmin.cluster_id: the id of the Kafka cluster that the brokers form now. Result:
    str.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class ListTransactions:
    """TransactionAdmin.list, and `list` of the coordinators of the job's other systems. Result:
    dict of TransactionalId to TransactionState. `unfinished` leaves out ids whose last transaction
    is complete.
    """

    prefix: str
    unfinished: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Fence:
    """TransactionAdmin.fence, or `fence` of another system's coordinator. Result: None."""

    transactional_id: TransactionalId


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicIds:
    """TransactionAdmin.topic_ids. Result: dict of topic to topic id."""

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
    """Clock.monotonic. Result: seconds, as a float."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WallClock:
    """Clock.now_ms. Result: milliseconds since the Unix epoch; for records and display only."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Nonce:
    """A new random name. Result: 16 lower-case hexadecimal digits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Gather:
    """Run procedures at the same time. They start in the given order and end in any order. Result:
    list of their results, in the given order.

    The procedures wait only for Kafka. Every procedure runs to its end, also after another has
    failed. Then the error of the first failed procedure, in the given order, is thrown. None of the
    procedures yields `Gather` itself.
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
    """Create an object unless it exists, and return the outcome."""
    result = yield CreateEntry(path=path, data=data)
    return _typed(result, CreateResult)


def read_object(path: str) -> Procedure[bytes | None]:
    """Return the content of an object, or None if it does not exist."""
    result = yield ReadObject(path=path)
    return None if result is None else _typed(result, bytes)


def write_object(path: str, data: bytes) -> Procedure[None]:
    """Write or replace an object."""
    yield WriteObject(path=path, data=data)


def list_objects(prefix: str) -> Procedure[list[str]]:
    """Return the paths below a folder."""
    result = yield ListObjects(prefix=prefix)
    return list(_typed(result, list))


def delete_object(path: str) -> Procedure[None]:
    """Delete an object."""
    yield DeleteObject(path=path)


def describe(transaction: PreparedTransaction) -> Procedure[TransactionDescription | None]:
    """Return what the coordinator knows of the transaction's id, or None if it does not know the
    id.
    """
    result = yield Describe(transaction=transaction)
    return None if result is None else _typed(result, TransactionDescription)


def end_transaction(
    transaction: PreparedTransaction, *, commit: bool = True
) -> Procedure[EndTxnResult]:
    """Send one EndTxn and return the coordinator's answer."""
    result = yield EndTransaction(transaction=transaction, commit=commit)
    return _typed(result, EndTxnResult)


def cluster_id() -> Procedure[str]:
    """Return the id of the Kafka cluster that the brokers form now."""
    result = yield ClusterId()
    return _typed(result, str)


def list_transactions(
    prefix: str, *, unfinished: bool = False
) -> Procedure[dict[TransactionalId, TransactionState]]:
    """Return the state of every transactional id with this prefix. With `unfinished`, leave out ids
    whose last transaction is complete.
    """
    result = yield ListTransactions(prefix=prefix, unfinished=unfinished)
    return dict(_typed(result, dict))


def fence(transactional_id: TransactionalId) -> Procedure[None]:
    """Abort the open transaction of an id and lock out its producers."""
    yield Fence(transactional_id=transactional_id)


def topic_ids(topics: Collection[str]) -> Procedure[dict[str, str]]:
    """Return the topic ids of those topics that exist."""
    if not topics:
        return {}
    result = yield TopicIds(topics=frozenset(topics))
    return dict(_typed(result, dict))


def epoch_end_offsets(epochs: Mapping[TopicPartition, int]) -> Procedure[dict[TopicPartition, int]]:
    """Return, per partition, the offset at which the log of a leader epoch ends."""
    if not epochs:
        return {}
    result = yield EpochEnds(epochs=dict(epochs))
    return dict(_typed(result, dict))


def pause(seconds: float) -> Procedure[None]:
    """Wait."""
    yield Sleep(seconds=seconds)


def now() -> Procedure[float]:
    """Return the monotonic time in seconds."""
    result = yield MonotonicTime()
    return _typed(result, float)


def wall_clock() -> Procedure[int]:
    """Return the wall-clock time in milliseconds since the Unix epoch."""
    result = yield WallClock()
    return _typed(result, int)


def nonce() -> Procedure[str]:
    """Return a new random name."""
    result = yield Nonce()
    return _typed(result, str)


def gather(procedures: Sequence[Procedure[T]]) -> Procedure[list[T]]:
    """Run procedures that may run at the same time, and return their results in the given order."""
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
