"""The data that tasks of a wave exchange: rows between levels, and the reports of tasks.

A task runs the subtasks of one level with one index. The carrier of the rows (Spark, or a list)
keeps all rows of one receiver together and sorts them by `(ord, sender, seq)`. There are four
kinds:

    a frame    the batches of a channel, as between slots (`dataplane/channels/frames.py`)
    a marker   the barrier that ends a channel; `seq` is the number of frames of the channel
    a failure  an empty frame: the sender failed, and there will be no marker
    a report   `edge` is REPORT and `frame` an encoded TaskReport

Failures sort before all frames, and markers and reports after them. A *run* is one execution of a
task. Spark may run a task several times and mix the rows of these runs. Every row and every report
therefore names its run.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import msgspec

from tidegate.errors import InternalError
from tidegate.ids import Attempt
from tidegate.protocol.errors import ErrorReport
from tidegate.protocol.subtask_snapshot import SubtaskSnapshot

REPORT: Final = -1
"""The `edge` of a report."""
FIRST: Final = -(1 << 63)
"""The `ord` of a failure. The receiver reads it before any frame, and stops at once."""
LAST: Final = (1 << 63) - 2
"""The `ord` of markers and reports."""


class Row(NamedTuple):
    """A row, with the columns that Spark sees."""

    receiver: int
    edge: int
    """The index of the edge in the plan, or REPORT."""
    sender: int
    ord: int
    """The order of the rows of all senders, by Kafka's time (`dataplane/waves/order.py`)."""
    seq: int
    """The number of the frame, counted per sender over all of its channels."""
    run: bytes
    frame: bytes


class TaskId(NamedTuple):
    """The task that runs the subtasks of one level with one index."""

    level: int
    index: int  # type: ignore[assignment]  # hides tuple.index; nobody searches an id

    def __str__(self) -> str:
        return f"level {self.level}, subtask {self.index}"


class TaskReport(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a run of a task. The snapshots of a report with an `error` are not used."""

    attempt: Attempt
    task: TaskId
    run: str
    snapshots: tuple[SubtaskSnapshot, ...] = ()
    consumed: tuple[tuple[TaskId, str], ...] = ()
    """The tasks whose frames and markers this run has read, each with its run."""
    records_in: int = 0
    records_out: int = 0
    skipped: int = 0
    dead_letters: int = 0
    late: dict[str, int] = msgspec.field(default_factory=dict)
    """The number of records that came too late for their windows, by the uid of the step."""
    seconds: float = 0.0
    """The duration of the run, in seconds."""
    error: ErrorReport | None = None


_encoder = msgspec.msgpack.Encoder(decimal_format="string")
_report_decoder = msgspec.msgpack.Decoder(TaskReport)


def report_row(report: TaskReport) -> Row:
    """Return the row that carries a report to the driver, through all later levels."""
    index = report.task.index
    run = bytes.fromhex(report.run)
    return Row(index, REPORT, index, LAST, report.task.level, run, _encoder.encode(report))


def read_report(frame: bytes) -> TaskReport:
    """Return the report from the frame of a report row. Raise InternalError for any other frame."""
    try:
        return _report_decoder.decode(frame)
    except msgspec.MsgspecError as error:
        message = f"the report of a task cannot be read: {error}"
        raise InternalError(message) from error
