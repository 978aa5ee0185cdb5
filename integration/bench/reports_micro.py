"""Measures the size of the reports of a wave that the driver collects.

The report of a receiver names every sender from which it has read, with the run of that sender.
This module builds reports as a wave does, for a given number of receivers and senders. A real Spark
job collects the reports, and its tasks send nothing else.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

from integration.bench.page import Table
from integration.bench.spark_cost import judged
from integration.bench.spark_process import ROOT
from tidegate.backfill.spark.levels import TaskAttempt, run_levels
from tidegate.backfill.spark.rows import Report
from tidegate.backfill.spark.session import start_session
from tidegate.ids import Attempt, SubtaskIndex, TransactionalId, Uid, VertexId
from tidegate.protocol.subtask_snapshot import (
    KeyedSnapshot,
    PreparedTransaction,
    StateFile,
    SubtaskSnapshot,
)
from tidegate.protocol.waves import TaskId, TaskReport, report_row

RECEIVERS, SENDERS = 200, 1_000
FILES: Final = 30
"""Files in the state of one receiver. Together they have about two gigabytes."""
GOAL_BYTES: Final = 50_000_000
ENTRY: Final = "integration.bench.reports_micro:report_task"


def report_task(attempt: TaskAttempt, payload: bytes, rows: Any) -> Iterator[Report]:
    """Make the report of a task. Each task of the Spark job runs this."""
    del rows
    yield attempt.report(encoded_report(attempt.subtask, int(payload)))


def encoded_report(receiver: int, senders: int) -> bytes:
    """Return the report of one receiver, with state and a transaction."""
    run = os.urandom(8).hex()
    prefix = f"files/1000/running-total/{receiver}/running-total/{run}"
    files = tuple(
        StateFile(
            name=f"{number:06d}.sst",
            path=f"{prefix}/{number:06d}.sst",
            size=64 << 20,
            sha256=os.urandom(32).hex(),
        )
        for number in range(FILES)
    )
    state = KeyedSnapshot(
        uid=Uid("running-total"),
        backend="rocksdb",
        first_key_group=receiver,
        last_key_group=receiver,
        files=files,
        schemas={},
        stored_names={},
    )
    transaction = PreparedTransaction(
        cluster_id="kafka-cluster-of-22-ch",
        transactional_id=TransactionalId(f"tidegate.bench.j1.totals.1000.{receiver}.123456"),
        producer_id=123_456,
        epoch=0,
        start_ms=1_700_000_000_000,
    )
    report = TaskReport(
        attempt=Attempt(1000),
        task=TaskId(1, receiver),
        run=run,
        snapshots=(
            SubtaskSnapshot(
                vertex=VertexId("running-total"),
                index=SubtaskIndex(receiver),
                keyed=(state,),
                transactions=(transaction,),
            ),
        ),
        consumed=tuple((TaskId(0, sender), os.urandom(8).hex()) for sender in range(senders)),
        records_in=1_000_000,
        records_out=1_000_000,
    )
    return report_row(report).frame


def measure_reports(folder: Path, tell: Callable[[str], None]) -> Table:
    """Make a table of the reports of one wave."""
    folder.mkdir()
    tell(f"Collecting the reports of {RECEIVERS} receivers and {SENDERS:,} senders.")
    with start_session("local[2,4]", python_path=[ROOT], folder=folder) as session:
        run_levels(session, RECEIVERS, 1, ENTRY, b"1")
        began_s = time.monotonic()
        reports = run_levels(session, RECEIVERS, 1, ENTRY, str(SENDERS).encode())
        seconds = time.monotonic() - began_s
    size = sum(len(report.body) for report in reports)
    if len(reports) != RECEIVERS:
        message = f"Only {len(reports)} of {RECEIVERS} reports came."
        raise RuntimeError(message)
    row = [
        *(str(RECEIVERS), f"{SENDERS:,}", f"{size / 1e6:.1f}"),
        *(f"{size / RECEIVERS / 1e3:.1f}", f"{seconds:.1f}"),
    ]
    note = (
        f"The size of the reports: {judged(size < GOAL_BYTES, 'below 50 MB')}. They are the "
        f"reports of one level. Each receiver has a state of {FILES} files and one transaction. "
        f"The time is that of a Spark job of {RECEIVERS} tasks on local[2], which makes and "
        "collects only these reports."
    )
    titles = ("receivers", "senders", "MB collected", "kB a report", "job s")
    return Table("Waves: reports", titles, [row], note)
