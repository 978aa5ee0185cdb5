"""What a receiver refuses, row by row."""

from __future__ import annotations

import pytest

from tests.dataplane.channels.parts import edge
from tests.dataplane.waves.executions import CHECKPOINT, Recorder
from tidegate.dataplane.channels.frames import VERSION, FrameKind, control_frame
from tidegate.dataplane.waves.receiving import RowReceiver
from tidegate.dataplane.waves.sending import RowSender
from tidegate.errors import IncompleteWaveError, InternalError
from tidegate.ids import Attempt, CheckpointId, VertexId
from tidegate.protocol.waves import FIRST, LAST, Row
from tidegate.stream_elements import Barrier, EndOfInput

RUN, OTHER = bytes(8), bytes([1]) * 8
FRAME = bytes((VERSION, FrameKind.DATA)) + b"some records"
MARKER = control_frame(Barrier(CHECKPOINT, final=True))


def receiver(senders: int = 1) -> tuple[RowReceiver, list[Recorder]]:
    channels = [Recorder(edge()) for _ in range(senders)]
    levels = {VertexId("orders"): 0, VertexId("totals"): 1}
    inputs = {(0, sender): channel for sender, channel in enumerate(channels)}
    return RowReceiver(inputs, levels, CHECKPOINT), channels  # type: ignore[arg-type]


def sent(frames: int, *, index: int = 0, run: bytes = RUN) -> list[Row]:
    """The rows of a channel with so many frames, and its marker."""
    sender = RowSender(index, run)
    sender.open(0, 0)
    for number in range(frames):
        sender.ord = number
        sender.send(0, 0, (FRAME[:2], FRAME[2:]))
    sender.send(0, 0, (MARKER,))
    return sender.take()


def accept(into: RowReceiver, rows: list[Row]) -> None:
    for row in rows:
        into.accept(row)


def test_receiver_accepts_a_complete_channel_and_records_the_run_of_its_sender() -> None:
    made, (channel,) = receiver()
    accept(made, sent(3))
    made.finish()
    assert channel.frames == [FRAME] * 3
    assert channel.barriers == 1
    assert made.consumed() == (((0, 0), RUN.hex()),)


def test_wave_is_incomplete_if_an_empty_channel_has_no_marker() -> None:
    made, _ = receiver(2)
    accept(made, sent(0))
    with pytest.raises(IncompleteWaveError, match="1 of 2 channels without a marker"):
        made.finish()
    accept(made, sent(0, index=1))
    made.finish()


@pytest.mark.parametrize("lost", range(3))
def test_marker_detects_a_lost_frame(lost: int) -> None:
    rows = sent(3)
    del rows[lost]
    made, _ = receiver()
    with pytest.raises(IncompleteWaveError, match="counts 3 frames and 2 came"):
        accept(made, rows)


def test_receiver_refuses_a_duplicate_row() -> None:
    rows = sent(3)
    made, _ = receiver()
    with pytest.raises(IncompleteWaveError, match="the one before it has number 1"):
        accept(made, [rows[0], rows[1], rows[1], rows[2], rows[3]])


def test_rows_of_two_runs_are_refused() -> None:
    made, _ = receiver()
    with pytest.raises(IncompleteWaveError, match=r"level 0, subtask 0 wrote rows in two runs"):
        accept(made, [*sent(2)[:2], sent(2, run=OTHER)[-1]])


def test_a_row_behind_the_marker_is_refused() -> None:
    rows = sent(2)
    made, _ = receiver()
    with pytest.raises(IncompleteWaveError, match="behind the marker"):
        accept(made, [rows[2]._replace(seq=0), rows[0]])


def test_a_marker_of_another_checkpoint_is_refused() -> None:
    made, _ = receiver()
    other = control_frame(Barrier(CheckpointId(Attempt(9), 1), final=True))
    for frame in (other, control_frame(EndOfInput())):
        with pytest.raises(IncompleteWaveError):
            made.accept(Row(0, 0, 0, LAST, 0, RUN, frame))


def test_receiver_refuses_a_row_of_an_unknown_channel() -> None:
    made, _ = receiver()
    with pytest.raises(IncompleteWaveError, match="no channel here expects it"):
        made.accept(sent(1)[0]._replace(edge=4))


def test_a_failed_sender_stops_its_receivers_at_their_first_row() -> None:
    sender = RowSender(0, RUN)
    sender.open(0, 0)
    sender.open(0, 1)
    sender.send(0, 0, (FRAME,))
    sender.send(0, 1, (MARKER,))
    sender.fail()
    rows = [row for row in sender.take() if row.receiver == 0]
    assert [row.ord for row in sorted(rows, key=lambda row: row.ord)] == [FIRST, 0]
    made, _ = receiver()
    with pytest.raises(IncompleteWaveError, match="level 0, subtask 0 failed"):
        accept(made, sorted(rows, key=lambda row: row.ord))


def test_sender_refuses_a_frame_after_the_marker() -> None:
    sender = RowSender(0, RUN)
    sender.open(0, 0)
    sender.send(0, 0, (MARKER,))
    with pytest.raises(InternalError, match="behind its channel's marker"):
        sender.send(0, 0, (FRAME,))
