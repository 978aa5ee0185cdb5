"""The Kafka sink of one subtask: one transaction per interval, prepared at the barrier.

Only its subtask calls the sink, in the mailbox thread. Blocking calls run in I/O threads and post
their outcome. The sink prepares transactions and never commits them. The transaction committer ends
a transaction after the publication.

The records between two barriers are an *interval*. Intervals form a queue, which follows two rules.
No record of an interval is sent before the flush of the previous interval has returned, because
otherwise records of one partition could land in the wrong order. With `exactly_once`, each interval
that sends records uses its own producer. Records that cannot be sent yet are kept encoded, up to a
limit. When the limit is reached, the sink is not writable. A barrier closes the last interval at
once, so a barrier never waits in front of the sink.

    open -> closed -> (all sent, handed to an I/O thread) -> flushed -> described -> reported

Invariant: for a checkpoint, `prepare` reports every transaction that this subtask has prepared up
to the barrier and that was not yet reported as ended. It never reports a transaction that holds a
record from behind the barrier.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

from tidegate.api.connectors.kafka_sink import KafkaSink
from tidegate.commit.transactional_ids import format_transactional_id
from tidegate.dataplane.refusals import Refusals
from tidegate.dataplane.sinks.delivery import (
    Delivery,
    NonTransactionalDelivery,
    ProducerLease,
    TransactionalDelivery,
)
from tidegate.dataplane.sinks.encoding import BatchEncoder, Encoded
from tidegate.dataplane.sinks.id_pool import TransactionalIdPool
from tidegate.dataplane.sizes import size_settings
from tidegate.dataplane.subtask_context import SubtaskContext
from tidegate.ids import CheckpointId, TransactionalId, Uid
from tidegate.protocol.subtask_snapshot import PreparedTransaction
from tidegate.stream_elements import RecordBatch

BUFFERED_RECORDS_MAX: Final = 65_536
BUFFERED_BYTES_MAX: Final = 16 << 20
"""Limits of the records and bytes that wait for a flush or a producer. The records are 0.1 s of a
fast pipeline, as long as a flush takes under load. The bytes are a twelfth of a slot's memory.
"""

Done = Callable[[tuple[PreparedTransaction, ...]], None]


@dataclass(slots=True)
class _BarrierInterval:
    """The part between two barriers that is not yet handed to an I/O thread."""

    lease: ProducerLease | None = None
    waiting: deque[tuple[Encoded, int]] = field(default_factory=deque)
    """Batches that wait for a flush or a producer, each with its size in bytes."""
    checkpoint: CheckpointId | None = None
    """The checkpoint whose barrier has closed the interval. None while the interval is open."""
    done: Done | None = None
    final: bool = False


@dataclass(slots=True)
class _PreparingInterval:
    """An interval whose records are all sent, until its part of the checkpoint is reported."""

    checkpoint: CheckpointId
    done: Done
    complete: bool
    transaction: PreparedTransaction | None = None


class KafkaSinkWriter:
    """The writer of one sink in one subtask. `prepare` answers through the mailbox, in order.

    The writer is never closed, but ends with its process. Prepared transactions then stay open for
    the transaction committer, and the others are fenced.
    """

    def __init__(
        self,
        sink: KafkaSink[Any],
        uid: Uid,
        context: SubtaskContext,
        refusals: Refusals | None = None,
    ) -> None:
        configured = context.config.sink(uid)
        self._topic = configured.topic or sink.topic
        self._context = context
        bytes_max = context.record_bytes_max(uid, sink.topic, sink.properties)
        self._encoder = BatchEncoder(sink, uid, refusals, bytes_max)
        self._id_pool = TransactionalIdPool(len(context.transactional_id_indexes))
        self._ids = {
            format_transactional_id(
                job=context.job,
                journal_id=context.journal_id,
                sink=uid,
                attempt=context.attempt,
                subtask=context.subtask.index,
                index=number,
            ): index
            for index, number in enumerate(context.transactional_id_indexes)
        }
        limit = context.max_message_bytes.get(self._topic)
        given = context.connector_kafka(sink.properties, configured.properties)
        settings = size_settings(given, limit)
        self._delivery: Delivery
        if sink.guarantee == "exactly_once":
            names = {index: name for name, index in self._ids.items()}
            self._delivery = TransactionalDelivery(
                context, self._id_pool, names.__getitem__, settings, self._send_pending
            )
        else:
            flushes = sink.guarantee == "at_least_once"
            self._delivery = NonTransactionalDelivery(
                context, settings, self._send_pending, flushes=flushes
            )
        self._intervals = deque([_BarrierInterval()])
        self._closing: deque[_PreparingInterval] = deque()
        self._flushing = False
        self._buffered_records = self._buffered_bytes = self._sent = 0

    def open(self) -> None:
        """Start to make producers, and return at once."""
        self._delivery.open()

    def writable(self) -> bool:
        """Return whether `write` may be called.

        The waiting records must be within their limits, and the interval must have a producer or be
        certain to get one. Without a producer no records wait here, so a barrier finds nothing to
        prepare.
        """
        if (
            self._buffered_records >= BUFFERED_RECORDS_MAX
            or self._buffered_bytes >= BUFFERED_BYTES_MAX
        ):
            return False
        last = self._intervals[-1]
        if last.lease is not None or last.waiting:
            return True
        promised = sum(
            interval.lease is None and bool(interval.waiting) for interval in self._intervals
        )
        return self._delivery.available() > promised

    def write(self, batch: RecordBatch) -> None:
        """Encode the records and send them, or keep them for later.

        Raise UserCodeError if a value cannot be encoded, and TransactionError if Kafka refuses a
        record.
        """
        if not batch.values:
            return
        encoded = self._encoder.encode(batch)
        if not encoded.values:
            return  # all were refused
        self._context.counters.records_out += len(encoded)
        interval = self._intervals[-1]
        if interval.lease is not None and not interval.waiting:
            self._send(interval.lease, encoded)
            return
        size = encoded.size()
        interval.waiting.append((encoded, size))
        self._buffered_records += len(encoded)
        self._buffered_bytes += size
        self._send_pending()

    def prepare(self, checkpoint: CheckpointId, done: Done, *, final: bool = False) -> None:
        """Close the interval at a barrier, and call `done` in the mailbox when its records are
        flushed.

        If the guarantee waits for no flush (`none`), only a `final` barrier waits. `done` gets
        every prepared transaction that was not reported as ended, oldest first. If the flush or the
        check fails, the attempt ends and `done` is not called.
        """
        last = self._intervals[-1]
        last.checkpoint, last.done, last.final = checkpoint, done, final
        self._intervals.append(_BarrierInterval())
        self._delivery.refill()
        self._send_pending()

    def ended(self, ids: Sequence[TransactionalId], checkpoint: CheckpointId | None = None) -> None:
        """Note that the broker has committed these transactions, which `checkpoint` listed.

        Ids of other sinks are ignored. Acknowledgements no longer contain the transactions. Their
        ids are not free yet.
        """
        for name in ids:
            if name in self._ids:
                self._id_pool.ended(self._ids[name], checkpoint)

    def freed(self, ids: Sequence[TransactionalId]) -> None:
        """Note that the journal no longer lists these transactions. Their ids may be used again."""
        for name in ids:
            if name in self._ids:
                self._id_pool.freed(self._ids[name])
        self._delivery.refill()

    def sent(self) -> int:
        """Return the number of records handed to producers since the start."""
        return self._sent

    def _send_pending(self) -> None:
        """Send waiting records and close fully sent intervals, as far as flushes and producers
        allow.
        """
        while not self._flushing:
            first = self._intervals[0]
            if first.waiting:
                if first.lease is None:
                    first.lease = self._delivery.take()
                if first.lease is None:
                    return
                self._send_waiting(first, first.lease)
            if first.checkpoint is None or first.done is None:
                return
            self._intervals.popleft()
            lease = first.lease
            if lease is None and first.final:
                lease = self._delivery.unflushed()
            self._close(lease, first.checkpoint, first.done, final=first.final)

    def _send_waiting(self, interval: _BarrierInterval, lease: ProducerLease) -> None:
        while interval.waiting:
            encoded, size = interval.waiting.popleft()
            self._buffered_records -= len(encoded)
            self._buffered_bytes -= size
            self._send(lease, encoded)

    def _send(self, lease: ProducerLease, encoded: Encoded) -> None:
        self._sent += len(encoded)
        producer = lease.producer
        if encoded.extras is None:
            producer.send(self._topic, encoded.values, encoded.keys)
            return
        keys = encoded.keys or [None] * len(encoded)
        for value, key, (headers, timestamp_ms) in zip(
            encoded.values, keys, encoded.extras, strict=True
        ):
            producer.send_one(self._topic, value, key, headers, timestamp_ms)
        producer.send(self._topic, (), None)  # notices failed deliveries

    def _close(
        self, lease: ProducerLease | None, checkpoint: CheckpointId, done: Done, *, final: bool
    ) -> None:
        closing = _PreparingInterval(checkpoint, done, complete=lease is None)
        self._closing.append(closing)
        if lease is None:
            self._report()
            return
        self._flushing = True
        self._delivery.closing(lease)
        # The action in the I/O thread holds the last reference to the producer, so the producer is
        # dropped in that thread.
        self._context.run_io(partial(self._prepare, lease, closing, final=final))

    def _prepare(self, lease: ProducerLease, closing: _PreparingInterval, *, final: bool) -> None:
        """Flush, then check, in an I/O thread. After each of both, the mailbox thread continues."""
        self._delivery.flush(lease, final=final)
        self._context.post(self._flushed)
        transaction = self._delivery.describe(lease)
        self._context.post(partial(self._prepared, closing, transaction))

    def _flushed(self) -> None:
        self._flushing = False
        self._send_pending()

    def _prepared(
        self, closing: _PreparingInterval, transaction: PreparedTransaction | None
    ) -> None:
        closing.complete, closing.transaction = True, transaction
        self._report()

    def _report(self) -> None:
        """Answer the closed intervals in order.

        A later interval may be described first. Its transaction must not get into the
        acknowledgement of an earlier checkpoint. That checkpoint would commit records that the
        sources read again after a restore from it.
        """
        while self._closing and self._closing[0].complete:
            closing = self._closing.popleft()
            if closing.transaction is not None:
                index = self._ids[closing.transaction.transactional_id]
                self._id_pool.prepared(index, closing.checkpoint, closing.transaction)
            self._context.post(partial(closing.done, self._id_pool.transactions()))
