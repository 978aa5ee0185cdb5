"""Producers that are initialised before they are needed, because that takes 0.06 s or longer.

`KafkaSinkWriter` takes one producer per transaction from the pool, in the mailbox thread. I/O
threads make the producers and post them. Each producer has its own transactional id and is never
handed out twice. The identity of a producer is the producer id and epoch that the coordinator
reports directly after the initialisation. The pre-commit check compares with this identity.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Final

from tidegate.dataplane.sinks.id_pool import IdState, TransactionalIdPool
from tidegate.dataplane.subtask_context import Action, SubtaskContext
from tidegate.errors import TransactionError
from tidegate.ids import TransactionalId
from tidegate.ports.kafka import Producer, TransactionDescription, TransactionState

IDLE_MAX_S: Final = 86_400.0
"""Seconds after which an idle producer is replaced: a day. The broker forgets an idle transactional
id after 7 days, and the sequence of a producer id after one day.
"""


@dataclass(slots=True, frozen=True, kw_only=True)
class PooledProducer:
    """An initialised producer, its transactional id and its identity at the coordinator."""

    index: int
    transactional_id: TransactionalId
    producer: Producer
    producer_id: int
    epoch: int
    made_at: float
    """Monotonic time of the initialisation, in seconds."""

    def matches(self, description: TransactionDescription | None) -> bool:
        """Return whether the coordinator still describes this same producer."""
        return description is not None and (description.producer_id, description.epoch) == (
            self.producer_id,
            self.epoch,
        )


class ProducerPool:
    """A pool that keeps `context.producer_pool_size` producers initialised, as far as ids are free.

    The pool calls `on_ready` in the mailbox thread whenever a producer becomes available.
    """

    def __init__(
        self,
        context: SubtaskContext,
        ids: TransactionalIdPool,
        id_of: Callable[[int], TransactionalId],
        make: Callable[[TransactionalId], Producer],
        on_ready: Action,
    ) -> None:
        self._context, self._id_pool, self._id_of = context, ids, id_of
        self._make, self._on_ready = make, on_ready
        self._pooled: deque[PooledProducer] = deque()

    def fill(self) -> None:
        """Start to initialise missing producers. Replace those that have been idle for a day."""
        oldest_s = self._context.drivers.clock.monotonic() - IDLE_MAX_S
        while self._pooled and self._pooled[0].made_at < oldest_s:
            index = self._pooled.popleft().index
            self._id_pool.reinitialise(index)
            self._initialise(index)
        while self.available() < self._context.producer_pool_size:
            free = self._id_pool.take_free()
            if free is None:
                return
            self._initialise(free)

    def available(self) -> int:
        """Return the number of producers that are ready or in preparation."""
        return self._id_pool.count(IdState.INITIALISED, IdState.INITIALISING)

    def take(self) -> PooledProducer | None:
        """Return the producer that has waited longest, None if none is ready. Start to make
        another.
        """
        self.fill()
        if not self._pooled:
            return None
        taken = self._pooled.popleft()
        self._id_pool.taken(taken.index)
        self.fill()
        return taken

    def _initialise(self, index: int) -> None:
        self._context.run_io(partial(self._initialise_producer, index))

    def _initialise_producer(self, index: int) -> None:
        """Initialise a producer and read its identity, in an I/O thread."""
        name = self._id_of(index)
        producer = self._make(name)
        description = self._context.transactions.describe(name)
        if description is None or description.state is not TransactionState.EMPTY:
            found = "unknown" if description is None else description.state.value
            raise TransactionError(
                f"Transactional id {name} was just initialised, and its coordinator calls it "
                f"{found}: something else uses ids with the prefix tidegate. Find and stop it."
            )
        pooled = PooledProducer(
            index=index,
            transactional_id=name,
            producer=producer,
            producer_id=description.producer_id,
            epoch=description.epoch,
            made_at=self._context.drivers.clock.monotonic(),
        )
        self._context.post(partial(self._ready, pooled))

    def _ready(self, pooled: PooledProducer) -> None:
        self._id_pool.initialised(pooled.index)
        self._pooled.append(pooled)
        self._on_ready()
