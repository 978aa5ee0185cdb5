"""Kafka's transaction coordinator as both models see it: one row for each transactional id.

A raw InitProducerId always succeeds, keeps the producer id and sets the epoch to +1 (from Empty,
CompleteCommit and CompleteAbort) or to +2 (from Ongoing: one for the abort). A timeout aborts and
sets +1. EndTxn leaves the epoch alone, so here the epoch identifies the producer.

Not modelled: prepare states and markers, loss of `__transaction_state`, epochs that roll over, ids
that expire.
"""

from __future__ import annotations

from typing import Final, NamedTuple

EMPTY: Final = "Empty"
ONGOING: Final = "Ongoing"
COMMIT: Final = "CompleteCommit"
ABORT: Final = "CompleteAbort"

Tid = tuple[int, ...]
"""A transactional id."""
Records = tuple[int, ...]


class Row(NamedTuple):
    """The coordinator's entry for an id."""

    tid: Tid
    status: str
    epoch: int
    records: Records


class Txn(NamedTuple):
    """A prepared transaction, as a publication names it."""

    tid: Tid
    epoch: int
    records: Records


Broker = tuple[Row, ...]
"""Sorted by id."""


def find_row(broker: Broker, tid: Tid) -> Row | None:
    """The row of an id, if it was ever initialised."""
    return next((row for row in broker if row.tid == tid), None)


def store(broker: Broker, row: Row) -> Broker:
    """The rows with one of them replaced or added."""
    return tuple(sorted([*(each for each in broker if each.tid != row.tid), row]))


def init_producer(broker: Broker, tid: Tid) -> tuple[Broker, int]:
    """InitProducerId: aborts what is open; the rows, and the new epoch."""
    row = find_row(broker, tid)
    epoch = 0 if row is None else row.epoch + (2 if row.status == ONGOING else 1)
    return store(broker, Row(tid, EMPTY, epoch, ())), epoch


def verdict(broker: Broker, txn: Txn) -> str:
    """The state of a named transaction by DescribeTransactions: `done`, `open` or `lost`."""
    row = find_row(broker, txn.tid)
    if row is None or row.epoch != txn.epoch:
        return "lost"
    if row.status == COMMIT:
        return "done"
    # Other records stand for another start time.
    return "open" if row.status == ONGOING and row.records == txn.records else "lost"


def committed(output: Records, records: Records) -> Records:
    """The number of times each record is visible after `records` are committed."""
    return tuple(count + records.count(record) for record, count in enumerate(output))
