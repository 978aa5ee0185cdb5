"""The columns of a batch, cut and selected together.

A batch has a column of values and several parallel columns, and some of them may be absent. A
function here knows all of them. No other module of the data plane slices, splits or filters a
batch, because a forgotten column would be misaligned without an error.

The functions know nothing about what a column means, with one exception: `origin_of` says in words
where a record came from.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from tidegate.stream_elements import RecordBatch


def slice_batch(batch: RecordBatch, start: int, stop: int) -> RecordBatch:
    """Return records `start` to `stop` (not included) of a batch. The columns are copied."""
    keys, timestamps_ms = batch.keys, batch.timestamps_ms
    return RecordBatch(
        batch.values[start:stop],
        batch.offsets[start:stop],
        batch.topic_partition,
        None if keys is None else keys[start:stop],
        None if timestamps_ms is None else timestamps_ms[start:stop],
    )


def select(batch: RecordBatch, rows: Sequence[int]) -> RecordBatch:
    """Return the records at the indexes `rows`, in the order of `rows`."""
    return with_results(batch, list(map(batch.values.__getitem__, rows)), rows)


def without(batch: RecordBatch, refused: Collection[int]) -> RecordBatch:
    """Return the batch without the records at the indexes `refused`."""
    if not refused:
        return batch
    return select(batch, [row for row in range(len(batch)) if row not in refused])


def with_values(batch: RecordBatch, values: list[Any]) -> RecordBatch:
    """Return a batch with other values and the same other columns."""
    return RecordBatch(
        values, batch.offsets, batch.topic_partition, batch.keys, batch.timestamps_ms
    )


def with_times(batch: RecordBatch, times_ms: list[int] | None) -> RecordBatch:
    """Return a batch with other event times, or without any, and the same other columns."""
    return RecordBatch(batch.values, batch.offsets, batch.topic_partition, batch.keys, times_ms)


def with_results(
    batch: RecordBatch, values: list[Any], rows: Sequence[int], *, keep_keys: bool = True
) -> RecordBatch:
    """Return results of a step: `values[i]` is a result for the record at the index `rows[i]`.

    A result has the offset and the event time of its record, and with `keep_keys` its key.
    """
    keys, timestamps_ms = batch.keys, batch.timestamps_ms
    return RecordBatch(
        values,
        list(map(batch.offsets.__getitem__, rows)),
        batch.topic_partition,
        None if keys is None or not keep_keys else list(map(keys.__getitem__, rows)),
        None if timestamps_ms is None else list(map(timestamps_ms.__getitem__, rows)),
    )


def split(
    batch: RecordBatch, receivers: Sequence[int], count: int
) -> list[tuple[int, RecordBatch]]:
    """Return the part of each of `count` receivers that gets a record, with the receiver's number.

    `receivers[i]` is the receiver of record `i`. The records of a receiver keep their order.
    """
    if batch.keys is not None or batch.timestamps_ms is not None:
        rows: list[list[int]] = [[] for _ in range(count)]
        for row, receiver in enumerate(receivers):
            rows[receiver].append(row)
        return [(number, select(batch, chosen)) for number, chosen in enumerate(rows) if chosen]
    # Most batches have these two columns only. One pass over both is cheaper than row numbers.
    values: list[list[Any]] = [[] for _ in range(count)]
    offsets: list[list[int]] = [[] for _ in range(count)]
    for receiver, value, offset in zip(receivers, batch.values, batch.offsets, strict=True):
        values[receiver].append(value)
        offsets[receiver].append(offset)
    return [
        (number, RecordBatch(part, offsets[number], batch.topic_partition))
        for number, part in enumerate(values)
        if part
    ]


def have_same_length(batch: RecordBatch) -> bool:
    """Return whether every column that is present has one entry for each record."""
    length = len(batch.values)
    columns = (batch.offsets, batch.keys, batch.timestamps_ms)
    return all(column is None or len(column) == length for column in columns)


def origin_of(batch: RecordBatch, index: int | None) -> str:
    """Return, for an error, where a record came from: "orders-3 at offset 7". If `index` is None,
    the record is not known.
    """
    if batch.topic_partition is None:
        return "no single record (a timer or a window made it)"
    topic, partition = batch.topic_partition
    offset = "" if index is None else f" at offset {batch.offsets[index]}"
    return f"{topic}-{partition}{offset}"
