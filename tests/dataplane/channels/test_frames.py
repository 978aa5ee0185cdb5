"""The codec of frames: golden bytes (both ends of a job agree on them), torn frames, limits."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.dataplane.channels.parts import TOPIC_PARTITION, PlainColumn, batch, codec
from tidegate.dataplane.channels.frames import (
    FrameCodec,
    FrameKind,
    control_frame,
    credit_frame,
    data_frame,
    frame_kind,
    read_control,
    read_credit,
)
from tidegate.errors import ExchangeError, RecordTooLargeError, UserCodeError
from tidegate.ids import Attempt, CheckpointId
from tidegate.ports.exchange import MAX_FRAME_BYTES
from tidegate.stream_elements import Barrier, EndOfInput, RecordBatch, TopicPartition, Watermark

BARRIER = Barrier(CheckpointId(Attempt(7), 12), final=True)

rows = st.lists(
    st.tuples(
        st.one_of(st.text(), st.integers(-(2**63), 2**63 - 1), st.none(), st.binary()),
        st.integers(0, 2**63 - 1),
        st.one_of(st.none(), st.binary()),
    ),
    min_size=1,
)
topic_partitions = st.builds(TopicPartition, st.text(max_size=249), st.integers(0, 2**31 - 1))


@st.composite
def record_batches(draw: st.DrawFn) -> RecordBatch:
    values, offsets, keys = (list(column) for column in zip(*draw(rows), strict=True))
    times_ms = [offset % 2**42 - 2**41 for offset in offsets]
    return RecordBatch(
        values,
        offsets,
        draw(st.none() | topic_partitions),
        keys if draw(st.booleans()) else None,
        times_ms if draw(st.booleans()) else None,
    )


def payload(*batches: RecordBatch) -> bytes:
    encoded_batches = [encoded_batch for one in batches for encoded_batch in codec().encode(one)]
    return b"".join(data_frame(encoded_batches))


def test_frames_have_the_golden_bytes() -> None:
    assert control_frame(BARRIER).hex() == "02020000000000000007000000000000000c01"
    assert control_frame(EndOfInput()).hex() == "0203"
    assert credit_frame(5).hex() == "020400000005"
    assert control_frame(Watermark(-2, idle=True)).hex() == "0205fffffffffffffffe01"
    one = RecordBatch(["a", "b"], [40, 41], TopicPartition("t", 3))
    two = RecordBatch(["c"], [300], TopicPartition("t", 0), [b"k"])
    assert (
        payload(one, two).hex()
        == (
            "02010002"
            "0000000a00000005"  # sizes of header and values
            "9492a17403" + "922829c0c0"
            "92a161a162"
            "0000000e00000003"
            "9492a1740091cd012c91c4016bc0"
            "91a163"
        )
    )


@given(st.lists(record_batches(), min_size=1, max_size=5))
def test_record_batches_survive_encode_and_decode(batches: list[RecordBatch]) -> None:
    assert codec().decode(payload(*batches)) == batches


def test_a_column_is_decoded_out_of_the_frame_without_a_copy() -> None:
    seen: list[bytes | memoryview] = []

    class Column(PlainColumn):
        def __init__(self) -> None:
            super().__init__()
            self._plain, self.decode = self.decode, self.look

        def look(self, data: bytes | memoryview) -> list[object]:
            seen.append(data)
            return self._plain(data)

    frame = payload(batch(0, 2), batch(2, 1))
    FrameCodec("a -> b", "a", Column()).decode(frame)
    assert [view.obj is frame for view in seen if isinstance(view, memoryview)] == [True, True]


@given(
    st.builds(
        Barrier,
        st.builds(CheckpointId, st.integers(0, 2**64 - 1), st.integers(0, 2**64 - 1)),
        final=st.booleans(),
    )
)
def test_barrier_survives_encode_and_decode(barrier: Barrier) -> None:
    assert read_control(control_frame(barrier)) == barrier
    assert frame_kind(control_frame(barrier)) is FrameKind.BARRIER


def test_end_of_input_and_credit_frames_survive_encode_and_decode() -> None:
    assert read_control(control_frame(EndOfInput())) == EndOfInput()
    assert read_credit(credit_frame(2**32 - 1)) == 2**32 - 1


@given(st.lists(record_batches(), min_size=1, max_size=3), st.data())
def test_torn_frame_raises_exchange_error(batches: list[RecordBatch], data: st.DataObject) -> None:
    whole = payload(*batches)
    cut = data.draw(st.integers(0, len(whole) - 1))
    with pytest.raises(ExchangeError, match="orders -> totals"):
        codec().decode(whole[:cut])
    with pytest.raises(ExchangeError):
        codec().decode(whole + b"\0")


@given(st.binary(max_size=200))
def test_random_bytes_raise_exchange_error_or_decode_as_a_frame(noise: bytes) -> None:
    for prefix in (b"", b"\x02\x01\x00\x01", b"\x02\x02", b"\x02\x04"):
        for read in (codec().decode, read_control, read_credit, frame_kind):
            with contextlib.suppress(ExchangeError):  # anything else fails the test
                read(prefix + noise)


def test_frame_of_another_version_is_refused() -> None:
    frame = bytearray(payload(batch(0, 1)))
    frame[0] = 1
    with pytest.raises(ExchangeError, match="version"):
        codec().decode(bytes(frame))
    with pytest.raises(ExchangeError, match="version"):
        frame_kind(bytes(frame))


def test_columns_that_differ_in_length_are_refused() -> None:
    crooked = RecordBatch(["a", "b"], [1], TOPIC_PARTITION)
    with pytest.raises(ExchangeError, match="length"):
        codec().decode(payload(crooked))


def test_batch_too_large_for_a_frame_is_split() -> None:
    large = "x" * (MAX_FRAME_BYTES // 3)
    whole = RecordBatch(
        [large] * 5, [1, 2, 3, 4, 5], TOPIC_PARTITION, [b"k", None, b"", b"l", b"m"]
    )
    encoded_batches = codec().encode(whole)
    assert [encoded_batch.records for encoded_batch in encoded_batches] == [2, 1, 2]
    parts = [
        codec().decode(b"".join(data_frame([encoded_batch])))[0]
        for encoded_batch in encoded_batches
    ]
    assert [offset for part in parts for offset in part.offsets] == whole.offsets
    assert [key for part in parts for key in part.keys or ()] == whole.keys
    assert all(
        len(b"".join(data_frame([encoded_batch]))) <= MAX_FRAME_BYTES
        for encoded_batch in encoded_batches
    )


def test_error_names_the_record_too_large_for_a_frame() -> None:
    values = ["small", "x" * MAX_FRAME_BYTES]
    with pytest.raises(RecordTooLargeError) as raised:
        codec().encode(RecordBatch(values, [8, 9], TOPIC_PARTITION))
    message = str(raised.value)
    for name in ("orders -> totals", "'orders'", "orders-3 at offset 9", str(MAX_FRAME_BYTES)):
        assert name in message


def test_error_names_the_record_whose_value_cannot_be_encoded() -> None:
    with pytest.raises(UserCodeError) as raised:
        codec().encode(RecordBatch(["fine", object()], [8, 9], TOPIC_PARTITION))
    for name in ("orders -> totals", "'orders'", "orders-3 at offset 9", "object"):
        assert name in str(raised.value)


def test_column_decoder_error_raises_exchange_error() -> None:
    class Broken(PlainColumn):
        def __init__(self) -> None:
            super().__init__()
            self.decode = lambda data: [data[len(data)]]

    with pytest.raises(ExchangeError, match="index"):
        FrameCodec("a -> b", "a", Broken()).decode(payload(batch(0, 1)))


@pytest.mark.parametrize("topic_partition", [TOPIC_PARTITION, None])
@pytest.mark.parametrize("timestamps_ms", [[7, -3], None])
def test_frame_carries_the_event_times_and_the_partition_if_a_batch_has_them(
    topic_partition: TopicPartition | None, timestamps_ms: list[int] | None
) -> None:
    sent = RecordBatch(["a", "b"], [1, 2], topic_partition, None, timestamps_ms)
    assert codec().decode(payload(sent)) == [sent]
