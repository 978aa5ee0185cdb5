"""What the tasks of a wave exchange: rows between levels, and one report of each task.

A task runs the subtasks of one level with one index. Whoever carries rows (Spark, a list) keeps all
rows of one receiver together and sorts them by `(ord, sender, seq)`. There are four kinds:

    a frame    the batches of a channel, as between slots (`dataplane/channels/frames.py`)
    a marker   the barrier that ends a channel; `seq` is the number of frames of the channel
    a failure  an empty frame: the sender failed, and there will be no marker
    a report   `edge` is REPORT and `frame` an encoded TaskReport

Markers and reports sort behind all frames, failures before them. A *run* is one execution of a
task. Spark may run a task several times and mix what the runs have written, so that every row and
every report names its run.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import msgspec

from tidegate.errors import InternalError
from tidegate.ids import Attempt
from tidegate.protocol.errors import ErrorReport
from tidegate.protocol.snapshots import SubtaskSnapshot

REPORT: Final = -1
"""The `edge` of a report."""
FIRST: Final = -(1 << 63)
"""The `ord` of a failure: it is read before any frame, so that the receiver stops at once."""
LAST: Final = (1 << 63) - 2
"""The `ord` of markers and reports."""


class Row(NamedTuple):
    """A row, with the columns that Spark sees."""

    receiver: int
    edge: int
    """The index of the edge in the plan, or REPORT."""
    sender: int
    ord: int
    """Orders the rows of all senders by Kafka's time (`dataplane/waves/order.py`)."""
    seq: int
    """Counts the frames of a sender over all of its channels."""
    run: bytes
    frame: bytes


class TaskId(NamedTuple):
    """The task that runs the subtasks of one level with one index."""

    level: int
    index: int  # type: ignore[assignment]  # hides tuple.index; nobody searches an id

    def __str__(self) -> str:
        return f"level {self.level}, subtask {self.index}"


class TaskReport(msgspec.Struct, frozen=True, kw_only=True):
    """How a run of a task ended. With an `error` its snapshots count for nothing."""

    attempt: Attempt
    task: TaskId
    run: str
    snapshots: tuple[SubtaskSnapshot, ...] = ()
    consumed: tuple[tuple[TaskId, str], ...] = ()
    """Each task whose frames and markers this run has read, with its run."""
    records_in: int = 0
    records_out: int = 0
    skipped: int = 0
    dead_letters: int = 0
    seconds: float = 0.0
    """How long the run took."""
    error: ErrorReport | None = None


_encoder = msgspec.msgpack.Encoder(decimal_format="string")
_report_decoder = msgspec.msgpack.Decoder(TaskReport)


def report_row(report: TaskReport) -> Row:
    """The row that carries a report to the driver, past all later levels."""
    index = report.task.index
    run = bytes.fromhex(report.run)
    return Row(index, REPORT, index, LAST, report.task.level, run, _encoder.encode(report))


def read_report(frame: bytes) -> TaskReport:
    """The report of a report row's frame; InternalError for anything else."""
    try:
        return _report_decoder.decode(frame)
    except msgspec.MsgspecError as error:
        message = f"the report of a task cannot be read: {error}"
        raise InternalError(message) from error
