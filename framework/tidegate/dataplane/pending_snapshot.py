"""The parts of one subtask's snapshot while they become durable.

A task hands the parts to I/O threads. When the last one is durable, the snapshot is complete, and
the task acknowledges it. This module does not know how a part becomes durable.
"""

from __future__ import annotations

from collections.abc import Callable

from tidegate.errors import check
from tidegate.protocol.subtask_snapshot import (
    KeyedSnapshot,
    PreparedTransaction,
    SourceSplit,
    StepWatermark,
)


class PendingSnapshot:
    """The parts of one subtask's snapshot while they become durable. The mailbox thread makes all
    calls.
    """

    def __init__(
        self,
        *,
        parts: int,
        splits: tuple[SourceSplit, ...],
        watermarks: tuple[StepWatermark, ...],
        alignment_ms: int,
        drained: bool,
        done: Callable[[PendingSnapshot], None],
    ) -> None:
        self._missing, self._done = parts, done
        self.splits, self.alignment_ms, self.drained = splits, alignment_ms, drained
        self.watermarks = watermarks
        self.keyed: list[KeyedSnapshot] = []
        self.transactions: list[PreparedTransaction] = []
        self.sync_ms = 0

    def transactions_prepared(self, transactions: tuple[PreparedTransaction, ...]) -> None:
        """Take the prepared transactions of one sink."""
        self.transactions.extend(transactions)
        self._part_done()

    def state_stored(self, snapshot: KeyedSnapshot) -> None:
        """Take the stored state of one step."""
        self.keyed.append(snapshot)
        self._part_done()

    def sync_phase_done(self, sync_ms: int) -> None:
        """Note the end of the synchronous part, and its duration."""
        self.sync_ms = sync_ms
        self._part_done()

    def _part_done(self) -> None:
        self._missing -= 1
        check(self._missing >= 0, "a part of a snapshot was reported twice")
        if self._missing == 0:
            self._done(self)
