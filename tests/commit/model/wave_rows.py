"""Which rows a task of the model of waves may be given, and what it makes of them.

A sender writes a frame for each record, and ends each channel by a marker with the number of its
frames. Each row names the run that wrote it. A fault gives a task some rows of one or two runs of a
sender, in place of all rows of one run.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import NamedTuple

from tests.commit.model.broker import Records
from tests.commit.model.wave_state import SENT, TaskRun


class Row(NamedTuple):
    """A frame, or the marker of its channel."""

    run: int
    record: int | None
    """None: a marker."""
    frames: int = 0


class Delivery(NamedTuple):
    """Rows of one sender that are given to a task."""

    rows: tuple[Row, ...]
    label: str
    is_fault: bool


class Received(NamedTuple):
    """Records that a task takes from one sender."""

    run: int
    """-1: no row of it came, so that the task knows no run."""
    records: Records


def deliveries(runs: tuple[TaskRun, ...], receiver: int, *, faults: bool) -> Iterator[Delivery]:
    """Everything that one task may be given of a sender with these runs."""
    written = {
        number: _written(number, run.sends[receiver])
        for number, run in enumerate(runs)
        if run.status == SENT
    }
    for number, rows in written.items():
        yield Delivery(rows, f"run {number}", is_fault=False)
    if not faults:
        return
    intact = {frozenset(rows) for rows in written.values()}
    pool = [row for rows in written.values() for row in rows]
    for size in range(len(pool) + 1):
        for some in itertools.combinations(pool, size):
            if pool and frozenset(some) not in intact:
                yield Delivery(some, f"only {_describe_rows(some)}", is_fault=True)


def receive(rows: tuple[Row, ...], broken: str) -> Received | None:
    """The records that a receiver takes from one sender. None if it refuses the rows."""
    if broken == "no marker":
        rows = tuple(row for row in rows if row.record is not None)
    frames = tuple(row.record for row in rows if row.record is not None)
    markers = [row for row in rows if row.record is None]
    runs = {row.run for row in rows}
    if len(runs) > 1 and broken != "rows of two runs":
        return None
    if broken != "no marker":
        if len(markers) != 1:
            return None
        if markers[0].frames != len(frames) and broken != "no frame count":
            return None
    return Received(rows[0].run if rows else -1, frames)


def _written(number: int, records: Records) -> tuple[Row, ...]:
    frames = [Row(number, record) for record in records]
    return (*frames, Row(number, None, len(records)))


def _describe_rows(rows: tuple[Row, ...]) -> str:
    words = [
        f"the marker of run {row.run}" if row.record is None else f"{row.record} of run {row.run}"
        for row in rows
    ]
    return " and ".join(words) or "nothing"
