"""The work that subtasks have acknowledged, and that a later checkpoint must still contain.

These are the prepared transactions of each subtask, and its last snapshot. The coordinator gives
every acknowledgement to this object, also a late one and one of an aborted checkpoint. It does not
decide which checkpoint is triggered, complete or aborted.

Invariant: a prepared transaction is forgotten only when it is known to be committed, or when a
newer acknowledgement of the subtask does not list it. The whole last snapshot of a finished subtask
goes into every later checkpoint.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

import msgspec

from tidegate.checkpoint.pending import PendingCheckpoint, union
from tidegate.ids import CheckpointId, SubtaskId
from tidegate.protocol.subtask_snapshot import PreparedTransaction, SubtaskSnapshot


class AcknowledgedWork:
    """The transactions and the last snapshot of each subtask of an attempt."""

    def __init__(self) -> None:
        self._pending_transactions: dict[SubtaskId, tuple[PreparedTransaction, ...]] = {}
        """The transactions of each subtask's newest acknowledgement that are not known to be
        committed.
        """
        self._acknowledged: dict[SubtaskId, CheckpointId] = {}
        """The checkpoint of this acknowledgement."""
        self._latest_snapshot: dict[SubtaskId, SubtaskSnapshot] = {}
        """The newest snapshot of each subtask; used for subtasks that have finished."""

    def remember(self, checkpoint: CheckpointId, snapshot: SubtaskSnapshot) -> None:
        """Remember the transactions of a subtask's newest acknowledgement: all transactions that it
        has prepared and that it does not know to be committed. An older acknowledgement has none
        that are not in a newer one.
        """
        subtask = subtask_of(snapshot)
        if subtask in self._acknowledged and checkpoint < self._acknowledged[subtask]:
            return
        self._acknowledged[subtask] = checkpoint
        self._pending_transactions[subtask] = snapshot.transactions

    def keep_snapshot(self, snapshot: SubtaskSnapshot) -> None:
        """Keep the snapshot of the pending checkpoint as the subtask's last one."""
        self._latest_snapshot[subtask_of(snapshot)] = snapshot

    def drop_committed(self, transactions: Iterable[PreparedTransaction]) -> None:
        """Forget transactions that are known to be committed."""
        ended = frozenset(transactions)
        for subtask, carried in self._pending_transactions.items():
            self._pending_transactions[subtask] = tuple(txn for txn in carried if txn not in ended)

    def transactions(self) -> tuple[PreparedTransaction, ...]:
        """Return all remembered transactions, in the order of the subtasks."""
        return union(
            [self._pending_transactions[subtask] for subtask in sorted(self._pending_transactions)]
        )

    def snapshots(
        self, pending: PendingCheckpoint, running: Collection[SubtaskId]
    ) -> tuple[SubtaskSnapshot, ...]:
        """Return the snapshots of a checkpoint, and for each finished subtask its last snapshot
        with the transactions that are still remembered for it.
        """
        finished = [
            msgspec.structs.replace(snapshot, transactions=self._pending_transactions[subtask])
            for subtask, snapshot in self._latest_snapshot.items()
            if subtask not in running and subtask not in pending.acknowledged
        ]
        parts = [*pending.snapshots, *finished]
        return tuple(sorted(parts, key=lambda part: (part.vertex, part.index)))


def subtask_of(snapshot: SubtaskSnapshot) -> SubtaskId:
    """Return the subtask that has taken a snapshot."""
    return SubtaskId(snapshot.vertex, snapshot.index)
