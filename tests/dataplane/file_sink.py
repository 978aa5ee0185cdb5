"""A toy sink: it appends records as lines to files, at least once. And a pipeline that uses it.

The declaration and the writer follow the recipe "Add a sink" in ARCHITECTURE.md. The module is also
a complete pipeline of a user, so that tests run it in slots on a real broker.
"""

from __future__ import annotations

import json
import os
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from tidegate import Json, KafkaSource, Pipeline
from tidegate.api.connectors.sink import Sink
from tidegate.api.records.formats import Format
from tidegate.dataplane.refusals import Refusals
from tidegate.dataplane.sinks.registry import SINK_WRITERS
from tidegate.dataplane.subtask_context import SubtaskContext
from tidegate.ids import CheckpointId, TransactionalId, Uid
from tidegate.protocol.subtask_snapshot import PreparedTransaction
from tidegate.stream_elements import RecordBatch

T = TypeVar("T")
Done = Callable[[tuple[PreparedTransaction, ...]], None]

LINES_MAX = 10_000
"""Number of lines that may wait for the next flush."""


class FileSink(Sink[T]):
    """A folder to which each subtask of each attempt adds a file."""

    guarantee = "at_least_once"

    def __init__(self, folder: str, *, value: Format[T]) -> None:
        super().__init__()
        self.folder, self.value = folder, value

    @property
    def target(self) -> str:
        return f"folder {self.folder!r}"

    @property
    def checks_all_fields(self) -> bool:
        return self.value.validate == "all"

    def record_type(self) -> object:
        return self.value.value_type

    def describe(self) -> dict[str, object]:
        return {"folder": self.folder, "value": self.value.describe()}

    def round_trip(self) -> Callable[[Any], Any]:
        encode, decode = self.value.encoder(), self.value.decoder()
        return lambda record: decode(encode(record))


class FileSinkWriter:
    """The writer: it appends the lines of an interval to its file when the barrier comes."""

    def __init__(
        self, sink: FileSink[Any], uid: Uid, context: SubtaskContext, refusals: Refusals
    ) -> None:
        assert not refusals.tolerant, f"sink {uid!r} has no policy"
        subtask, attempt = context.subtask.index, context.attempt
        self._path = Path(sink.folder, f"{attempt}-{subtask}.jsonl")
        self._encode = sink.value.encoder()
        self._context = context
        self._lines: list[bytes] = []
        self._closed: deque[tuple[list[bytes], Done]] = deque()
        """The intervals that wait for their flush, oldest first."""
        self._flushing = False

    def open(self) -> None:
        self._path.parent.mkdir(parents=True, exist_ok=True)

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
        """Do nothing: the sink has no transactions."""

    def freed(self, ids: Sequence[TransactionalId]) -> None:
        """Do nothing: the sink has no transactions."""

    def _flush_next(self) -> None:
        if self._flushing or not self._closed:
            return
        self._flushing = True
        lines, done = self._closed.popleft()
        self._context.run_io(lambda: self._append(lines, done))

    def _append(self, lines: list[bytes], done: Done) -> None:
        with self._path.open("ab") as file:
            file.writelines(line + b"\n" for line in lines)
            file.flush()
            os.fsync(file.fileno())
        self._context.post(lambda: self._flushed(done))

    def _flushed(self, done: Done) -> None:
        self._flushing = False
        done(())
        self._flush_next()


SINK_WRITERS[FileSink] = FileSinkWriter


class Order(msgspec.Struct, frozen=True):
    customer: str
    amount: int


class Copies(Pipeline, name="copies"):
    """The orders of a topic, as lines of files."""

    orders = KafkaSource("orders", value=Json(Order))
    lines = FileSink("lines", value=Json(Order))

    def define(self) -> None:
        self.orders.map(doubled).to(self.lines)


def doubled(order: Order) -> Order:
    return Order(order.customer, order.amount * 2)


def amounts(folder: Path) -> list[int]:
    """The amounts of all lines of a folder, in no order."""
    lines = (line for path in folder.glob("*.jsonl") for line in path.read_text().splitlines())
    return [json.loads(line)["amount"] for line in lines]
