"""The Kafka sink of one subtask: records in, one transaction per interval, prepared at the barrier.

`task.py` calls it in the mailbox thread only; what blocks runs in I/O threads and posts. It
prepares and never commits: ending a transaction is the transaction committer's, after the
publication.

What stands between two barriers is an *interval*. Intervals form a queue, and two rules make it:
nothing of an interval is sent before the flush of the one before has returned (else records of one
partition could land in the wrong order), and each interval that sends anything does so with a
producer of its own. What cannot be sent yet is kept encoded, within a limit; beyond it the sink is
not writable. A barrier closes the last interval at once, so barriers never wait in front of the
sink.

    open -> closed -> (all sent, handed to an I/O thread) -> flushed -> described -> reported

Invariant: what `prepare` reports for a checkpoint is every transaction that this subtask has
prepared up to that barrier and not been told is ended; never one that holds a record from behind
the barrier.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

from tidegate.api.kafka import KafkaSink
from tidegate.checkpoint.transactional_ids import format_transactional_id
from tidegate.config import ConnectorSettings
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
from tidegate.protocol.snapshots import PreparedTransaction
from tidegate.stream_elements import RecordBatch

BUFFERED_RECORDS_MAX: Final = 65_536
BUFFERED_BYTES_MAX: Final = 16 << 20
"""Limits of what waits for a flush or a producer: a tenth of a second of a fast pipeline, which is
what a flush takes at load, and a twelfth of a slot's memory."""

Done = Callable[[tuple[PreparedTransaction, ...]], None]


@dataclass(slots=True)
class _BarrierInterval:
    """What lies between two barriers, as far as it is not handed over yet."""

    sending: ProducerLease | None = None
    waiting: deque[tuple[Encoded, int]] = field(default_factory=deque)
    """Batches that wait for a flush or a producer, with their bytes."""
    checkpoint: CheckpointId | None = None
    """Set when a barrier has closed it."""
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
    """Writes one sink in one subtask. `prepare` answers, in order, through the mailbox.

    It is never closed, but dropped with its process: what is prepared stays open for the
    transaction committer, and the rest is fenced.
    """

    def __init__(
        self,
        sink: KafkaSink[Any],
        uid: Uid,
        runtime: SubtaskContext,
        refusals: Refusals | None = None,
    ) -> None:
        configured = runtime.config.sinks.get(uid, ConnectorSettings())
        self._topic = configured.topic or sink.topic
        self._runtime = runtime
        bytes_max = runtime.record_bytes_max(uid, sink.topic, sink.kafka)
        self._encoder = BatchEncoder(sink, uid, refusals, bytes_max)
        self._slots = TransactionalIdPool(len(runtime.transaction_slots))
        self._ids = {
            format_transactional_id(
                job=runtime.job,
                journal=runtime.journal,
                sink=uid,
                attempt=runtime.attempt,
                subtask=runtime.subtask.index,
                slot=number,
            ): slot
            for slot, number in enumerate(runtime.transaction_slots)
        }
        limit = runtime.max_message_bytes.get(self._topic)
        given = runtime.connector_kafka(sink.kafka, configured.properties)
        settings = size_settings(given, limit)
        self._lane: Delivery
        if sink.guarantee == "exactly_once":
            names = {slot: name for name, slot in self._ids.items()}
            self._lane = TransactionalDelivery(
                runtime, self._slots, names.__getitem__, settings, self._send_pending
            )
        else:
            flushes = sink.guarantee == "at_least_once"
            self._lane = NonTransactionalDelivery(
                runtime, settings, self._send_pending, flushes=flushes
            )
        self._intervals = deque([_BarrierInterval()])
        self._closing: deque[_PreparingInterval] = deque()
        self._flushing = False
        self._buffered_records = self._buffered_bytes = self._sent = 0

    def open(self) -> None:
        """Start to make producers; returns at once."""
        self._lane.open()

    def writable(self) -> bool:
        """Whether `write` may be called: what must wait is within its limit, and what waits is
        sure of a producer. Without one nothing waits here, so barriers find nothing to prepare.
        """
        if (
            self._buffered_records >= BUFFERED_RECORDS_MAX
            or self._buffered_bytes >= BUFFERED_BYTES_MAX
        ):
            return False
        last = self._intervals[-1]
        if last.sending is not None or last.waiting:
            return True
        promised = sum(
            interval.sending is None and bool(interval.waiting) for interval in self._intervals
        )
        return self._lane.available() > promised

    def write(self, batch: RecordBatch) -> None:
        """Encode and send, or keep for later.

        UserCodeError where a value cannot be encoded, TransactionError where Kafka refuses.
        """
        if not batch.values:
            return
        encoded = self._encoder.encode(batch)
        if not encoded.values:
            return  # all were refused
        self._runtime.counters.records_out += len(encoded)
        interval = self._intervals[-1]
        if interval.sending is not None and not interval.waiting:
            self._send(interval.sending, encoded)
            return
        size = encoded.size()
        interval.waiting.append((encoded, size))
        self._buffered_records += len(encoded)
        self._buffered_bytes += size
        self._send_pending()

    def prepare(self, checkpoint: CheckpointId, done: Done, *, final: bool = False) -> None:
        """A barrier: close the interval, and call `done` in the mailbox when all before is flushed;
        where the guarantee waits for nothing, when it is the `final` one.

        `done` gets every prepared transaction that is not told ended, oldest first. A failure ends
        the attempt instead.
        """
        last = self._intervals[-1]
        last.checkpoint, last.done, last.final = checkpoint, done, final
        self._intervals.append(_BarrierInterval())
        self._lane.refill()
        self._send_pending()

    def ended(self, ids: Sequence[TransactionalId], checkpoint: CheckpointId | None = None) -> None:
        """The broker has committed these (ids of other sinks are ignored); `checkpoint` named them.

        They are carried in acknowledgements no more; their slots are not free yet.
        """
        for name in ids:
            if name in self._ids:
                self._slots.ended(self._ids[name], checkpoint)

    def freed(self, ids: Sequence[TransactionalId]) -> None:
        """The journal does not name these any more: their ids may be used again."""
        for name in ids:
            if name in self._ids:
                self._slots.freed(self._ids[name])
        self._lane.refill()

    def sent(self) -> int:
        """Records handed to producers since the start."""
        return self._sent

    def _send_pending(self) -> None:
        """Send what may be sent, close what is all sent, as far as flushes and producers allow."""
        while not self._flushing:
            first = self._intervals[0]
            if first.waiting:
                if first.sending is None:
                    first.sending = self._lane.take()
                if first.sending is None:
                    return
                self._send_waiting(first, first.sending)
            if first.checkpoint is None or first.done is None:
                return
            self._intervals.popleft()
            sending = first.sending
            if sending is None and first.final:
                sending = self._lane.unflushed()
            self._close(sending, first.checkpoint, first.done, final=first.final)

    def _send_waiting(self, interval: _BarrierInterval, sending: ProducerLease) -> None:
        while interval.waiting:
            encoded, size = interval.waiting.popleft()
            self._buffered_records -= len(encoded)
            self._buffered_bytes -= size
            self._send(sending, encoded)

    def _send(self, sending: ProducerLease, encoded: Encoded) -> None:
        self._sent += len(encoded)
        producer = sending.producer
        if encoded.extras is None:
            producer.send(self._topic, encoded.values, encoded.keys)
            return
        keys = encoded.keys or [None] * len(encoded)
        for value, key, (headers, timestamp_ms) in zip(
            encoded.values, keys, encoded.extras, strict=True
        ):
            producer.send_one(self._topic, value, key, headers, timestamp_ms)
        producer.send(self._topic, (), None)  # serves failed deliveries

    def _close(
        self, sending: ProducerLease | None, checkpoint: CheckpointId, done: Done, *, final: bool
    ) -> None:
        closing = _PreparingInterval(checkpoint, done, complete=sending is None)
        self._closing.append(closing)
        if sending is None:
            self._report()
            return
        self._flushing = True
        self._lane.closing(sending)
        # The I/O thread's action holds the last reference to the producer: it is dropped there.
        self._runtime.run_io(partial(self._prepare, sending, closing, final=final))

    def _prepare(self, sending: ProducerLease, closing: _PreparingInterval, *, final: bool) -> None:
        """In an I/O thread: flush, then check; each lets the mailbox go on."""
        self._lane.flush(sending, final=final)
        self._runtime.post(self._flushed)
        transaction = self._lane.describe(sending)
        self._runtime.post(partial(self._prepared, closing, transaction))

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

        A later one may be described first; its transaction must not get into the acknowledgement of
        an earlier checkpoint, which would commit what sources then read again.
        """
        while self._closing and self._closing[0].complete:
            closing = self._closing.popleft()
            if closing.transaction is not None:
                slot = self._ids[closing.transaction.transactional_id]
                self._slots.prepared(slot, closing.checkpoint, closing.transaction)
            self._runtime.post(partial(closing.done, self._slots.transactions()))
