"""The delivery of an interval's records: in their own transaction, or without a transaction.

A delivery hands out producers, flushes them at the barrier, and returns the transaction for the
acknowledgement. `TransactionalDelivery` implements `exactly_once`. `NonTransactionalDelivery`
implements `at_least_once` and `none`. `at_least_once` is flushed at each barrier. `none` is flushed
only at the final barrier, because unsent records are lost when the process exits. `KafkaSinkWriter`
keeps the intervals in order; a delivery does not.

An I/O thread calls `flush` and `describe`. The mailbox thread calls everything else.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final, NamedTuple, Protocol

from tidegate.dataplane.sinks.id_pool import TransactionalIdPool
from tidegate.dataplane.sinks.pool import PooledProducer, ProducerPool
from tidegate.dataplane.subtask_context import Action, SubtaskContext
from tidegate.errors import TransactionError
from tidegate.ids import TransactionalId
from tidegate.ports.kafka import Producer, TransactionState
from tidegate.protocol.subtask_snapshot import PreparedTransaction

MS_PER_S: Final = 1000


class ProducerLease(NamedTuple):
    """A producer that takes an interval's records. `pooled` is the pooled producer with the
    transaction, None if there is no transaction.
    """

    producer: Producer
    pooled: PooledProducer | None = None


class Delivery(Protocol):
    """The operations of a guarantee that the writer needs."""

    def open(self) -> None:
        """Start to make producers. The delivery notifies the writer when a producer is ready."""
        ...

    def refill(self) -> None:
        """Replace old producers and make missing ones. The writer calls this at each barrier, and
        when transactional ids become free.
        """
        ...

    def available(self) -> int:
        """Return the number of producers for further intervals, ready or in preparation."""
        ...

    def take(self) -> ProducerLease | None:
        """Return a producer for a new interval; None if no producer is ready."""
        ...

    def closing(self, lease: ProducerLease) -> None:
        """Note that the interval is closed and is flushed next."""
        ...

    def unflushed(self) -> ProducerLease | None:
        """Return the producer with unflushed records of earlier intervals, if there is one."""
        ...

    def flush(self, lease: ProducerLease, *, final: bool) -> None:
        """Return when Kafka has acknowledged all records of the interval. Raise if it does not."""
        ...

    def describe(self, lease: ProducerLease) -> PreparedTransaction | None:
        """Check the interval's transaction and return it for the acknowledgement.

        Return None if the interval has no transaction.
        """
        ...


class TransactionalDelivery:
    """A delivery with its own producer, and so its own producer id and epoch, for each interval."""

    def __init__(
        self,
        context: SubtaskContext,
        ids: TransactionalIdPool,
        id_of: Callable[[int], TransactionalId],
        settings: Mapping[str, str],
        on_ready: Action,
    ) -> None:
        self._context, self._id_pool = context, ids
        timeout_ms = context.transaction_timeout_ms
        self._pool = ProducerPool(
            context,
            ids,
            id_of,
            lambda name: context.drivers.producer(settings, name, timeout_ms),
            on_ready,
        )

    def open(self) -> None:
        """Start to fill the pool with initialised producers."""
        self._pool.fill()

    def refill(self) -> None:
        """Use the ids that became free, and replace idle producers."""
        self._pool.fill()

    def available(self) -> int:
        """Return the number of producers that are initialised or being initialised."""
        return self._pool.available()

    def take(self) -> ProducerLease | None:
        """Return an initialised producer whose transaction has begun."""
        pooled = self._pool.take()
        if pooled is None:
            return None
        pooled.producer.begin()
        return ProducerLease(pooled.producer, pooled)

    def closing(self, lease: ProducerLease) -> None:
        """Note in the id pool that the interval is being flushed."""
        self._id_pool.flushing(_pooled(lease).index)

    def unflushed(self) -> None:
        """Return nothing, because each interval is flushed."""

    def flush(self, lease: ProducerLease, *, final: bool) -> None:  # noqa: ARG002 - all are alike
        """Flush, for at most as long as the transaction may last.

        A checkpoint that expires meanwhile changes nothing. A transaction that is prepared late is
        reported with the next checkpoint.
        """
        lease.producer.flush(self._context.transaction_timeout_ms / MS_PER_S)

    def describe(self, lease: ProducerLease) -> PreparedTransaction:
        """Return the transaction if the broker reports it as Ongoing, with the same producer id and
        epoch as after the initialisation. Raise TransactionError otherwise.

        The state in librdkafka is not sufficient: after a fatal error, its flush reports success.
        """
        pooled = _pooled(lease)
        description = self._context.transactions.describe(pooled.transactional_id)
        if (
            description is None
            or description.state is not TransactionState.ONGOING
            or not pooled.matches(description)
        ):
            found = (
                "it does not know the id"
                if description is None
                else f"{description.state.value}, producer id {description.producer_id}, "
                f"epoch {description.epoch}"
            )
            raise TransactionError(
                f"The transaction of {pooled.transactional_id} cannot be prepared. Written by "
                f"producer id {pooled.producer_id}, epoch {pooled.epoch}; its coordinator says: "
                f"{found}. It timed out, or something else used the id; nothing is lost, the job "
                "restarts from its last checkpoint."
            )
        return PreparedTransaction(
            cluster_id=self._context.transactions.cluster_id(),
            transactional_id=pooled.transactional_id,
            producer_id=description.producer_id,
            epoch=description.epoch,
            start_ms=description.start_ms,
        )


class NonTransactionalDelivery:
    """A delivery with one idempotent producer for all intervals. It reports no transactions, and
    its records are never rolled back.
    """

    def __init__(
        self,
        context: SubtaskContext,
        settings: Mapping[str, str],
        on_ready: Action,
        *,
        flushes: bool,
    ) -> None:
        self._context, self._settings, self._on_ready = context, settings, on_ready
        self._flushes, self._final = flushes, False
        self._producer: Producer | None = None

    def open(self) -> None:
        """Start to make the producer."""
        self._context.run_io(self._make)

    def refill(self) -> None:
        """Notice failed deliveries even if nothing is written, unless a flush notices them."""
        if self._producer is not None and not (self._flushes or self._final):
            self._producer.send("", (), None)

    def available(self) -> int:
        """Return a large number: every interval may use the one producer. Records that are written
        before the producer exists wait for it.
        """
        return 1 << 30

    def take(self) -> ProducerLease | None:
        """Return the producer, once it exists."""
        return None if self._producer is None else ProducerLease(self._producer)

    def closing(self, lease: ProducerLease) -> None:
        """Do nothing: this delivery has no state of an interval."""

    def unflushed(self) -> ProducerLease | None:
        """Return the producer if intervals are not flushed."""
        return None if self._flushes else self.take()

    def flush(self, lease: ProducerLease, *, final: bool) -> None:
        """Flush for `at_least_once`, and at the final barrier."""
        self._final = final
        if self._flushes or final:
            lease.producer.flush(self._context.transaction_timeout_ms / MS_PER_S)

    def describe(self, lease: ProducerLease) -> None:
        """Return nothing, because there is no transaction."""

    def _make(self) -> None:
        """Make the producer, in an I/O thread."""
        producer = self._context.drivers.producer(self._settings, None, 0)
        self._context.post(lambda: self._ready(producer))

    def _ready(self, producer: Producer) -> None:
        self._producer = producer
        self._on_ready()


def _pooled(lease: ProducerLease) -> PooledProducer:
    if lease.pooled is None:
        raise TransactionError("A plain producer was used where a transaction is asked for.")
    return lease.pooled
