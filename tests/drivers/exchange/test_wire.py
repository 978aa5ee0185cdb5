"""Frames cut out of a stream: whole, once, in order, however the stream was torn; and limits."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.drivers.exchange.wire import (
    END_OF_STREAM,
    EXCHANGE_CHANNEL,
    READ_BYTES,
    EndOfStream,
    ExchangeMessage,
    FrameReader,
    HandshakeAccepted,
    HandshakeRejected,
    HandshakeRequest,
    decode_exchange_message,
    exchange_frame,
    frame_head,
)
from tidegate.errors import ExchangeError
from tidegate.ports.exchange import MAX_FRAME_BYTES, Frame


def feed(reader: FrameReader, data: bytes, most: int) -> list[Frame]:
    """Feeds data as a socket does: at most as much as there is space for, and at most `most`."""
    frames = []
    while data:
        space = reader.space()
        received = min(len(space), most, len(data))
        assert received > 0
        space[:received] = data[:received]
        data = data[received:]
        frames += reader.take(received)
    return frames


@given(
    st.lists(
        st.tuples(st.integers(0, EXCHANGE_CHANNEL), st.one_of(st.binary(), st.binary(min_size=60)))
    ),
    st.integers(1, 100),
    st.integers(16, 64),
)
def test_frames_are_read_unchanged_however_the_stream_is_split(
    frames: list[Frame], most: int, room: int
) -> None:
    stream = b"".join(frame_head(len(payload), channel) + payload for channel, payload in frames)
    reader = FrameReader(room)
    assert feed(reader, stream, most) == frames
    assert reader.empty


def test_read_buffer_has_its_normal_size_again_after_a_large_frame() -> None:
    reader = FrameReader()
    large = bytes(range(256)) * (5 * READ_BYTES // 256)
    frames = [(1, b"before"), (2, large), (3, b"after")]
    stream = b"".join(frame_head(len(payload), channel) + payload for channel, payload in frames)
    assert feed(reader, stream, 1 << 20) == frames
    assert len(reader.space()) == READ_BYTES


def test_payloads_do_not_change_when_the_buffer_is_read_into_again() -> None:
    reader = FrameReader(64)
    kept = [payload for n in range(100) for _, payload in feed(reader, _one(b"%06d" % n), 99)]
    assert kept == [b"%06d" % n for n in range(100)]


def test_a_frame_beyond_the_limit_is_refused_before_it_is_read() -> None:
    reader = FrameReader()
    with pytest.raises(ExchangeError, match=str(MAX_FRAME_BYTES)):
        feed(reader, frame_head(MAX_FRAME_BYTES + 1, 0), 99)
    with pytest.raises(ExchangeError, match="100 is the limit"):
        feed(FrameReader(64, 100), b"GET / HTTP/1.1\r\n", 99)


def test_frame_head_and_handshake_have_the_golden_bytes() -> None:
    assert (frame_head(3, 7) + b"abc").hex() == "0000000300000007616263"
    hello = HandshakeRequest(job="j", attempt=2, sender=0, receiver=1)
    assert exchange_frame(hello).hex() == (
        "00000047ffffffff"
        "86a474797065a568656c6c6fa56d61676963b3746964656761746"
        "52d65786368616e67652d31"
        "a36a6f62a16aa7617474656d707402a673656e64657200a8726563656976657201"
    )


@pytest.mark.parametrize(
    "message",
    [
        HandshakeRequest(job="order-totals", attempt=3, sender=1, receiver=2),
        HandshakeAccepted(),
        HandshakeRejected(reason="another attempt"),
        EndOfStream(),
    ],
)
def test_exchange_message_survives_encoding_and_decoding(message: ExchangeMessage) -> None:
    ((channel, payload),) = feed(FrameReader(), exchange_frame(message), 5)
    assert channel == EXCHANGE_CHANNEL
    assert decode_exchange_message(payload) == message


def test_goodbye_frame_decodes_to_end_of_stream() -> None:
    assert decode_exchange_message(END_OF_STREAM) == EndOfStream()


@given(st.binary())
def test_noise_raises_exchange_error(noise: bytes) -> None:
    with pytest.raises(ExchangeError):
        decode_exchange_message(b"\xc1" + noise)


def _one(payload: bytes) -> bytes:
    return frame_head(len(payload), 0) + payload
