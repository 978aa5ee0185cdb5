"""A world without faults, in which procedures are run one after the other."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any, TypeVar

from tests.commit.masters import Tasks
from tests.commit.world import JOB, RETRY_POLICY, Faults, Rules, World
from tidegate.checkpoint.manifest import Manifest
from tidegate.checkpoint.state_metadata import StateMetadata
from tidegate.commit.claim import claim
from tidegate.commit.committer import commit
from tidegate.commit.effects import Effect, Gather, Procedure
from tidegate.commit.journal.claimed import ClaimedJournal
from tidegate.commit.journal.entries import AnyEntry
from tidegate.commit.publish import publish
from tidegate.commit.recover import close, recover
from tidegate.commit.settle import settle
from tidegate.errors import (
    TidegateError,
)
from tidegate.ids import CheckpointId, SubtaskIndex, Uid, VertexId
from tidegate.protocol.subtask_snapshot import (
    KeyedSnapshot,
    PreparedTransaction,
    StateFile,
    SubtaskSnapshot,
)

T = TypeVar("T")
Answer = Callable[[Effect], Any]


class ProcedureRunner:
    """Runs procedures one after the other; `answer` may replace the world's answer to an effect."""

    def __init__(self) -> None:
        self.world = World(0, Rules(), Faults(), random.Random(0))
        self.asked: list[Effect] = []

    def run(self, procedure: Procedure[T], answer: Answer | None = None) -> T:
        value: Any = None
        failure: TidegateError | None = None
        while True:
            try:
                effect = procedure.throw(failure) if failure else procedure.send(value)
            except StopIteration as end:
                result: T = end.value
                return result
            value, failure = None, None
            if isinstance(effect, Gather):  # one after the other is an order, too
                value = [self.run(each, answer) for each in effect.procedures]
                continue
            self.asked.append(effect)
            try:
                value = answer(effect) if answer is not None else NotImplemented
                if value is NotImplemented:
                    value = self.world.perform(effect)
            except TidegateError as error:
                failure = error

    def claim(self, submission_id: str = "s1", **more: Any) -> ClaimedJournal:
        return self.run(claim(JOB, submission_id=submission_id, retry_policy=RETRY_POLICY, **more))

    def prepared(self, journal: ClaimedJournal, *records: int) -> tuple[PreparedTransaction, ...]:
        """Both sinks write and prepare."""
        tasks = Tasks(self.world, journal.attempt, journal.journal_id, records[0])
        for _ in records:
            tasks.write_one()
        tasks.prepare()
        return tuple(tasks.pending)

    def publish(
        self, journal: ClaimedJournal, counter: int, *named: PreparedTransaction, **more: Any
    ) -> Any:
        published = manifest(journal, counter, named, **more)
        return self.run(
            publish(
                journal, published, named, describe_retry=RETRY_POLICY, storage_retry=RETRY_POLICY
            )
        )

    def commit(self, journal: ClaimedJournal) -> tuple[PreparedTransaction, ...]:
        result = self.run(commit(journal, retry_policy=RETRY_POLICY))
        return self.run(
            settle(journal, result, commit_retry=RETRY_POLICY, storage_retry=RETRY_POLICY)
        )

    def recover(self, journal: ClaimedJournal, answer: Answer | None = None) -> Any:
        procedure = recover(
            journal, commit_retry=RETRY_POLICY, fence_retry=RETRY_POLICY, storage_retry=RETRY_POLICY
        )
        return self.run(procedure, answer)

    def close(self, journal: ClaimedJournal) -> None:
        self.run(
            close(
                journal,
                "finished",
                commit_retry=RETRY_POLICY,
                fence_retry=RETRY_POLICY,
                storage_retry=RETRY_POLICY,
            )
        )

    def entries(self) -> list[AnyEntry]:
        return self.world.entries()

    def kinds(self) -> list[str]:
        return [type(entry).__name__ for entry in self.entries()]


def manifest(
    journal: ClaimedJournal,
    counter: int,
    named: tuple[PreparedTransaction, ...] = (),
    *,
    final: bool = False,
    files: tuple[str, ...] = (),
) -> Manifest:
    keyed = KeyedSnapshot(
        uid=Uid("total"),
        backend="memory",
        first_key_group=0,
        last_key_group=127,
        files=tuple(StateFile(name=f, path=f, size=1, sha256="") for f in files),
        schemas={},
    )
    return Manifest(
        job=JOB,
        checkpoint=CheckpointId(journal.attempt, counter),
        submission_id=journal.submission_id,
        created_ms=0,
        final=final,
        kafka_cluster=journal.state.kafka_cluster,
        fingerprint="f",
        plan=StateMetadata(parallelism=1, max_parallelism=128),
        subtasks=(
            SubtaskSnapshot(
                vertex=VertexId("v"),
                index=SubtaskIndex(0),
                keyed=(keyed,) if files else (),
                transactions=named,
            ),
        ),
    )
