"""How an interval's records travel: in a transaction of their own, or plainly.

A lane hands out producers, flushes them at the barrier, and says what there is to name in the
acknowledgement. `TransactionalDelivery` is `exactly_once`; `NonTransactionalDelivery` is
`at_least_once` (flushed at the barrier) and `none` (not even that, but at the final one, for what
is left in a producer goes with its process). `KafkaSinkWriter` keeps intervals in order; nothing
here does.

`flush` and `describe` are called in an I/O thread, everything else in the mailbox thread.
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
from tidegate.protocol.snapshots import PreparedTransaction

MS_PER_S: Final = 1000


class ProducerLease(NamedTuple):
    """A producer that takes an interval's records; `warm` says whose transaction it is."""

    producer: Producer
    warm: PooledProducer | None = None


class Delivery(Protocol):
    """What the writer asks of a guarantee."""

    def open(self) -> None:
        """Start to make producers; the lane tells the writer when one is there."""
        ...

    def refill(self) -> None:
        """Time to replace and to make producers."""
        ...

    def available(self) -> int:
        """Producers for further intervals, ready or on their way."""
        ...

    def take(self) -> ProducerLease | None:
        """A producer to begin an interval with; None while there is none."""
        ...

    def closing(self, sending: ProducerLease) -> None:
        """The interval is closed and about to be flushed."""
        ...

    def unflushed(self) -> ProducerLease | None:
        """What holds records of earlier intervals that nobody has waited for, if anything does."""
        ...

    def flush(self, sending: ProducerLease, *, final: bool) -> None:
        """Return when all of the interval is acknowledged; raise if it is not."""
        ...

    def describe(self, sending: ProducerLease) -> PreparedTransaction | None:
        """The transaction to name in the acknowledgement, checked; None if there is none."""
        ...


class TransactionalDelivery:
    """One producer, and so one producer id and epoch, per interval."""

    def __init__(
        self,
        runtime: SubtaskContext,
        slots: TransactionalIdPool,
        id_of: Callable[[int], TransactionalId],
        settings: Mapping[str, str],
        on_ready: Action,
    ) -> None:
        self._runtime, self._slots = runtime, slots
        timeout_ms = runtime.transaction_timeout_ms
        self._pool = ProducerPool(
            runtime,
            slots,
            id_of,
            lambda name: runtime.drivers.producer(settings, name, timeout_ms),
            on_ready,
        )

    def open(self) -> None:
        """Warm the pool."""
        self._pool.fill()

    def refill(self) -> None:
        """Use slots that became free; replace idle producers."""
        self._pool.fill()

    def available(self) -> int:
        """Producers that are warm or warming."""
        return self._pool.available()

    def take(self) -> ProducerLease | None:
        """A warm producer with its transaction begun."""
        warm = self._pool.take()
        if warm is None:
            return None
        warm.producer.begin()
        return ProducerLease(warm.producer, warm)

    def closing(self, sending: ProducerLease) -> None:
        """The slot goes on to be flushed."""
        self._slots.flushing(_warm(sending).slot)

    def unflushed(self) -> None:
        """Nothing: each interval is flushed."""

    def flush(self, sending: ProducerLease, *, final: bool) -> None:  # noqa: ARG002 - all are alike
        """As long as the transaction may last: a checkpoint that expires meanwhile changes nothing,
        what is prepared late is named with the next.
        """
        sending.producer.flush(self._runtime.transaction_timeout_ms / MS_PER_S)

    def describe(self, sending: ProducerLease) -> PreparedTransaction:
        """The broker must say Ongoing, of the same producer id and epoch as when it was made.

        librdkafka's own state is not enough: after a fatal error its flush reports success.
        """
        warm = _warm(sending)
        facts = self._runtime.transactions.describe(warm.transactional_id)
        if facts is None or facts.state is not TransactionState.ONGOING or not warm.matches(facts):
            found = (
                "it does not know the id"
                if facts is None
                else f"{facts.state.value}, producer id {facts.producer_id}, epoch {facts.epoch}"
            )
            raise TransactionError(
                f"The transaction of {warm.transactional_id} cannot be prepared. Written by "
                f"producer id {warm.producer_id}, epoch {warm.epoch}; its coordinator says: "
                f"{found}. It timed out, or something else used the id; nothing is lost, the job "
                "restarts from its last checkpoint."
            )
        return PreparedTransaction(
            cluster_id=self._runtime.transactions.cluster_id(),
            transactional_id=warm.transactional_id,
            producer_id=facts.producer_id,
            epoch=facts.epoch,
            start_ms=facts.start_ms,
        )


class NonTransactionalDelivery:
    """One idempotent producer for all intervals; nothing is named, nothing is ever undone."""

    def __init__(
        self,
        runtime: SubtaskContext,
        settings: Mapping[str, str],
        on_ready: Action,
        *,
        flushes: bool,
    ) -> None:
        self._runtime, self._settings, self._made = runtime, settings, on_ready
        self._flushes, self._final = flushes, False
        self._producer: Producer | None = None

    def open(self) -> None:
        """Make the producer."""
        self._runtime.run_io(self._make)

    def refill(self) -> None:
        """Notice failed deliveries also while nothing is written, unless a flush does."""
        if self._producer is not None and not (self._flushes or self._final):
            self._producer.send("", (), None)

    def available(self) -> int:
        """Any interval may use the one producer; what is written before it is there waits."""
        return 1 << 30

    def take(self) -> ProducerLease | None:
        """The producer, once it is made."""
        return None if self._producer is None else ProducerLease(self._producer)

    def closing(self, sending: ProducerLease) -> None:
        """Nothing to note."""

    def unflushed(self) -> ProducerLease | None:
        """The producer, where intervals are not flushed."""
        return None if self._flushes else self.take()

    def flush(self, sending: ProducerLease, *, final: bool) -> None:
        """For `at_least_once`, and at the end."""
        self._final = final
        if self._flushes or final:
            sending.producer.flush(self._runtime.transaction_timeout_ms / MS_PER_S)

    def describe(self, sending: ProducerLease) -> None:
        """Nothing to name."""

    def _make(self) -> None:
        """In an I/O thread."""
        producer = self._runtime.drivers.producer(self._settings, None, 0)
        self._runtime.post(lambda: self._ready(producer))

    def _ready(self, producer: Producer) -> None:
        self._producer = producer
        self._made()


def _warm(sending: ProducerLease) -> PooledProducer:
    if sending.warm is None:
        raise TransactionError("a plain producer was used where a transaction is asked for")
    return sending.warm
