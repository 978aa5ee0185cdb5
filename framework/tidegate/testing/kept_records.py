"""The sinks of a pipeline under test: they encode each record as the real sink would, and keep it.

`KeptRecords` is the topic, and outlives a crash. `KeepingSinkWriter` is the writer of one subtask.
The records of an interval are in one transaction per sink, of which nothing is prepared: the test
takes checkpoints only while nothing is on its way, so it commits or withdraws all at once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tidegate.api.copying import copy_value
from tidegate.api.sink import Sink
from tidegate.dataplane.refusals import Refusals, reason_of
from tidegate.errors import PipelineError
from tidegate.ids import CheckpointId, TransactionalId
from tidegate.protocol.subtask_snapshot import PreparedTransaction
from tidegate.stream_elements import RecordBatch


class KeptRecords:
    """The records of one sink that the test has not read yet, in the order of writing."""

    def __init__(self, guarantee: str) -> None:
        self._guarantee = guarantee
        self.records: list[Any] = []
        self._committed = 0
        """The number of records that a checkpoint has committed. They come first."""

    def take(self) -> list[Any]:
        """Return all records, and forget them."""
        taken, self.records[:] = list(self.records), []
        self._committed = 0
        return taken

    def commit(self) -> None:
        """Note a completed checkpoint: no crash withdraws the records so far."""
        self._committed = len(self.records)

    def withdraw(self) -> None:
        """Note a crash. The open transaction is aborted, if the sink has one."""
        if self._guarantee == "exactly_once":
            del self.records[self._committed :]


class KeepingSinkWriter:
    """The writer of a sink in one subtask.

    Because it keeps copies, a later change of a record by another step does not change the output.
    """

    def __init__(self, sink: Sink[Any], kept: KeptRecords, refusals: Refusals) -> None:
        self._kept, self._refusals = kept, refusals
        self._encode = sink.encoder()

    def open(self) -> None:
        """Do nothing: there is no producer to open."""

    def write(self, batch: RecordBatch) -> None:
        for index, value in enumerate(batch.values):
            written = copy_value(value)  # before `key_by`, as the real sink encodes it
            try:
                self._encode(value)
            except Exception as error:
                if not (self._refusals.covers(error) or self._refuses(error)):
                    raise
                self._refusals.refuse(batch, index, reason_of(error))
            else:
                self._kept.records.append(written)

    def _refuses(self, error: Exception) -> bool:
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
        """Prepare nothing: `KeptRecords.commit` commits the records."""
        del checkpoint, final
        done(())

    def ended(self, ids: Sequence[TransactionalId], checkpoint: CheckpointId | None = None) -> None:
        """Do nothing: no transaction was prepared."""

    def freed(self, ids: Sequence[TransactionalId]) -> None:
        """Do nothing: no transaction was prepared."""
