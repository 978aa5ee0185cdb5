"""Record writers: who gets a record, what is gathered into a frame, when a task may write."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.dataplane.channels.parts import TOPIC_PARTITION, batch, codec, edge
from tidegate.dataplane.channels.frames import FrameKind, frame_kind
from tidegate.dataplane.channels.input_gate import InputChannel, InputGate
from tidegate.dataplane.channels.record_writer import (
    ForwardWriter,
    KeyGroupWriter,
    LocalOutputChannel,
    RemoteOutputChannel,
)
from tidegate.dataplane.refusals import Refusals
from tidegate.errors import InternalError, UserCodeError
from tidegate.graph.key_groups import key_group, subtask_of
from tidegate.ids import Attempt, CheckpointId, SubtaskIndex
from tidegate.ports.exchange import MAX_FRAME_BYTES
from tidegate.stream_elements import Barrier, Control, EndOfInput, RecordBatch

BARRIER = Barrier(CheckpointId(Attempt(1), 1))


class Heard:
    """A channel that remembers."""

    def __init__(self) -> None:
        self.elements: list[RecordBatch | Control] = []
        self.may = True
        self.flushed = 0

    def put(self, batch: RecordBatch) -> None:
        self.elements.append(batch)

    def put_control(self, element: Control) -> None:
        self.elements.append(element)

    def writable(self) -> bool:
        return self.may

    def flush(self) -> None:
        self.flushed += 1

    def set_refusals(self, refusals: Refusals) -> None:
        raise NotImplementedError

    def values(self) -> list[object]:
        return [v for e in self.elements if isinstance(e, RecordBatch) for v in e.values]


class Wire:
    """Where a remote channel's frames go."""

    def __init__(self, initial: int = 4) -> None:
        self.payloads: list[bytes] = []
        self.channel = RemoteOutputChannel(
            codec(), initial, lambda parts: self.payloads.append(b"".join(parts))
        )

    def kinds(self) -> list[str]:
        return [frame_kind(payload).name for payload in self.payloads]

    def offsets(self) -> list[list[int]]:
        """The offsets in each data frame."""
        return [
            [offset for part in codec().decode(payload) for offset in part.offsets]
            for payload in self.payloads
            if frame_kind(payload) is FrameKind.DATA
        ]


def key_outlet(channels: list[Heard], max_parallelism: int = 128) -> KeyGroupWriter:
    return KeyGroupWriter(
        lambda value: value[0], str.encode, max_parallelism, channels, step="orders"
    )


@given(
    st.lists(st.tuples(st.text(max_size=3), st.integers(0, 9)), max_size=60),
    st.integers(1, 5),
    st.sampled_from([5, 128]),
    st.booleans(),
)
def test_records_go_to_the_owner_of_their_key_group_in_order(
    values: list[tuple[str, int]], parallelism: int, max_parallelism: int, with_keys: bool
) -> None:
    channels = [Heard() for _ in range(parallelism)]
    record_writer = key_outlet(channels, max_parallelism)
    offsets = list(range(len(values)))
    keys: list[bytes | None] | None = [b"%d" % n for n in offsets] if with_keys else None
    record_writer.emit(RecordBatch(values, offsets, TOPIC_PARTITION, keys))
    for receiver, channel in enumerate(channels):
        rows = [
            row
            for row, value in enumerate(values)
            if subtask_of(
                key_group(value[0].encode(), max_parallelism), parallelism, max_parallelism
            )
            == receiver
        ]
        expected = RecordBatch(
            [values[row] for row in rows],
            rows,
            TOPIC_PARTITION,
            keys and [keys[row] for row in rows],
        )
        assert channel.elements == ([expected] if rows else [])


def test_a_failing_key_function_names_step_and_record() -> None:
    channels = [Heard(), Heard()]
    values = [("a",), ("b",), None, ("c",)]
    with pytest.raises(UserCodeError) as raised:
        key_outlet(channels).emit(RecordBatch(values, [7, 8, 9, 10], TOPIC_PARTITION))
    assert "'orders'" in str(raised.value)
    assert "orders-3 at offset 9" in str(raised.value)
    assert isinstance(raised.value.__cause__, TypeError)
    assert not channels[0].elements
    assert not channels[1].elements


def test_error_names_the_record_when_a_key_function_raises_stop_iteration() -> None:
    channels = [Heard(), Heard()]
    record_writer = KeyGroupWriter(
        lambda items: next(iter(items)), str.encode, 128, channels, step="s"
    )
    with pytest.raises(UserCodeError, match="orders-3 at offset 2: StopIteration"):
        record_writer.emit(RecordBatch(["a", "", "a"], [1, 2, 3], TOPIC_PARTITION))
    assert not channels[0].elements
    assert not channels[1].elements


def test_error_names_the_record_whose_key_cannot_be_encoded() -> None:
    record_writer = KeyGroupWriter(
        lambda value: value, str.encode, 128, [Heard(), Heard()], step="s"
    )
    with pytest.raises(UserCodeError, match="orders-3 at offset 2"):
        record_writer.emit(RecordBatch(["a", 5], [1, 2], TOPIC_PARTITION))


def test_record_writer_sends_barriers_to_all_channels_and_needs_all_channels_writable() -> None:
    channels = [Heard(), Heard(), Heard()]
    record_writer = key_outlet(channels)
    record_writer.emit_control(BARRIER)
    record_writer.emit_control(EndOfInput())
    assert all(channel.elements == [BARRIER, EndOfInput()] for channel in channels)
    record_writer.flush()
    assert [channel.flushed for channel in channels] == [1, 1, 1]
    assert record_writer.writable()
    channels[1].may = False
    assert not record_writer.writable()


def test_forward_writer_has_one_channel_and_skips_empty_batches() -> None:
    one = Heard()
    forward = ForwardWriter(one)
    forward.emit(batch(0, 2))
    forward.emit(batch(0, 0))
    assert one.elements == [batch(0, 2)]
    assert forward.writable()
    one.may = False
    assert not forward.writable()


def test_local_channel_passes_the_same_batch_object_up_to_its_capacity() -> None:
    receiver = InputChannel(edge(), SubtaskIndex(0), 2)
    gate = InputGate([receiver])
    channel = LocalOutputChannel(receiver)
    sent = batch(0, 3)
    channel.put(sent)
    assert channel.writable()
    channel.put(batch(1, 1))
    channel.put_control(BARRIER)
    assert not channel.writable()
    channel.flush()
    found = gate.next_element()
    assert found is not None
    assert found[1] is sent
    assert channel.writable()


def test_small_batches_share_a_frame_until_it_is_full() -> None:
    wire = Wire()
    for first in range(0, 520, 10):
        wire.channel.put(batch(first, 10))
    assert wire.offsets() == [list(range(520))]
    assert wire.channel.buffered == 0
    wire.channel.put(batch(520, 10))
    assert len(wire.payloads) == 1
    wire.channel.flush()
    wire.channel.flush()
    assert wire.offsets()[1:] == [list(range(520, 530))]


def test_frame_of_tiny_batches_is_sent_before_the_kernel_limit_of_parts() -> None:
    wire = Wire()
    for first in range(128):
        wire.channel.put(batch(first, 1))
    assert len(wire.payloads) == 1


def test_frame_size_is_limited_in_bytes_for_large_records() -> None:
    wire = Wire(initial=100)
    for start in (0, 200):
        rows = list(range(start, start + 200))
        wire.channel.put(RecordBatch(["x" * 4000] * 200, rows, TOPIC_PARTITION))
    wire.channel.flush()
    assert [n for frame in wire.offsets() for n in frame] == list(range(400))
    assert max(len(payload) for payload in wire.payloads[4:]) < 150_000


def test_buffered_segments_and_a_huge_segment_do_not_share_a_frame() -> None:
    wire = Wire()
    wire.channel.put(batch(0, 100))
    wire.channel.put(RecordBatch(["x" * (MAX_FRAME_BYTES - 200)], [100], TOPIC_PARTITION))
    assert wire.offsets() == [list(range(100)), [100]]
    assert all(len(payload) <= MAX_FRAME_BYTES for payload in wire.payloads)


def test_frames_wait_and_channel_is_not_writable_without_credit() -> None:
    wire = Wire(initial=2)
    for first in (0, 512, 1024):
        assert wire.channel.writable()
        wire.channel.put(batch(first, 512))
    assert not wire.channel.writable()
    assert len(wire.payloads) == 2
    assert wire.channel.waiting == 1
    wire.channel.add_credit(1)
    assert wire.channel.writable()
    assert wire.offsets() == [list(range(n, n + 512)) for n in (0, 512, 1024)]


def test_barrier_flushes_the_buffer_and_queues_after_frames_that_wait_for_credit() -> None:
    wire = Wire(initial=1)
    wire.channel.put(batch(0, 5))
    wire.channel.put_control(BARRIER)
    assert wire.kinds() == ["DATA", "BARRIER"]
    wire.channel.put(batch(5, 5))
    wire.channel.put_control(EndOfInput())
    assert wire.kinds() == ["DATA", "BARRIER"]
    wire.channel.add_credit(1)
    assert wire.kinds() == ["DATA", "BARRIER", "DATA", "END_OF_INPUT"]


def test_a_barrier_needs_no_credit() -> None:
    wire = Wire(initial=1)
    wire.channel.put(batch(0, 5))
    wire.channel.flush()
    assert wire.channel.credit == 0
    wire.channel.put_control(BARRIER)
    assert wire.kinds() == ["DATA", "BARRIER"]


def test_flush_without_credit_is_done_when_credit_arrives() -> None:
    wire = Wire(initial=1)
    wire.channel.put(batch(0, 5))
    wire.channel.flush()
    wire.channel.put(batch(5, 5))
    wire.channel.flush()
    wire.channel.put(batch(10, 5))
    assert wire.channel.writable()
    assert len(wire.payloads) == 1
    wire.channel.add_credit(1)
    assert wire.offsets() == [list(range(5)), list(range(5, 15))]


def test_credit_that_was_never_spent_raises_internal_error() -> None:
    wire = Wire(initial=2)
    wire.channel.put(batch(0, 600))
    with pytest.raises(InternalError, match="credits came back"):
        wire.channel.add_credit(2)
