"""Columns of a batch stay parallel, whatever cuts, splits or filters the batch.

The model of a batch is a list of rows. A row is one record with all of its columns.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple, cast

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from tests.dataplane.channels.parts import TOPIC_PARTITION, codec
from tests.dataplane.test_operators import Dict, no_clock, step
from tidegate.api.functions import Context, KeyedProcess, Process, ProcessContext, SideOutput
from tidegate.api.state.state import ValueState
from tidegate.dataplane.channels.frames import data_frame
from tidegate.dataplane.channels.record_writer import KeyGroupWriter
from tidegate.dataplane.columns import (
    have_same_length,
    origin_of,
    select,
    slice_batch,
    split,
    with_results,
    with_values,
    without,
)
from tidegate.dataplane.operators.keyed import KeyedOperator
from tidegate.dataplane.operators.process import ProcessOperator
from tidegate.dataplane.operators.stateless import FusedSteps
from tidegate.dataplane.refusals import Refusals
from tidegate.graph.stream_graph import MAIN, Edge, Node
from tidegate.stream_elements import NO_OFFSET, RecordBatch

FIRST_MS = 1_000


class Row(NamedTuple):
    """One record of the model."""

    value: Any
    offset: int
    key: bytes | None
    timestamp_ms: int | None


def rows_of(batch: RecordBatch) -> list[Row]:
    """The rows of a batch. This fails if a column is shorter or longer than another."""
    assert have_same_length(batch)
    nothing: list[Any] = [None] * len(batch)
    keys, times = batch.keys or nothing, batch.timestamps_ms or nothing
    columns = zip(batch.values, batch.offsets, keys, times, strict=True)
    return [Row(*columns_of_row) for columns_of_row in columns]


@st.composite
def batches(draw: st.DrawFn) -> RecordBatch:
    """Batches with each combination of columns. The values are the row numbers."""
    count, first = draw(st.integers(0, 8)), draw(st.integers(0, 100))
    return RecordBatch(
        list(range(count)),
        draw(st.sampled_from([range(first, first + count), list(range(first, first + count))])),
        TOPIC_PARTITION,
        draw(st.sampled_from([None, list[bytes | None](b"k%d" % n for n in range(count))])),
        draw(st.none() | st.just([FIRST_MS + number for number in range(count)])),
    )


@given(batches(), st.integers(0, 8), st.integers(0, 8))
def test_slice_has_the_rows_between_start_and_stop(
    batch: RecordBatch, start: int, stop: int
) -> None:
    assert rows_of(slice_batch(batch, start, stop)) == rows_of(batch)[start:stop]


@given(batches(), st.data())
def test_selection_has_the_selected_rows_in_the_given_order(
    batch: RecordBatch, data: st.DataObject
) -> None:
    chosen = data.draw(st.lists(st.sampled_from(batch.values), max_size=9)) if len(batch) else []
    rows = rows_of(batch)
    assert rows_of(select(batch, chosen)) == [rows[row] for row in chosen]
    kept = [row for number, row in enumerate(rows) if number not in chosen]
    assert rows_of(without(batch, chosen)) == kept


@given(batches(), st.data())
def test_split_gives_each_receiver_its_rows_in_order(
    batch: RecordBatch, data: st.DataObject
) -> None:
    receivers = [data.draw(st.integers(0, 2)) for _ in batch.values]
    parts = dict(split(batch, receivers, 3))
    for receiver in range(3):
        own = [row for row, to in zip(rows_of(batch), receivers, strict=True) if to == receiver]
        found = parts.get(receiver)
        assert ([] if found is None else rows_of(found)) == own
        assert found is None or found.topic_partition == TOPIC_PARTITION
    assert set(parts) == set(receivers), "no receiver gets an empty part"


@given(batches())
def test_other_values_keep_the_other_columns(batch: RecordBatch) -> None:
    values = [-value for value in batch.values]
    assert rows_of(with_values(batch, values)) == [
        row._replace(value=-row.value) for row in rows_of(batch)
    ]


@given(batches(), st.booleans())
def test_results_have_the_columns_of_their_records(batch: RecordBatch, keep_keys: bool) -> None:
    rows = [row for row in batch.values for _ in range(row % 3)]
    found = with_results(batch, [f"r{row}" for row in rows], rows, keep_keys=keep_keys)
    before = rows_of(batch)
    assert rows_of(found) == [
        before[row]._replace(value=f"r{row}", key=before[row].key if keep_keys else None)
        for row in rows
    ]


# --- what the operators do with the columns -------------------------------------------------------


class Repeat(Process[int, int]):
    odd = SideOutput(int)

    def process(self, record: int, ctx: ProcessContext) -> Iterable[int]:
        if record % 2:
            ctx.output(Repeat.odd, record)
        return [record] * (record % 3)


class RepeatKeyed(KeyedProcess[int, int, int]):
    seen = ValueState(int, default=0)
    odd = SideOutput(int)

    def process(self, record: int, ctx: Context[int]) -> Iterable[int]:
        if record % 2:
            ctx.output(RepeatKeyed.odd, record)
        return [record] * (record % 3)


Emits = dict[str, Callable[[RecordBatch], None]]


def fused(emits: Emits, refusals: Refusals) -> FusedSteps:
    nodes = [
        step("filter", lambda value: value >= 0),
        step("flat_map", lambda value: [value] * (value % 3), 2),
        step("map", lambda value: value, 3),
    ]
    return FusedSteps("P", nodes, emits[MAIN], [refusals] * 3)


def process(emits: Emits, refusals: Refusals) -> ProcessOperator:
    return ProcessOperator("P", step("process", Repeat()), emits, refusals, now_ms=no_clock)


class StorableDict(Dict):
    def why_not(self, row: Any, images: Sequence[object]) -> str:
        return ""


def keyed(emits: Emits, refusals: Refusals) -> KeyedOperator:
    function = RepeatKeyed()
    edge = Edge(node="in", partitioning="key", key=lambda value: value % 2)
    node: Node = replace(step("keyed_process", function), inputs=(edge,), uid="repeat")
    return KeyedOperator("P", node, StorableDict(function), emits, refusals, now_ms=no_clock)


@pytest.mark.parametrize("policy", ["fail", "skip"])
@pytest.mark.parametrize("make", [fused, process, keyed])
@given(batches())
def test_operator_gives_each_result_the_columns_of_its_record(
    make: Callable[[Emits, Refusals], Any], policy: Any, batch: RecordBatch
) -> None:
    assume(batch.values)  # no step gets an empty batch
    out: dict[str, list[RecordBatch]] = {MAIN: [], "odd": []}
    operator = make({port: out[port].append for port in out}, Refusals("step", policy))
    before = rows_of(batch)
    operator.process(batch)
    keeps_keys = make is fused
    expected = [row for row in before for _ in range(row.value % 3)]
    expected = expected if keeps_keys else [row._replace(key=None) for row in expected]
    assert [row for each in out[MAIN] for row in rows_of(each)] == expected
    if make is not fused:
        odd = [row._replace(key=None) for row in before if row.value % 2]
        assert [row for each in out["odd"] for row in rows_of(each)] == odd
    assert all(each.topic_partition == TOPIC_PARTITION for port in out.values() for each in port)


@given(batches(), st.integers(1, 3))
def test_record_writer_and_frames_keep_the_columns_parallel(
    batch: RecordBatch, parallelism: int
) -> None:
    received: list[list[RecordBatch]] = [[] for _ in range(parallelism)]

    class Channel:
        def __init__(self, number: int) -> None:
            self._number = number

        def put(self, part: RecordBatch) -> None:
            encoded = codec().encode(part)
            received[self._number] += codec().decode(b"".join(data_frame(encoded)))

    channels = [cast("Any", Channel(number)) for number in range(parallelism)]
    before = rows_of(batch)
    writer = KeyGroupWriter(lambda value: value, lambda key: b"%d" % key, 16, channels, step="s")
    writer.emit(batch)
    found = [row for part in received for each in part for row in rows_of(each)]
    assert sorted(found) == sorted(before)


def test_origin_of_a_result_of_a_timer_is_no_record() -> None:
    read = RecordBatch(["a", "b"], [5, 6], TOPIC_PARTITION)
    assert origin_of(read, 1) == "orders-3 at offset 6"
    made = RecordBatch(["a"], [NO_OFFSET], None)
    assert origin_of(made, 0) == "no single record (a timer or a window made it)"
