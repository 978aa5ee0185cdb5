"""Names and numbers that identify things, each with its own type.

A typical fencing bug uses one number in place of another: an attempt for a checkpoint's counter, or
a subtask for a partition. With a type for each, the type checker finds such a bug. The types here
have no behaviour except conversion to text and back.
"""

from __future__ import annotations

from typing import Final, NamedTuple, NewType, Self

JobName = NewType("JobName", str)
"""The name of a job, which identifies it. It contains no dot, because it is part of transactional
ids.
"""

JOB_NAME: Final = "[a-z0-9][a-z0-9-]{0,62}"
"""The regular expression that a whole `JobName` matches."""

Attempt = NewType("Attempt", int)
"""One run of a job between two restarts. Its number is the journal number of the claim that began
it.
"""

LeaderEpoch = NewType("LeaderEpoch", int)
"""A number that grows with every JobManager of a cluster. Messages with an older epoch are refused.
"""

SubtaskIndex = NewType("SubtaskIndex", int)
KeyGroup = NewType("KeyGroup", int)
Uid = NewType("Uid", str)
"""The permanent name of a step and its state. The uid of a source or sink is its attribute name."""

VertexId = NewType("VertexId", str)
"""A chain of steps that one subtask runs: the id of the chain's first step."""

TaskManagerId = NewType("TaskManagerId", str)
TransactionalId = NewType("TransactionalId", str)
TRANSACTION_SYSTEM: Final = "[a-z][a-z0-9_]{0,31}"
"""The regular expression that the whole name of a system with transactions matches."""

KAFKA: Final = "kafka"
"""The name of Kafka among the systems that hold transactions of sinks."""
JournalNumber = NewType("JournalNumber", int)


class CheckpointId(NamedTuple):
    """An attempt and a counter within it. An id is never used twice, and ids are ordered like the
    checkpoints.
    """

    attempt: Attempt
    counter: int

    def __str__(self) -> str:
        return f"{self.attempt}-{self.counter}"

    @classmethod
    def parse(cls, text: str) -> Self:
        """Return the id that `str` wrote as `text`. Raise ValueError for any other text."""
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
    """The connection from one subtask to another along one edge of the plan. `edge` is the edge's
    index.
    """

    edge: int
    sender: SubtaskIndex
    receiver: SubtaskIndex
