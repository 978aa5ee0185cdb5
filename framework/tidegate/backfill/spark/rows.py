"""Defines the rows between two levels of a Spark job. Frames and reports have one schema.

A row carries a frame of many records, so the JVM moves one row for some 500 records and never reads
its content. A report is a row too, because a Spark job has only one result. A report therefore goes
through every later exchange to the final collect.

The rows of a receiver are sorted by `(ord, sender, seq)`. The `ord` of a frame is below
`MARKER_ORD`, the row that ends a channel has `MARKER_ORD`, and reports have `REPORT_ORD`. So a
receiver reads all frames, then all markers, then the reports that it forwards.

Only the functions that create and read batches import pyarrow.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Final, NamedTuple

import msgspec

SCHEMA: Final = (
    "receiver int, edge int, sender int, ord long, seq long, run binary, frame binary,"
    " report binary"
)
SORT_COLUMNS: Final = ("ord", "sender", "seq")

REPORT_ORD: Final = (1 << 63) - 1
"""The `ord` of reports, which sort behind all other rows."""
MARKER_ORD: Final = REPORT_ORD - 1
"""The `ord` of the row that ends a channel. It sorts behind every frame."""

ROWS_PER_BATCH: Final = 16  # 1 MiB of frames of 64 KiB, which the workers and the JVM hold twice
BYTES_PER_BATCH: Final = 1 << 20  # limits a batch of frames that have one large record each

_REPORTS_PER_TASK_MAX: Final = 1 << 32
_NO_EDGE: Final = -1


class FrameRow(NamedTuple):
    """A frame that is sent to subtask `receiver` of the next level.

    `sender` and `run` identify the task that wrote the frame, and its run. Only the two ends of the
    channel and the sort read `seq`. Only the two ends read `frame`.
    """

    receiver: int
    edge: int
    sender: int
    ord: int
    seq: int
    run: bytes
    frame: bytes


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """The report of one run of a task to the driver. The entry defines `body`."""

    level: int
    subtask: int
    number: int
    """The number of this report among those of its run, from 0."""
    task_attempt_id: int
    """Spark's id of this run. It is unique in one SparkContext."""
    attempt_number: int
    """Number of earlier starts of this task in the same attempt of its stage."""
    stage_id: int
    run: bytes
    body: bytes


_encode_report: Final = msgspec.msgpack.Encoder().encode
_decode_report: Final = msgspec.msgpack.Decoder(Report).decode


class ReportRow(NamedTuple):
    """An encoded report with its address for the exchanges.

    The receiver is the number of the reporting subtask. So the reports spread over all tasks of a
    later level.
    """

    receiver: int
    seq: int
    report: bytes


def report_row(report: Report) -> ReportRow:
    """Return the row of a report. `seq` orders a subtask's reports by level, then by number."""
    seq = report.level * _REPORTS_PER_TASK_MAX + report.number
    return ReportRow(report.subtask, seq, _encode_report(report))


def read_report(encoded: bytes) -> Report:
    """Decode the column `report` of a row that `report_row` has returned."""
    return _decode_report(encoded)


def read_rows(batches: Iterable[Any]) -> Iterator[FrameRow | ReportRow]:
    """Yield the rows of Arrow record batches of `SCHEMA`, in their order."""
    for batch in batches:
        receiver, edge, sender, ord_, seq, run, frame, report = (
            column.to_pylist() for column in batch.columns
        )
        rows = zip(receiver, edge, sender, ord_, seq, run, frame, strict=True)
        for fields, encoded in zip(rows, report, strict=True):
            if encoded is None:
                yield FrameRow(*fields)
            else:
                yield ReportRow(fields[0], fields[4], encoded)


def write_batches(rows: Iterable[FrameRow | ReportRow]) -> Iterator[Any]:
    """Yield the rows as Arrow record batches of `SCHEMA`. A limit of rows and of bytes in each
    batch bounds the memory.
    """
    pending: list[tuple[Any, ...]] = []
    size = 0
    for row in rows:
        if isinstance(row, FrameRow):
            pending.append((*row, None))
            size += len(row.frame)
        else:
            address = (row.receiver, _NO_EDGE, row.receiver, REPORT_ORD, row.seq)
            pending.append((*address, None, None, row.report))
            size += len(row.report)
        if len(pending) >= ROWS_PER_BATCH or size >= BYTES_PER_BATCH:
            yield _batch(pending)
            pending, size = [], 0
    if pending:
        yield _batch(pending)


def _batch(rows: list[tuple[Any, ...]]) -> Any:
    import pyarrow as pa

    types = (
        *((name, pa.int32()) for name in ("receiver", "edge", "sender")),
        *((name, pa.int64()) for name in ("ord", "seq")),
        *((name, pa.binary()) for name in ("run", "frame", "report")),
    )
    columns = zip(*rows, strict=True)
    arrays = [pa.array(column, type=kind) for column, (_, kind) in zip(columns, types, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, names=[name for name, _ in types])
