"""Names and numbers that identify things, each with a type of its own.

A fencing bug is most often one number taken for another (an attempt for a checkpoint's counter, a
subtask for a partition): as types they are errors of the type checker. Nothing here has behaviour
beyond being written as text and parsed back.
"""

from __future__ import annotations

from typing import Final, NamedTuple, NewType, Self

JobName = NewType("JobName", str)
"""A job is its name, no dot in it: it is part of transactional ids."""

JOB_NAME: Final = "[a-z0-9][a-z0-9-]{0,62}"
"""The regular expression that a whole `JobName` matches."""

Attempt = NewType("Attempt", int)
"""One life of a job between two restarts: the journal number of the claim that began it."""

LeaderEpoch = NewType("LeaderEpoch", int)
"""Grows with every JobManager of a cluster; messages of an older one are refused."""

SubtaskIndex = NewType("SubtaskIndex", int)
KeyGroup = NewType("KeyGroup", int)
Uid = NewType("Uid", str)
"""Names a step and its state for ever; sources and sinks take theirs from the attribute."""

VertexId = NewType("VertexId", str)
"""A chain of steps that one subtask runs: the id of the chain's first step."""

TaskManagerId = NewType("TaskManagerId", str)
TransactionalId = NewType("TransactionalId", str)
JournalNumber = NewType("JournalNumber", int)


class CheckpointId(NamedTuple):
    """Attempt and counter within it: never used twice, ordered as the checkpoints were taken."""

    attempt: Attempt
    counter: int

    def __str__(self) -> str:
        return f"{self.attempt}-{self.counter}"

    @classmethod
    def parse(cls, text: str) -> Self:
        """The inverse of `str`; ValueError for anything else."""
        attempt, counter = text.split("-")
        return cls(Attempt(int(attempt)), int(counter))


class SubtaskId(NamedTuple):
    """One parallel instance of a vertex."""

    vertex: VertexId
    index: SubtaskIndex  # type: ignore[assignment]  # hides tuple.index; nobody searches an id

    def __str__(self) -> str:
        return f"{self.vertex}#{self.index}"


class SlotId(NamedTuple):
    """A slot of a TaskManager, numbered from 0."""

    task_manager: TaskManagerId
    index: int  # type: ignore[assignment]  # as above

    def __str__(self) -> str:
        return f"{self.task_manager}/{self.index}"


class ChannelId(NamedTuple):
    """The way from one subtask to another along one edge of the plan; `edge` is the edge's
    index.
    """

    edge: int
    sender: SubtaskIndex
    receiver: SubtaskIndex
