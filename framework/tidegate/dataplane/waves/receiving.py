"""`RowReceiver`: checks the rows of a task and puts them into its input channels.

Rows come in the order of `(ord, sender, seq)`, from runs of tasks that Spark may have repeated. The
receiver refuses a wave if it cannot prove that the wave is complete. All rows of a sender must be
from one run. Each channel must end with a marker, and have as many frames as its marker says, in
the order of `seq`, without duplicates. A failure of a sender ends the receiver too.

The receiver does not check whether other receivers have read the same runs. The driver compares
that (`checkpoint/run_check.py`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tidegate.dataplane.channels.frames import FrameKind, frame_kind, read_control
from tidegate.dataplane.channels.input_gate import InputChannel
from tidegate.errors import IncompleteWaveError
from tidegate.ids import CheckpointId, VertexId
from tidegate.message_text import counted
from tidegate.protocol.waves import Row, TaskId
from tidegate.stream_elements import Barrier


@dataclass(slots=True)
class _ChannelProgress:
    channel: InputChannel
    frames: int = 0
    last_seq: int = -1
    ended: bool = False


class RowReceiver:
    """The input of one run of a task. `levels` has the level of each vertex."""

    def __init__(
        self,
        channels: Mapping[tuple[int, int], InputChannel],
        levels: Mapping[VertexId, int],
        checkpoint: CheckpointId,
    ) -> None:
        """Create the receiver. `channels` are by edge and sender."""
        self._progress = {key: _ChannelProgress(channel) for key, channel in channels.items()}
        self._levels, self._checkpoint = levels, checkpoint
        self._runs: dict[TaskId, bytes] = {}

    def accept(self, row: Row) -> None:
        """Offer a row to its channel. Raise IncompleteWaveError if the row does not fit."""
        received = self._progress.get((row.edge, row.sender))
        if received is None:
            raise self._row_error(row, "no channel here expects it")
        if received.ended:
            raise self._row_error(row, "it stands behind the marker of its channel")
        self._check_run(row, received)
        if not row.frame:
            raise IncompleteWaveError(
                f"{self._sender(row, received)} failed, so that what reads from it stops."
            )
        kind = frame_kind(row.frame)
        if kind not in {FrameKind.DATA, FrameKind.WATERMARK}:
            self._end(row, received)
            return
        if row.seq <= received.last_seq:
            raise self._row_error(row, f"the one before it has number {received.last_seq}")
        received.last_seq = row.seq
        received.frames += 1
        if kind is FrameKind.WATERMARK:
            received.channel.put(read_control(row.frame))
        else:
            received.channel.offer_frame(row.frame)

    def finish(self) -> None:
        """Check for missing markers after the last row. Raise IncompleteWaveError if one is
        missing.
        """
        missing = [key for key, received in self._progress.items() if not received.ended]
        if missing:
            edge, sender = missing[0]
            raise IncompleteWaveError(
                f"{len(missing)} of {counted(len(self._progress), 'channel')} without a "
                f"marker, among them the one of edge {edge} from subtask "
                f"{sender}: rows are missing. The wave runs again."
            )

    def consumed(self) -> tuple[tuple[TaskId, str], ...]:
        """Return each task that was read from, with its run."""
        return tuple((task, run.hex()) for task, run in sorted(self._runs.items()))

    def _check_run(self, row: Row, received: _ChannelProgress) -> None:
        sender = self._sender(row, received)
        known = self._runs.setdefault(sender, row.run)
        if known != row.run:
            raise IncompleteWaveError(
                f"{sender} wrote rows in two runs, {known.hex()} and {row.run.hex()}: it was run "
                "again. The wave runs again."
            )

    def _end(self, row: Row, received: _ChannelProgress) -> None:
        barrier = read_control(row.frame)
        if not isinstance(barrier, Barrier) or barrier.checkpoint != self._checkpoint:
            raise self._row_error(row, f"its marker is not of checkpoint {self._checkpoint}")
        if received.frames != row.seq:
            raise self._row_error(
                row, f"its marker counts {row.seq} frames and {received.frames} came"
            )
        received.ended = True
        received.channel.put(barrier)

    def _sender(self, row: Row, received: _ChannelProgress) -> TaskId:
        return TaskId(self._levels[received.channel.edge.source], row.sender)

    def _row_error(self, row: Row, why: str) -> IncompleteWaveError:
        return IncompleteWaveError(
            f"Row {row.seq} of edge {row.edge} from subtask {row.sender}, run {row.run.hex()}, "
            f"does not fit: {why}. The wave runs again."
        )
