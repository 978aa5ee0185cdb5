"""All subtasks of a step with windows, over the real state backend, without a runtime.

It routes records as the exchange does, takes checkpoints of all subtasks, kills them, and restores
them at any parallelism. What was emitted since the last checkpoint is dropped by a kill, as a
transactional sink drops it, and the caller sends the input again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, cast

import msgspec

from tests.dataplane.state.job import MAX_PARALLELISM, Step
from tidegate import Aggregate, BoundedOutOfOrderness, Json, KafkaSink, KafkaSource, Pipeline, build
from tidegate.api.steps.step_state import step_state
from tidegate.api.windows.window_step import WindowStep
from tidegate.dataplane.counters import Counters
from tidegate.dataplane.windows.layouts import make_window_operator
from tidegate.dataplane.windows.operator import WindowOperator
from tidegate.graph.key_groups import key_group, subtask_of
from tidegate.graph.stream_graph import Node
from tidegate.protocol.subtask_snapshot import KeyedSnapshot
from tidegate.stream_elements import MIN_MS, NO_OFFSET, RecordBatch, TopicPartition, Watermark

PARTITION = TopicPartition("clicks", 0)

CACHE_ENTRIES = 4


class Click(msgspec.Struct, frozen=True):
    key: str
    at_ms: int
    value: int


class Result(NamedTuple):
    """One firing: its window and the results of the aggregates."""

    key: str | None
    start_ms: int
    end_ms: int
    firing: str
    number: int
    values: tuple[Any, ...]


def window_node(*aggregates: Aggregate[Any, Any, Any], by_key: bool = True, **window: Any) -> Node:
    """The node of a step with these aggregates. `window` are the arguments of `window`."""

    class Clicks(Pipeline, name="clicks"):
        clicks = KafkaSource(
            "clicks",
            value=Json(Click),
            event_time=lambda click: click.at_ms,
            watermarks=BoundedOutOfOrderness("0 s"),
        )
        results = KafkaSink("results", value=Json(Any))

        def define(self) -> None:
            stream = self.clicks.key_by(lambda click: click.key) if by_key else self.clicks
            method = cast("Any", stream).window if by_key else self.clicks.window_all
            method(window.pop("assigner"), **window).aggregate(
                *aggregates, uid="w", into=lambda w, *values: result_of(w, values)
            ).to(self.results)

    return build(Clicks).nodes["w"]


def result_of(window: Any, values: tuple[Any, ...]) -> Result:
    plain = tuple(tuple(one) if isinstance(one, list) else one for one in values)
    return Result(window.key, window.start_ms, window.end_ms, window.firing, window.number, plain)


class StateOfSubtask:
    """A backend with the watermark that the state of a subtask has."""

    def __init__(self, backend: Any, watermark_ms: int) -> None:
        self.backend, self.watermark_ms = backend, watermark_ms

    def __getattr__(self, name: str) -> Any:
        return getattr(self.backend, name)


@dataclass
class Checkpoint:
    snapshots: list[KeyedSnapshot]
    watermark_ms: int
    results: list[Result]
    late: list[Click]


@dataclass
class Subtasks:
    """The subtasks of one step."""

    folder: Path
    node: Node
    parallelism: int = 1
    now_ms: int = 0
    cache_entries: int | None = None
    """The keys and windows that a subtask may hold in memory; None: `CACHE_ENTRIES`."""
    results: list[Result] = field(default_factory=list)
    late: list[Click] = field(default_factory=list)
    watermarks: list[int] = field(default_factory=list)
    """Watermarks that were forwarded by subtask 0."""

    def __post_init__(self) -> None:
        declared = step_state(self.node)
        self.counters = Counters()
        self.operators: list[WindowOperator] = []
        self._group_bytes = cast("Callable[[Any], bytes]", declared.group_bytes)
        self._is_by_key = declared.key_type == self.node.inputs[0].key_type
        self._step = Step(
            self.folder,
            declared.states,
            key_type=declared.key_type,
            group_bytes=declared.group_bytes,
            cache_entries=CACHE_ENTRIES if self.cache_entries is None else self.cache_entries,
        )
        self.start(self.parallelism)

    def start(self, parallelism: int, checkpoint: Checkpoint | None = None) -> None:
        """Begin a new attempt; what was running is dropped."""
        self.parallelism = parallelism
        snapshots = [] if checkpoint is None else checkpoint.snapshots
        watermark_ms = MIN_MS if checkpoint is None else checkpoint.watermark_ms
        self.results = [] if checkpoint is None else list(checkpoint.results)
        self.late = [] if checkpoint is None else list(checkpoint.late)
        self._step.start(parallelism, snapshots)
        self.operators = [
            make_window_operator(
                "Clicks",
                self.node,
                StateOfSubtask(backend, watermark_ms),
                {"main": self._take, "late": lambda batch: self.late.extend(batch.values)},
                self.counters,
                lambda: self.now_ms,
                None,
            )
            for backend in self._step.subtasks
        ]
        for index, operator in enumerate(self.operators):
            operator.forward = partial(self._forwarded, index)
            operator.open()

    def push(self, clicks: Sequence[Click]) -> None:
        """Process clicks as one batch in each subtask that gets some."""
        for index, operator in enumerate(self.operators):
            mine = [click for click in clicks if self._owner(click) == index]
            if mine:
                times = [click.at_ms for click in mine]
                operator.process(RecordBatch(mine, range(len(mine)), PARTITION, None, times))

    def advance(self, watermark_ms: int, pieces: int | None = None) -> None:
        """Advance all subtasks. `pieces` limits how much of what is due fires in each."""
        for operator in self.operators:
            operator.advance(Watermark(watermark_ms))
            self._fire(operator, pieces)

    def tick(self, now_ms: int) -> None:
        """Processing time comes."""
        self.now_ms = now_ms
        for operator in self.operators:
            operator.advance_processing_time(now_ms)
            self._fire(operator, None)

    def fire_all(self) -> None:
        for operator in self.operators:
            self._fire(operator, None)

    def checkpoint(self) -> Checkpoint:
        return Checkpoint(
            self._step.snapshot(),
            max(operator.state.watermark_ms for operator in self.operators),
            list(self.results),
            list(self.late),
        )

    def stored_rows(self) -> int:
        """Number of rows in the state of all subtasks, without those that were deleted."""
        return len(self.rows())

    def rows(self) -> list[Any]:
        """Return the rows in the state of all subtasks, without those that were deleted."""
        checkpoint = self.checkpoint()
        self._step.start(self.parallelism, checkpoint.snapshots)
        found: list[Any] = []
        for backend in self._step.subtasks:
            found += [row for row in backend.scan("open-windows") if row is not None]
            if backend.tables is not None:
                backend.tables.restore()
                for table in backend.tables.tables.values():
                    found += table.windows.values()
        self.start(self.parallelism, checkpoint)
        return found

    def _owner(self, click: Click) -> int:
        key: Any = click.key if cast("WindowStep", self.node.function).by_key else 0
        row_key = key if self._is_by_key else (key, 0, 0)
        group = key_group(self._group_bytes(row_key), MAX_PARALLELISM)
        return subtask_of(group, len(self.operators), MAX_PARALLELISM)

    def _fire(self, operator: WindowOperator, pieces: int | None) -> None:
        while operator.firing and (pieces is None or pieces > 0):
            operator.fire()
            pieces = None if pieces is None else pieces - 1

    def _take(self, batch: RecordBatch) -> None:
        assert batch.topic_partition is None
        assert list(batch.offsets) == [NO_OFFSET] * len(batch)
        assert batch.timestamps_ms == [result.end_ms - 1 for result in batch.values]
        self.results += batch.values

    def _forwarded(self, index: int, watermark: Watermark) -> None:
        if index == 0:
            self.watermarks.append(watermark.timestamp_ms)
