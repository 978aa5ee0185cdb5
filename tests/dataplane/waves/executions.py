"""Executions of a wave as Spark may run it: tasks that run again, and readers that mix their runs.

Senders, receivers and reports are the true ones. What a task computes is not: each run sends frames
of its own, so that two runs never wrote the same.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from random import Random
from typing import cast

from tests.graph.test_plan import graph
from tidegate.checkpoint.run_check import task_inputs
from tidegate.dataplane.channels.frames import VERSION, FrameKind, control_frame
from tidegate.dataplane.channels.input_gate import InputChannel
from tidegate.dataplane.waves.receiving import RowReceiver
from tidegate.dataplane.waves.sending import RowSender
from tidegate.errors import IncompleteWaveError
from tidegate.graph.levels import level_of
from tidegate.graph.plan import PlanEdge, plan
from tidegate.ids import Attempt, CheckpointId
from tidegate.protocol.errors import ErrorReport
from tidegate.protocol.waves import Row, TaskId, TaskReport
from tidegate.stream_elements import Barrier, StreamElement

CHECKPOINT = CheckpointId(Attempt(3), 1)
PLAN = plan(graph(a="", b="a*", c="b*+a*"), 2, 128)
"""Three levels; the last one reads from both others."""
LEVEL = level_of(PLAN)

Channel = tuple[int, int, int]
"""Edge, sender, receiver."""


@dataclass(slots=True)
class Recorder:
    """An input channel that keeps what is offered."""

    edge: PlanEdge
    frames: list[bytes] = field(default_factory=list)
    barriers: int = 0

    def offer_frame(self, frame: bytes) -> None:
        self.frames.append(frame)

    def put(self, element: StreamElement) -> None:
        assert isinstance(element, Barrier)
        self.barriers += 1


@dataclass(slots=True)
class TaskRun:
    """One run of a task: what it read, what it wrote, what it reports."""

    rows: list[Row]
    report: TaskReport
    read: dict[Channel, list[bytes]]
    wrote: dict[Channel, list[bytes]]


class Execution:
    """Runs tasks of PLAN; `rng` decides what each sends and whose rows it is given."""

    def __init__(self, rng: Random) -> None:
        self._chance = rng
        self.runs: dict[TaskId, list[TaskRun]] = defaultdict(list)

    def run(self, task: TaskId, rows: list[Row]) -> TaskRun:
        """One run of a task on these rows."""
        number = sum(map(len, self.runs.values())) + 1
        run = number.to_bytes(8)
        sender = RowSender(task.index, run)
        channels = self._inputs(task)
        receiver = RowReceiver(
            {key: cast("InputChannel", channel) for key, channel in channels.items()},
            LEVEL,
            CHECKPOINT,
        )
        wrote: dict[Channel, list[bytes]] = {}
        for edge in PLAN.edges:
            if LEVEL[edge.source] == task.level:
                for to in range(PLAN.parallelism):
                    sender.open(edge.index, to)
                    wrote[edge.index, task.index, to] = []
        error: IncompleteWaveError | None = None
        try:
            for row in sorted(rows, key=lambda row: (row.ord, row.sender, row.seq)):
                receiver.accept(row)
                sender.ord = max(sender.ord, min(row.ord, 1 << 40))
            receiver.finish()
        except IncompleteWaveError as broken:
            error = broken
            sender.fail()
        else:
            self._send(sender, wrote, run)
        made = TaskRun(
            rows=sender.take(),
            report=TaskReport(
                attempt=CHECKPOINT.attempt,
                task=task,
                run=run.hex(),
                consumed=receiver.consumed(),
                error=None if error is None else ErrorReport.of(error),
            ),
            read={
                (edge, sent_by, task.index): channel.frames
                for (edge, sent_by), channel in channels.items()
            },
            wrote=wrote,
        )
        self.runs[task].append(made)
        return made

    def _send(self, sender: RowSender, wrote: dict[Channel, list[bytes]], run: bytes) -> None:
        channels = list(wrote)
        for number in range(self._chance.randrange(6) if channels else 0):
            edge, by, to = self._chance.choice(channels)
            sender.ord += self._chance.randrange(3)
            frame = bytes((VERSION, FrameKind.DATA)) + run + bytes((number,))
            sender.send(edge, to, (frame,))
            wrote[edge, by, to].append(frame)
        for edge, _, to in channels:
            sender.send(edge, to, (control_frame(Barrier(CHECKPOINT, final=True)),))

    def _inputs(self, task: TaskId) -> dict[tuple[int, int], Recorder]:
        return {
            (edge.index, by): Recorder(edge)
            for edge in PLAN.edges
            if LEVEL[edge.target] == task.level
            for by in range(PLAN.parallelism)
        }


def rows_for(task: TaskId, rows: list[Row]) -> list[Row]:
    """The rows that a task reads."""
    edges = {edge.index for edge in PLAN.edges if LEVEL[edge.target] == task.level}
    return [row for row in rows if row.edge in edges and row.receiver == task.index]


TASKS = sorted(task_inputs(PLAN))
"""All tasks, level by level."""
