"""The builder of the subtasks of one slot of a pipeline test, and the job that they belong to.

The builder is that of a slot (`SubtaskBuilder`). Only the sinks are others: they keep their records
in memory. All fields of every result are checked, because a test has few records.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from tidegate.api.connectors.sink import Sink
from tidegate.api.pipeline import Pipeline
from tidegate.checkpoint.manifest import Manifest
from tidegate.config import Config
from tidegate.dataplane.counters import Counters
from tidegate.dataplane.operators.keyed import KeyedStateLike
from tidegate.dataplane.refusals import Refusals
from tidegate.dataplane.source_task import SourceTask
from tidegate.dataplane.state.step import SubtaskKeyedState
from tidegate.dataplane.subtask_context import SubtaskContext
from tidegate.dataplane.task_builder import SlotContext, SubtaskBuilder
from tidegate.graph.plan import Vertex
from tidegate.graph.stream_graph import Node, StreamGraph
from tidegate.ids import Uid
from tidegate.ports.blobs import BlobStore
from tidegate.ports.kafka import TransactionAdmin
from tidegate.protocol.messages import Deploy
from tidegate.protocol.subtask_snapshot import SourceSplit
from tidegate.testing.drivers import PipelineDrivers
from tidegate.testing.kept_records import KeepingSinkWriter, KeptRecords


@dataclass(frozen=True, slots=True, kw_only=True)
class TestedJob:
    """The parts of a job that outlive an attempt."""

    __test__ = False  # not a test class of pytest's

    pipeline: type[Pipeline]
    params: Mapping[str, object]
    max_parallelism: int
    config: Config
    drivers: PipelineDrivers
    blobs: BlobStore
    counters: Counters
    kept: dict[str, KeptRecords]
    """The records of each sink, by the id of its node."""
    local: Path
    """The folder of local state. It is made with the first checkpoint of a step."""
    draw: random.Random | None
    """The order of turns. None if they follow the plan."""
    piece: int
    """The most keys whose timers, and the most windows that fire together."""
    checkpoint_every: int
    """The number of steps of subtasks from one checkpoint to the next; 0 if the test takes all of
    them.
    """
    on_checkpoint: Callable[[Manifest], None]
    """Function that takes a checkpoint which came by itself."""


class PipelineSlotBuilder(SubtaskBuilder):
    """The builder of the subtasks of one slot. It checks every field of every result."""

    every_field = True

    def __init__(
        self,
        deploy: Deploy,
        context: SlotContext,
        built: tuple[type[Pipeline], StreamGraph],
        job: TestedJob,
    ) -> None:
        no_transactions = cast("TransactionAdmin", None)  # the sinks here have none
        super().__init__(deploy, context, built, job.blobs, no_transactions)
        self._kept = job.kept
        self.states: list[SubtaskKeyedState] = []

    def other_source(
        self, task: SourceTask, splits: Sequence[SourceSplit], *, ends_input: bool
    ) -> SourceTask:
        """Return a source task with other splits and with the chain of `task`."""
        head = self.graph.nodes[task.subtask.vertex]
        return self._source_task(
            head, task.context, task.chain, splits, receivers=1, ends_input=ends_input
        )

    def _sink(
        self, node: Node, subtask_context: SubtaskContext, refusals: Refusals
    ) -> KeepingSinkWriter:
        del subtask_context
        sink = cast("Sink[Any]", node.declaration)
        kept = self._kept.setdefault(node.id, KeptRecords(sink.guarantee))
        return KeepingSinkWriter(sink, Uid(node.id), kept, refusals)

    def _local_folder(self, vertex: Vertex) -> Path:
        return self._context.local / vertex.id  # made by the state store, if at all

    def _state(self, node: Node, subtask_context: SubtaskContext) -> KeyedStateLike:
        state = cast("SubtaskKeyedState", super()._state(node, subtask_context))
        self.states.append(state)
        return state
