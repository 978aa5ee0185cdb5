"""The sinks of a pipeline under test: they keep each record as a reader of the sink decodes it.

A Kafka sink is encoded by the encoder of the real writer, which refuses what the writer refuses.
The sink's own formats decode the bytes again. So a test sees what the encoding changes.

`KeptRecords` is the topic, and outlives a crash. `KeepingSinkWriter` is the writer of one subtask.
The records between two barriers are one transaction of that subtask. Its barrier gives them the id
of the checkpoint. When the checkpoint is complete, they are committed, and so are those of earlier
ones. A crash withdraws the others.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from tidegate.api.connectors.kafka_records import ProducerRecord
from tidegate.api.connectors.kafka_sink import KafkaSink
from tidegate.api.connectors.sink import Sink
from tidegate.api.records.copying import copy_value
from tidegate.api.records.formats import Format
from tidegate.dataplane.refusals import Refusals
from tidegate.dataplane.sinks.encoding import BatchEncoder
from tidegate.errors import UserCodeError, passes_through
from tidegate.ids import CheckpointId, TransactionalId, Uid
from tidegate.message_text import clause
from tidegate.protocol.subtask_snapshot import PreparedTransaction
from tidegate.stream_elements import RecordBatch
from tidegate.user_exceptions import described


@dataclass(slots=True)
class KeptRecord:
    """A record of a sink."""

    value: Any
    checkpoint: CheckpointId | None = None
    """The checkpoint that commits the record. None while its transaction is open."""


class KeptRecords:
    """The records of one sink that the test has not read yet, in the order of writing."""

    def __init__(self, guarantee: str) -> None:
        self._guarantee = guarantee
        self._records: list[KeptRecord] = []
        self._committed: CheckpointId | None = None
        """The last completed checkpoint."""

    def add(self, value: Any) -> KeptRecord:
        """Keep a record of an open transaction."""
        record = KeptRecord(value)
        self._records.append(record)
        return record

    def take(self) -> list[Any]:
        """Return all records, and forget them."""
        taken, self._records = self._records, []
        return [record.value for record in taken]

    def commit(self, checkpoint: CheckpointId) -> None:
        """Note a completed checkpoint: no crash withdraws the records in front of its barriers."""
        self._committed = checkpoint

    def withdraw(self) -> None:
        """Note a crash. The transactions that no checkpoint has committed are aborted, if the sink
        has any.
        """
        if self._guarantee == "exactly_once":
            self._records = [record for record in self._records if self._is_committed(record)]

    def _is_committed(self, record: KeptRecord) -> bool:
        if record.checkpoint is None or self._committed is None:
            return False
        return record.checkpoint <= self._committed


class KeepingSinkWriter:
    """The writer of a sink in one subtask.

    A later change of a record by another step does not change the output.
    """

    def __init__(self, sink: Sink[Any], uid: Uid, kept: KeptRecords, refusals: Refusals) -> None:
        self._kept, self._refusals = kept, refusals
        self._topic = _Topic(sink, uid, refusals) if isinstance(sink, KafkaSink) else None
        self._read_back = sink.round_trip()
        self._open: list[KeptRecord] = []
        """The records since the last barrier."""

    def open(self) -> None:
        """Do nothing: there is no producer to open."""

    def write(self, batch: RecordBatch) -> None:
        read = self._one_by_one(batch) if self._topic is None else self._topic.read_back(batch)
        self._open.extend(map(self._kept.add, read))

    def _one_by_one(self, batch: RecordBatch) -> list[Any]:
        read = []
        for index, value in enumerate(batch.values):
            try:
                read.append(self._read_back(value))
            except BaseException as error:
                if not self._refusals.covers(error):
                    raise
                self._refusals.refuse(batch, index, described(error))
        return read

    def writable(self) -> bool:
        return True

    def prepare(
        self,
        checkpoint: CheckpointId,
        done: Callable[[tuple[PreparedTransaction, ...]], None],
        *,
        final: bool,
    ) -> None:
        """End the transaction of this interval: `KeptRecords.commit` commits its records."""
        del final
        for record in self._open:
            record.checkpoint = checkpoint
        self._open = []
        done(())

    def ended(self, ids: Sequence[TransactionalId], checkpoint: CheckpointId | None = None) -> None:
        """Do nothing: no transaction was prepared."""

    def freed(self, ids: Sequence[TransactionalId]) -> None:
        """Do nothing: no transaction was prepared."""


class _Topic:
    """The topic of a Kafka sink: it encodes a batch, and decodes it with the sink's formats."""

    def __init__(self, sink: KafkaSink[Any], uid: Uid, refusals: Refusals) -> None:
        self._sink, self._uid, self._refusals = sink, uid, refusals
        self._encoder = BatchEncoder(sink, uid, refusals)
        self._value = _decoder(sink.value)
        self._key = bytes if sink.key is None else _decoder(sink.key)

    def read_back(self, batch: RecordBatch) -> list[Any]:
        """Return the records that a reader of the topic gets, without refused ones.

        Raise UserCodeError for a record that the format of the sink writes and cannot read.
        """
        if self._value is None or self._key is None:  # a format for writing only
            kept = self._encoder.encodable(batch) if self._refusals.tolerant else batch
            self._encoder.encode(kept)
            return list(map(copy_value, kept.values))
        encoded = self._encoder.encode(batch)
        try:
            values = [each if each is None else self._value(each) for each in encoded.values]
            if not self._sink.full_record:
                return values
            keys = [each if each is None else self._key(each) for each in encoded.keys or ()]
        except passes_through():
            raise
        except BaseException as error:
            raise UserCodeError(
                f"Sink {self._uid!r} for {self._sink.target} ({self._sink.location}) writes a "
                f"record that its own format cannot read: {clause(described(error))}. "
                "Correct the format or its type, so that readers of the topic can decode it."
            ) from error
        extras = encoded.extras or [((), None)] * len(values)
        return [
            ProducerRecord(key, value, *extra)
            for key, value, extra in zip(keys, values, extras, strict=True)
        ]


def _decoder(of: Format[Any]) -> Callable[[bytes], Any] | None:
    try:
        return of.decoder()
    except NotImplementedError:
        return None
