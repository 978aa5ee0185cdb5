"""A pure table of the states of a sink subtask's transactional ids, from free to ended.

The table identifies an id by its index in the pool.
`pool.py` and `kafka.py` do the work that the table allows, in the mailbox thread. The table itself
does no I/O.

Theory of operation. An id is initialised (WARMING), waits with its producer (WARM), takes the
records of an interval (CURRENT) and is flushed at the barrier (FLUSHING). It then holds a
transaction that only the transaction committer may end (PREPARED). A report that the transaction
has ended removes it from acknowledgements (ENDED). Only a report that the journal no longer lists
the transaction makes the id FREE. An earlier initialisation of the id would increase its epoch. A
recovery that still finds the transaction in the journal would then treat it as lost.

Invariants: `transactions` returns exactly the transactions that were prepared and not reported as
ended. Between PREPARED and FREE, an id is not available for a new producer.
"""

from __future__ import annotations

import enum
from collections import deque
from typing import Final

from tidegate.errors import check
from tidegate.ids import CheckpointId
from tidegate.protocol.subtask_snapshot import PreparedTransaction


class IdState(enum.Enum):
    """The state of a transactional id in its cycle."""

    FREE = "free"
    INITIALISING = "warming"
    INITIALISED = "warm"
    CURRENT = "current"
    FLUSHING = "flushing"
    PREPARED = "prepared"
    ENDED = "ended"


_MOVES: Final = frozenset(
    {
        (IdState.FREE, IdState.INITIALISING),
        (IdState.INITIALISING, IdState.INITIALISED),
        (IdState.INITIALISED, IdState.INITIALISING),  # idle for too long: it gets a new producer
        (IdState.INITIALISED, IdState.CURRENT),
        (IdState.CURRENT, IdState.FLUSHING),
        (IdState.FLUSHING, IdState.PREPARED),
        (IdState.PREPARED, IdState.ENDED),
        (IdState.ENDED, IdState.FREE),
    }
)


class TransactionalIdPool:
    """The transactional ids with indexes 0 to `count` - 1 of one sink subtask in one attempt."""

    def __init__(self, count: int) -> None:
        check(count > 0, "a sink has at least one transactional id")
        self._states = [IdState.FREE] * count
        self._free = deque(range(count))
        self._prepared: dict[int, tuple[CheckpointId, PreparedTransaction]] = {}

    def state(self, index: int) -> IdState:
        """Return the state of an id."""
        return self._states[index]

    def count(self, *states: IdState) -> int:
        """Return the number of ids in any of these states."""
        return sum(state in states for state in self._states)

    def take_free(self) -> int | None:
        """Return the id that has been free longest, to initialise a producer; None if all are in
        use.
        """
        if not self._free:
            return None
        index = self._free.popleft()
        self._move(index, IdState.INITIALISING)
        return index

    def initialised(self, index: int) -> None:
        """Note that the id's producer is initialised."""
        self._move(index, IdState.INITIALISED)

    def reinitialise(self, index: int) -> None:
        """Note that a new producer replaces the id's producer, which has been idle for too long."""
        self._move(index, IdState.INITIALISING)

    def taken(self, index: int) -> None:
        """Note that the id's producer takes records from now on."""
        self._move(index, IdState.CURRENT)

    def flushing(self, index: int) -> None:
        """Note that the id's interval is closed."""
        self._move(index, IdState.FLUSHING)

    def prepared(
        self, index: int, checkpoint: CheckpointId, transaction: PreparedTransaction
    ) -> None:
        """Note that the id's transaction is flushed and described as Ongoing.

        Every acknowledgement contains the transaction from now on, until `ended`.
        """
        self._move(index, IdState.PREPARED)
        self._prepared[index] = (checkpoint, transaction)

    def transactions(self) -> tuple[PreparedTransaction, ...]:
        """Return the transactions that are prepared and not reported as ended, oldest first."""
        return tuple(transaction for _, transaction in self._prepared.values())

    def ended(self, index: int, by: CheckpointId | None = None) -> None:
        """Note that the broker has ended the id's transaction, which checkpoint `by` listed.

        A repeated report changes nothing. A late report concerns an earlier transaction of the id.
        It must not remove the present transaction from acknowledgements, so a transaction prepared
        after `by` stays.
        """
        if self._states[index] is not IdState.PREPARED:
            return
        checkpoint, _ = self._prepared[index]
        if by is not None and checkpoint > by:
            return
        del self._prepared[index]
        self._move(index, IdState.ENDED)

    def freed(self, index: int) -> None:
        """Note that the journal no longer lists the id's transaction. The id may be used again.

        The report is ignored for an id that is not ENDED. It is then repeated or late and concerns
        an earlier transaction.
        """
        if self._states[index] is not IdState.ENDED:
            return
        self._move(index, IdState.FREE)
        self._free.append(index)

    def _move(self, index: int, to: IdState) -> None:
        now = self._states[index]
        check(
            (now, to) in _MOVES,
            f"transactional id {index} cannot go from {now.value} to {to.value}",
        )
        self._states[index] = to
