"""The interface between the engine and the writer of a sink: the sink's part of two-phase commit.

A subtask calls the writer in the mailbox thread, so no method may block. Blocking calls run in I/O
threads (`SubtaskContext.run_io`) and post their outcome (`SubtaskContext.post`).

Invariant of every writer: when `prepare` answers, each record that was written before the barrier
is safe in the external system, or part of a transaction that the answer lists. A writer never
commits a transaction: the transaction committer does, after the checkpoint is published.

A writer without transactions (at-least-once) answers with an empty tuple after its flush. The
records after the last checkpoint then come twice after a failure, and none is lost.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from tidegate.ids import CheckpointId, TransactionalId
from tidegate.protocol.subtask_snapshot import PreparedTransaction
from tidegate.stream_elements import RecordBatch


class SinkWriter(Protocol):
    """The writer of one sink in one subtask."""

    def open(self) -> None:
        """Start to connect, before the first record."""
        ...

    def write(self, batch: RecordBatch) -> None:
        """Write the records, or keep them for later. Called only after `writable` returned true.

        Raise UserCodeError for a record that cannot be encoded, if the sink's policy is "fail".
        """
        ...

    def writable(self) -> bool:
        """Return whether the records that one more batch may produce can be taken."""
        ...

    def prepare(
        self,
        checkpoint: CheckpointId,
        done: Callable[[tuple[PreparedTransaction, ...]], None],
        *,
        final: bool,
    ) -> None:
        """Flush the records before the barrier, and call `done` in the mailbox thread.

        `done` gets every transaction that is prepared and not reported as ended, oldest first.
        `final` says that no record follows. If the flush fails, the attempt ends
        (`SubtaskContext.fail`), and `done` is not called.
        """
        ...

    def ended(self, ids: Sequence[TransactionalId], checkpoint: CheckpointId | None = None) -> None:
        """Note that these transactions, which `checkpoint` listed, are committed."""
        ...

    def freed(self, ids: Sequence[TransactionalId]) -> None:
        """Note that the journal no longer lists these transactions. Their ids may be used again."""
        ...
