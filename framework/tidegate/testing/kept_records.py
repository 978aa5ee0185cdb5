"""The sinks of a pipeline under test: they encode each record as the real sink would, and keep it.

`KeptRecords` is the topic, and outlives a crash. `KeepingSinkWriter` is the writer of one subtask.
The records between two barriers are one transaction of that subtask. Its barrier gives them the id
of the checkpoint. When the checkpoint is complete, they are committed, and so are those of earlier
ones. A crash withdraws the others.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from tidegate.api.copying import copy_value
from tidegate.api.sink import Sink
from tidegate.dataplane.refusals import Refusals
from tidegate.errors import PipelineError
from tidegate.ids import CheckpointId, TransactionalId
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

    Because it keeps copies, a later change of a record by another step does not change the output.
    """

    def __init__(self, sink: Sink[Any], kept: KeptRecords, refusals: Refusals) -> None:
        self._kept, self._refusals = kept, refusals
        self._encode = sink.encoder()
        self._open: list[KeptRecord] = []
        """The records since the last barrier."""

    def open(self) -> None:
        """Do nothing: there is no producer to open."""

    def write(self, batch: RecordBatch) -> None:
        for index, value in enumerate(batch.values):
            written = copy_value(value)  # before `key_by`, as the real sink encodes it
            try:
                self._encode(value)
            except BaseException as error:
                if not (self._refusals.covers(error) or self._refuses(error)):
                    raise
                self._refusals.refuse(batch, index, described(error))
            else:
                self._open.append(self._kept.add(written))

    def _refuses(self, error: BaseException) -> bool:
        """Return whether the policy covers an error that tidegate itself raises for a key."""
        return self._refusals.tolerant and isinstance(error, PipelineError)

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
