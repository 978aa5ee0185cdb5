"""Which transaction slot of a sink subtask is free, warm, in use, prepared or ended: a pure table.

A slot is the last part of a transactional id. `pool.py` and `kafka.py` carry out what it allows, in
the mailbox thread; it does no I/O itself.

Theory of operation. A slot is initialised (WARMING), waits with its producer (WARM), takes an
interval's records (CURRENT), is flushed at the barrier (FLUSHING) and then holds a transaction that
only the transaction committer may end (PREPARED). Being told that it was ended takes it out of
acknowledgements (ENDED). Only being told that the journal names it no more makes it FREE:
initialising its id moves the epoch, and a recovery that still finds the transaction named would
take it for lost.

Invariants: `transactions` is exactly what was prepared and not told ended; between PREPARED and
FREE nothing makes a slot available for a new producer.
"""

from __future__ import annotations

import enum
from collections import deque
from typing import Final

from tidegate.errors import check
from tidegate.ids import CheckpointId
from tidegate.protocol.snapshots import PreparedTransaction


class IdState(enum.Enum):
    """Where a transaction slot is in its circle."""

    FREE = "free"
    WARMING = "warming"
    WARM = "warm"
    CURRENT = "current"
    FLUSHING = "flushing"
    PREPARED = "prepared"
    ENDED = "ended"


_MOVES: Final = frozenset(
    {
        (IdState.FREE, IdState.WARMING),
        (IdState.WARMING, IdState.WARM),
        (IdState.WARM, IdState.WARMING),  # idle for too long: it gets a new producer
        (IdState.WARM, IdState.CURRENT),
        (IdState.CURRENT, IdState.FLUSHING),
        (IdState.FLUSHING, IdState.PREPARED),
        (IdState.PREPARED, IdState.ENDED),
        (IdState.ENDED, IdState.FREE),
    }
)


class TransactionalIdPool:
    """The slots 0 to `count`-1 of one sink subtask in one attempt."""

    def __init__(self, count: int) -> None:
        check(count > 0, "a sink has at least one transaction slot")
        self._states = [IdState.FREE] * count
        self._free = deque(range(count))
        self._prepared: dict[int, tuple[CheckpointId, PreparedTransaction]] = {}

    def state(self, slot: int) -> IdState:
        """Where `slot` is."""
        return self._states[slot]

    def count(self, *states: IdState) -> int:
        """Number of slots in any of these states."""
        return sum(state in states for state in self._states)

    def take_free(self) -> int | None:
        """A slot to initialise a producer in, longest free first; None if all are in use."""
        if not self._free:
            return None
        slot = self._free.popleft()
        self._move(slot, IdState.WARMING)
        return slot

    def warmed(self, slot: int) -> None:
        """Its producer is initialised."""
        self._move(slot, IdState.WARM)

    def reinitialise(self, slot: int) -> None:
        """Its producer has been idle for too long, and a new one replaces it."""
        self._move(slot, IdState.WARMING)

    def taken(self, slot: int) -> None:
        """Its producer takes records from now on."""
        self._move(slot, IdState.CURRENT)

    def flushing(self, slot: int) -> None:
        """Its interval is closed."""
        self._move(slot, IdState.FLUSHING)

    def prepared(
        self, slot: int, checkpoint: CheckpointId, transaction: PreparedTransaction
    ) -> None:
        """Flushed and described as Ongoing: from now on in every acknowledgement until `ended`."""
        self._move(slot, IdState.PREPARED)
        self._prepared[slot] = (checkpoint, transaction)

    def transactions(self) -> tuple[PreparedTransaction, ...]:
        """What was prepared and not told ended, in the order in which it was prepared."""
        return tuple(transaction for _, transaction in self._prepared.values())

    def ended(self, slot: int, by: CheckpointId | None = None) -> None:
        """The broker has ended the slot's transaction, after checkpoint `by` named it.

        Told twice, it changes nothing; told late, of the slot's transaction before, it must not
        take the present one out of acknowledgements, so one prepared after `by` stays.
        """
        if self._states[slot] is not IdState.PREPARED:
            return
        checkpoint, _ = self._prepared[slot]
        if by is not None and checkpoint > by:
            return
        del self._prepared[slot]
        self._move(slot, IdState.ENDED)

    def freed(self, slot: int) -> None:
        """The journal does not name the slot's transaction any more: its id may be used again.

        Ignored for a slot that is not ENDED: told twice or late, it is about a transaction before.
        """
        if self._states[slot] is not IdState.ENDED:
            return
        self._move(slot, IdState.FREE)
        self._free.append(slot)

    def _move(self, slot: int, to: IdState) -> None:
        now = self._states[slot]
        check(
            (now, to) in _MOVES, f"transaction slot {slot} cannot go from {now.value} to {to.value}"
        )
        self._states[slot] = to
