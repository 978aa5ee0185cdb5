"""The frames that channels between slots carry, and their codec.

A frame is a byte string that begins with a version and a kind. The exchange (`ports/exchange.py`)
adds the length and the channel number. All numbers are big-endian:

        data            version | 1 | u16 batches | batches
        batch           u32 header size | u32 values size | header | values
        barrier         version | 2 | u64 attempt | u64 counter | u8 final
        end of input    version | 3
        watermark       version | 5 | i64 event time in ms | u8 idle
        credit          version | 4 | u32 data frames that the sender may send in addition

A batch is encoded as one piece. Its header is the msgpack array [topic and partition or nil,
offsets, keys or nil, event times or nil]. Its values are a column in the encoding of the edge's
record type (`ColumnCodec`). A frame holds several batches, because a batch that is split over many
subtasks leaves small pieces. Both ends run the same version of the same code, because both run the
same deployment. One version byte is therefore sufficient, without negotiation.

`record_writer` and `input_gate` call the codec. A frame is decoded only when a subtask reaches it.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Sequence
from struct import Struct
from typing import Any, Final, NamedTuple, Protocol

import msgspec

from tidegate.api.state.wire import WrongColumnError
from tidegate.dataplane.columns import have_same_length, origin_of, slice_batch, without
from tidegate.dataplane.refusals import Refusals
from tidegate.errors import (
    ExchangeError,
    RecordTooLargeError,
    UserCodeError,
    check,
    passes_through,
)
from tidegate.ids import Attempt, CheckpointId
from tidegate.message_text import clause
from tidegate.ports.exchange import MAX_FRAME_BYTES
from tidegate.stream_elements import (
    Barrier,
    Control,
    EndOfInput,
    RecordBatch,
    TopicPartition,
    Watermark,
)
from tidegate.user_exceptions import described, process_ends

VERSION: Final = 2

DATA_HEAD_BYTES: Final = 4
SEGMENT_HEAD_BYTES: Final = 8

MAX_ENCODED_BATCHES: Final = 128
"""Maximum number of batches of a frame. Each has two parts, and one system call takes at most 1024
parts.
"""


class FrameKind(enum.IntEnum):
    """The second byte of a frame."""

    DATA = 1
    BARRIER = 2
    END_OF_INPUT = 3
    CREDIT = 4
    WATERMARK = 5


class ColumnCodec(Protocol):
    """A codec that turns a column of values of one type into bytes and back. `api/state/wire.py`
    makes codecs.
    """

    @property
    def encode(self) -> Callable[[list[Any]], bytes]: ...

    @property
    def decode(self) -> Callable[[bytes | memoryview], list[Any]]:
        """The decoder. Its result keeps no reference to the buffer, which is a part of a frame."""
        ...


class EncodedBatch(NamedTuple):
    """An encoded batch, in two parts that are never joined."""

    head: bytes
    values: bytes
    records: int

    @property
    def size(self) -> int:
        """Number of bytes in the frame."""
        return len(self.head) + len(self.values)


_DATA_HEAD = Struct(">BBH")
_SEGMENT_HEAD = Struct(">II")
_BARRIER = Struct(">BBQQB")
_CREDIT = Struct(">BBI")
_WATERMARK = Struct(">BBqB")
_VERSION = bytes((VERSION,))
_KINDS = {bytes((kind,)): kind for kind in FrameKind}
_END_OF_INPUT = bytes((VERSION, FrameKind.END_OF_INPUT))

_Header = tuple[tuple[str, int] | None, list[int], list[bytes | None] | None, list[int] | None]
_header_encoder = msgspec.msgpack.Encoder()
_header_decoder = msgspec.msgpack.Decoder(_Header)


class FrameCodec:
    """The codec of the data frames of one edge.

    `edge` is the name of the edge in errors: the steps at both ends. `step` is the uid or id of the
    step whose results are sent.
    """

    def __init__(self, edge: str, step: str, column: ColumnCodec) -> None:
        self.edge = edge
        self._step = step
        self._column = column
        self.refusals: Refusals | None = None
        """The policy for records that cannot be sent. None if such a record ends the attempt."""

    def encode(self, batch: RecordBatch) -> list[EncodedBatch]:
        """Encode a batch, in several parts if one would not fit in a frame.

        Raise RecordTooLargeError for a record that fits in no frame, and UserCodeError for a value
        that is not of the edge's type. Both errors name the record's origin. If `refusals` is set,
        it decides about both cases instead.
        """
        try:
            values = self._column.encode(batch.values)
        except passes_through():
            raise
        except BaseException as error:
            if self.refusals is not None and self.refusals.covers(error):
                return self._without_refused(batch, self.refusals)
            raise self._wrong_value(batch, error) from error
        header = (batch.topic_partition, list(batch.offsets), batch.keys, batch.timestamps_ms)
        head = _header_encoder.encode(header)
        size = DATA_HEAD_BYTES + SEGMENT_HEAD_BYTES + len(head) + len(values)
        if size <= MAX_FRAME_BYTES:
            return [
                EncodedBatch(_SEGMENT_HEAD.pack(len(head), len(values)) + head, values, len(batch))
            ]
        if len(batch) == 1 and self.refusals is not None:
            reason = f"the record takes {size} bytes between slots, the limit is {MAX_FRAME_BYTES}"
            self.refusals.refuse(batch, 0, reason)
            return []
        if len(batch) == 1:
            raise RecordTooLargeError(
                f"The result of step {self._step!r} that came from {origin_of(batch, 0)} takes "
                f"{size} bytes on the edge {self.edge}, and a frame between slots holds "
                f"{MAX_FRAME_BYTES}; send less per record (a reference to a large object, or its "
                "parts as several records)."
            )
        half = len(batch) // 2
        return [
            *self.encode(slice_batch(batch, 0, half)),
            *self.encode(slice_batch(batch, half, len(batch))),
        ]

    def _without_refused(self, batch: RecordBatch, refusals: Refusals) -> list[EncodedBatch]:
        """Encode the batch without the values that are not of the edge's type, and refuse these."""
        refused = set()
        for index, value in enumerate(batch.values):
            try:
                self._column.encode([value])
            except BaseException as error:
                if not refusals.covers(error):
                    raise
                refused.add(index)
                refusals.refuse(batch, index, described(error))
        check(refused, f"a batch on the edge {self.edge} cannot be encoded, and each value can")
        return self.encode(without(batch, refused)) if len(refused) < len(batch) else []

    def decode(self, payload: bytes) -> list[RecordBatch]:
        """Return the batches of a data frame, in order.

        Raise ExchangeError if the frame is damaged. Raise UserCodeError if the sending step gave a
        value with a field that is not of its type.
        """
        try:
            return self._read(payload)
        except passes_through():
            raise
        except BaseException as error:
            raise ExchangeError(
                f"A frame of {len(payload)} bytes on the edge {self.edge} cannot be read: "
                f"{clause(error)}; the attempt ends and the job is restored."
            ) from error

    def _read(self, payload: bytes) -> list[RecordBatch]:
        version, kind, encoded_batches = _DATA_HEAD.unpack_from(payload)
        _require(
            version == VERSION and kind == FrameKind.DATA, "it is not a data frame of this version"
        )
        _require(encoded_batches, "it holds nothing")
        view = memoryview(payload)
        batches = []
        at = DATA_HEAD_BYTES
        for _ in range(encoded_batches):
            head_size, values_size = _SEGMENT_HEAD.unpack_from(payload, at)
            at += SEGMENT_HEAD_BYTES
            middle, end = at + head_size, at + head_size + values_size
            _require(end <= len(payload), "it ends within a batch")
            origin, offsets, keys, timestamps_ms = _header_decoder.decode(view[at:middle])
            topic_partition = None if origin is None else TopicPartition(*origin)
            batch = RecordBatch([], offsets, topic_partition, keys, timestamps_ms)
            try:
                batch.values = self._column.decode(view[middle:end])  # without a copy
            except WrongColumnError as error:
                raise self._wrong_field(error, batch) from error
            _require(have_same_length(batch), "its columns differ in length")
            batches.append(batch)
            at = end
        _require(at == len(payload), "it continues behind its last batch")
        return batches

    def _wrong_field(self, error: WrongColumnError, batch: RecordBatch) -> UserCodeError:
        field = f"the field {error.field!r} of " if error.field else ""
        known = error.row is not None and error.row < len(batch.offsets)
        origin = origin_of(batch, error.row if known else None)
        return UserCodeError(
            f"Step {self._step!r} gave a record of which {field}the value is not of its declared "
            f"type ({error}). It came from {origin} and was read on the edge "
            f"{self.edge}. Correct the step, or declare the type that it gives. The job restarts "
            "from its last checkpoint as the restart strategy says."
        )

    def _wrong_value(self, batch: RecordBatch, error: BaseException) -> UserCodeError:
        # This runs only once, before the attempt ends, so a slow search for the value is
        # acceptable.
        index = 0
        for index, value in enumerate(batch.values):  # noqa: B007 - read after the loop
            try:
                self._column.encode([value])
            except process_ends():
                raise
            except BaseException as single:  # noqa: BLE001 - it is this value's
                error = single
                break
        value = batch.values[index]
        return UserCodeError(
            f"Step {self._step!r} gave a {type(value).__name__} that came from "
            f"{origin_of(batch, index)} and that cannot be sent along the edge {self.edge}: "
            f"{clause(error)}; results must be of the type that the step declares."
        )


def data_frame(encoded_batches: Sequence[EncodedBatch]) -> list[bytes]:
    """Return the parts of a data frame of at most `MAX_ENCODED_BATCHES` batches."""
    parts = [_DATA_HEAD.pack(VERSION, FrameKind.DATA, len(encoded_batches))]
    for encoded_batch in encoded_batches:
        parts.append(encoded_batch.head)
        parts.append(encoded_batch.values)
    return parts


def control_frame(element: Control) -> bytes:
    """Return a control element as a frame."""
    match element:
        case Barrier(checkpoint=checkpoint, final=final):
            return _BARRIER.pack(
                VERSION, FrameKind.BARRIER, checkpoint.attempt, checkpoint.counter, final
            )
        case EndOfInput():
            return _END_OF_INPUT
        case Watermark(timestamp_ms=timestamp_ms, idle=idle):
            return _WATERMARK.pack(VERSION, FrameKind.WATERMARK, timestamp_ms, idle)


def credit_frame(frames: int) -> bytes:
    """Return a frame that allows the sender to send this number of data frames in addition."""
    return _CREDIT.pack(VERSION, FrameKind.CREDIT, frames)


def frame_kind(payload: bytes) -> FrameKind:
    """Return the kind of a frame. Raise ExchangeError if the frame is not of this version."""
    if payload[:1] == _VERSION and payload[1:2] in _KINDS:
        return _KINDS[payload[1:2]]
    raise ExchangeError(
        f"A frame of {len(payload)} bytes begins with {payload[:2]!r}, which no slot of this "
        "version sends; the attempt ends and the job is restored."
    )


def read_control(payload: bytes) -> Control:
    """Decode a frame that `control_frame` has made. Raise ExchangeError for anything else."""
    if payload == _END_OF_INPUT:
        return EndOfInput()
    if len(payload) == _BARRIER.size and frame_kind(payload) is FrameKind.BARRIER:
        _, _, attempt, counter, final = _BARRIER.unpack(payload)
        return Barrier(CheckpointId(Attempt(attempt), counter), final=bool(final))
    if len(payload) == _WATERMARK.size and frame_kind(payload) is FrameKind.WATERMARK:
        _, _, timestamp_ms, idle = _WATERMARK.unpack(payload)
        return Watermark(timestamp_ms, idle=bool(idle))
    raise ExchangeError(f"{payload[:32]!r} is no barrier, no end of input and no watermark.")


def read_credit(payload: bytes) -> int:
    """Decode a frame that `credit_frame` has made. Raise ExchangeError for anything else."""
    if len(payload) == _CREDIT.size and frame_kind(payload) is FrameKind.CREDIT:
        frames: int = _CREDIT.unpack(payload)[2]
        return frames
    raise ExchangeError(f"{payload[:32]!r} is no credit.")


def _require(holds: object, what: str) -> None:
    if not holds:
        raise ValueError(what)  # `decode` adds the edge
