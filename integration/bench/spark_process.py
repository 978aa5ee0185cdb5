"""Runs orders from standard input in one Spark session, one after the other:

    python -m integration.bench.spark_process backfill|hand-written FOLDER

Each input line is an `Order` in JSON. When a job is done, the process answers with the line `{}`.
At the end of the input it stops Spark and exits. So one session runs many jobs, and the caller
measures the whole process tree for each one.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any, Final

import msgspec

from integration.bench import hand_written
from integration.support.backfills import BackfillJob
from tidegate.backfill.spark.executor import SparkExecutor
from tidegate.backfill.spark.session import BackfillSession, start_session
from tidegate.backfill.spark.stream import make_wave_loop
from tidegate.bootstrap import WAVE_TASK

ROOT: Final = Path(__file__).parents[2]
MASTERS: Final = {"backfill": "local[2,4]", "hand-written": "local[2]"}
ANSWER: Final = b"{}\n"


class Order(msgspec.Struct, frozen=True, kw_only=True):
    """A job to run."""

    workload: str
    reference: str
    """Reference of the pipeline, which is in a module in `folder`."""
    folder: str
    settings: dict[str, str]
    """Settings of the pipeline."""
    bootstrap: str
    source: str
    sink: str
    ends: dict[int, int]
    parallelism: int
    wave_offsets: int


def main() -> None:
    kind, folder = sys.argv[1], Path(sys.argv[2])
    answers = os.fdopen(os.dup(1), "wb", buffering=0)
    os.dup2(2, 1)  # output of Spark must not look like an answer
    with start_session(MASTERS[kind], python_path=[ROOT], folder=folder) as session:
        for line in sys.stdin.buffer:
            order = msgspec.json.decode(line, type=Order)
            if kind == "backfill":
                backfill(session, order)
            else:
                write_by_hand(session.spark, order)
            answers.write(ANSWER)


def backfill(session: BackfillSession, order: Order) -> None:
    """Run the waves of a job as a streaming query."""
    BackfillJob(order.reference, Path(order.folder), dict(order.settings)).backfill(
        parallelism=order.parallelism,
        wave_offsets=order.wave_offsets,
        executor=SparkExecutor(session, WAVE_TASK),
        loop=make_wave_loop(session),
    )


def write_by_hand(spark: Any, order: Order) -> None:
    """Run the job that does not use tidegate."""
    job = hand_written.Job(order.bootstrap, order.source, order.sink, order.ends, order.parallelism)
    hand_written.run(spark, order.workload, job)


if __name__ == "__main__":
    main()
