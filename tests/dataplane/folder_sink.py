"""A toy sink with transactions of its own: a folder in which each committed transaction is a file.

The declaration, the writer and the coordinator follow the recipe "Add a sink" in ARCHITECTURE.md.
A writer prepares a hidden file at each barrier. The JobMaster commits it by a rename. The module is
also a complete pipeline of a user, so that tests run it in slots on a real broker.
"""

from __future__ import annotations

import json
import os
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, TypeVar, cast

import msgspec

from tidegate import Json, KafkaSource, Pipeline
from tidegate.api.connectors.sink import Sink
from tidegate.api.records.formats import Format
from tidegate.commit.transactional_ids import format_transactional_id
from tidegate.dataplane.refusals import Refusals
from tidegate.dataplane.sinks.registry import SINK_WRITERS
from tidegate.dataplane.subtask_context import SubtaskContext
from tidegate.drivers.transaction_coordinators import TRANSACTION_COORDINATORS
from tidegate.ids import CheckpointId, TransactionalId, Uid
from tidegate.ports.kafka import EndTxnResult, TransactionState
from tidegate.protocol.subtask_snapshot import PreparedTransaction
from tidegate.stream_elements import RecordBatch

T = TypeVar("T")
Done = Callable[[tuple[PreparedTransaction, ...]], None]

FOLDER: Final = "folder"
"""The name of the transaction system."""
LINES_MAX: Final = 10_000
"""Number of lines that may wait for the next flush."""


class FolderSink(Sink[T]):
    """A folder to which each checkpoint of each subtask adds a file."""

    transaction_system = FOLDER
    guarantee = "exactly_once"

    def __init__(self, folder: str, *, value: Format[T]) -> None:
        super().__init__()
        self.folder, self.value = folder, value

    @property
    def target(self) -> str:
        return f"folder {self.folder!r}"

    def record_type(self) -> object:
        return self.value.value_type

    def describe(self) -> dict[str, object]:
        return {"folder": self.folder, "value": self.value.describe()}

    def round_trip(self) -> Callable[[Any], Any]:
        encode, decode = self.value.encoder(), self.value.decoder()
        return lambda record: decode(encode(record))


def prepared_path(folder: str | Path, transactional_id: TransactionalId) -> Path:
    """The hidden file of a prepared transaction."""
    return Path(folder, f".{transactional_id}")


def committed_path(folder: str | Path, transactional_id: TransactionalId) -> Path:
    """The file of a committed transaction."""
    return Path(folder, f"{transactional_id}.jsonl")


def sync_folder(folder: Path) -> None:
    """Make the names in a folder durable."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


class FolderSinkWriter:
    """The writer: it makes one transaction of the lines of an interval. An id is never used again,
    so the writer needs no list of free ids.
    """

    def __init__(
        self, sink: FolderSink[Any], uid: Uid, context: SubtaskContext, refusals: Refusals
    ) -> None:
        assert not refusals.tolerant, f"sink {uid!r} has no policy"
        self._folder, self._uid, self._context = Path(sink.folder), uid, context
        self._encode = sink.value.encoder()
        self._next_index = context.transactional_id_indexes.start
        self._lines: list[bytes] = []
        self._closed: deque[tuple[list[bytes], Done]] = deque()
        """The intervals that wait for their flush, oldest first."""
        self._flushing = False
        self._prepared: dict[TransactionalId, PreparedTransaction] = {}
        """The prepared transactions that were not reported as committed, oldest first."""

    def open(self) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)

    def write(self, batch: RecordBatch) -> None:
        self._lines += map(self._encode, batch.values)
        self._context.counters.records_out += len(batch)

    def writable(self) -> bool:
        waiting = len(self._lines) + sum(len(lines) for lines, _ in self._closed)
        return waiting < LINES_MAX

    def prepare(self, checkpoint: CheckpointId, done: Done, *, final: bool) -> None:
        del checkpoint, final
        self._closed.append((self._lines, done))
        self._lines = []
        self._flush_next()

    def ended(self, ids: Sequence[TransactionalId], checkpoint: CheckpointId | None = None) -> None:
        del checkpoint
        for each in ids:
            self._prepared.pop(each, None)

    def freed(self, ids: Sequence[TransactionalId]) -> None:
        """Do nothing: no id is used again."""

    def _flush_next(self) -> None:
        while self._closed and not self._flushing:
            lines, done = self._closed.popleft()
            if lines:
                self._flushing = True
                self._context.run_io(lambda: self._store(lines, done))  # noqa: B023 - the loop ends
            else:
                done(tuple(self._prepared.values()))

    def _store(self, lines: list[bytes], done: Done) -> None:
        transactional_id = format_transactional_id(
            job=self._context.job,
            journal_id=self._context.journal_id,
            sink=self._uid,
            attempt=self._context.attempt,
            subtask=self._context.subtask.index,
            index=self._next_index,
            system=FOLDER,
        )
        self._next_index += 1
        with prepared_path(self._folder, transactional_id).open("wb") as file:
            file.writelines(line + b"\n" for line in lines)
            file.flush()
            os.fsync(file.fileno())
        sync_folder(self._folder)
        transaction = PreparedTransaction(
            cluster_id="",
            transactional_id=transactional_id,
            producer_id=0,
            epoch=0,
            start_ms=0,
            handle=str(self._folder),
        )
        self._context.post(lambda: self._stored(transaction, done))

    def _stored(self, transaction: PreparedTransaction, done: Done) -> None:
        self._flushing = False
        self._prepared[transaction.transactional_id] = transaction
        done(tuple(self._prepared.values()))
        self._flush_next()


class FolderCoordinator:
    """The coordinator: the handle of a transaction is its folder."""

    def __init__(self, sinks: Mapping[Uid, Mapping[str, object]]) -> None:
        self._folders = {Path(cast("str", options["folder"])) for options in sinks.values()}

    def describe(self, transactional_id: TransactionalId, handle: str) -> TransactionState | None:
        if committed_path(handle, transactional_id).exists():
            return TransactionState.COMPLETE_COMMIT
        if prepared_path(handle, transactional_id).exists():
            return TransactionState.ONGOING
        return None

    def end(self, transactional_id: TransactionalId, handle: str, *, commit: bool) -> EndTxnResult:
        prepared = prepared_path(handle, transactional_id)
        if not commit:
            prepared.unlink(missing_ok=True)
        elif prepared.exists():
            prepared.rename(committed_path(handle, transactional_id))
        sync_folder(Path(handle))
        return EndTxnResult.ACCEPTED

    def fence(self, transactional_id: TransactionalId) -> None:
        for folder in self._folders:
            prepared_path(folder, transactional_id).unlink(missing_ok=True)

    def list(
        self, prefix: str, *, unfinished: bool = False
    ) -> dict[TransactionalId, TransactionState]:
        found = {}
        for folder in self._folders:
            for path in folder.glob(f".{prefix}*"):
                found[TransactionalId(path.name[1:])] = TransactionState.ONGOING
            if not unfinished:
                for path in folder.glob(f"{prefix}*.jsonl"):
                    found[TransactionalId(path.stem)] = TransactionState.COMPLETE_COMMIT
        return found

    def close(self) -> None:
        """Do nothing: the coordinator holds nothing open."""


SINK_WRITERS[FolderSink] = FolderSinkWriter
TRANSACTION_COORDINATORS[FOLDER] = FolderCoordinator


class Delivery(msgspec.Struct, frozen=True):
    customer: str
    amount: int


class Deliveries(Pipeline, name="deliveries"):
    """The orders of a topic, as lines of committed files."""

    orders = KafkaSource("orders", value=Json(Delivery))
    lines = FolderSink("lines", value=Json(Delivery))

    def define(self) -> None:
        self.orders.to(self.lines)


def amounts(folder: Path) -> list[int]:
    """The amounts of all committed lines of a folder, in no order."""
    lines = (line for path in folder.glob("*.jsonl") for line in path.read_text().splitlines())
    return [json.loads(line)["amount"] for line in lines]
