"""Transactions of another system than Kafka reach that system's coordinator, and only it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tests.dataplane.folder_sink import (
    FOLDER,
    Deliveries,
    FolderCoordinator,
    committed_path,
    prepared_path,
)
from tidegate import build
from tidegate.commit import effects
from tidegate.commit.decisions import is_as_prepared, is_complete
from tidegate.controlplane.journal.effect_runner import EffectRunner
from tidegate.controlplane.journal.sink_coordinators import SinkCoordinators, sinks_by_system
from tidegate.drivers.storage import open_store
from tidegate.drivers.threads import SystemThreads
from tidegate.drivers.transaction_coordinators import make_transaction_coordinator
from tidegate.errors import RefusedError
from tidegate.graph.stream_graph import StreamGraph
from tidegate.ids import TransactionalId
from tidegate.ports.kafka import EndTxnResult, TransactionState
from tidegate.ports.transactions import SinkOptions
from tidegate.protocol.subtask_snapshot import PreparedTransaction

PREFIX = "tidegate.deliveries."
KAFKAS = TransactionalId(f"{PREFIX}j.copies.1.0.0")
FOLDERS = TransactionalId(f"{FOLDER}:{PREFIX}j.lines.1.0.0")
OTHERS = TransactionalId(f"{FOLDER}:tidegate.deliveries-2.j.lines.1.0.0")


class KafkaLog:
    """Kafka's transaction admin. It records the ids of its requests."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    def cluster_id(self) -> str:
        return "c1"

    def describe(self, transactional_id: TransactionalId) -> None:
        self.asked.append(transactional_id)

    def end(self, transactional_id: TransactionalId, *_: int, commit: bool) -> EndTxnResult:
        del commit
        self.asked.append(transactional_id)
        return EndTxnResult.ACCEPTED

    def fence(self, transactional_id: TransactionalId) -> None:
        self.asked.append(transactional_id)

    def list(self, prefix: str, *, unfinished: bool = False) -> dict[str, TransactionState]:
        del unfinished
        return {KAFKAS: TransactionState.ONGOING} if KAFKAS.startswith(prefix) else {}

    def close(self) -> None:
        self.asked.append("closed")


class World:
    """An effect runner on a folder and on Kafka's log."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.kafka = folder, KafkaLog()
        self.made: list[FolderCoordinator] = []
        self.closed = 0
        drivers = SimpleNamespace(
            threads=SystemThreads(), transaction_coordinator=self._make_coordinator
        )
        self.sinks = SinkCoordinators(cast("Any", drivers))
        self.runner = EffectRunner(
            open_store("memory:///"),
            cast("Any", self.kafka),
            cast("Any", SimpleNamespace()),
            SystemThreads(),
            nonce=lambda: "n",
            sinks=self.sinks,
        )

    def _make_coordinator(self, system: str, sinks: SinkOptions) -> FolderCoordinator:
        assert system == FOLDER
        made = FolderCoordinator(sinks)
        made.close = self._count_close  # type: ignore[method-assign]
        self.made.append(made)
        return made

    def _count_close(self) -> None:
        self.closed += 1

    def prepare(self, transactional_id: TransactionalId = FOLDERS) -> PreparedTransaction:
        """Write the file of a prepared transaction."""
        prepared_path(self.folder, transactional_id).write_text("{}\n")
        return transaction(transactional_id, str(self.folder))

    def use_sinks(self) -> None:
        """Use a graph with a folder sink."""
        graph = build(Deliveries)
        graph.nodes["lines"].declaration.folder = str(self.folder)  # type: ignore[attr-defined]
        self.sinks.use(graph)


def transaction(transactional_id: TransactionalId, handle: str = "") -> PreparedTransaction:
    return PreparedTransaction(
        cluster_id="" if handle else "c1",
        transactional_id=transactional_id,
        producer_id=0,
        epoch=0,
        start_ms=0,
        handle=handle,
    )


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    folder = Deliveries.lines.folder
    yield World(tmp_path)
    Deliveries.lines.folder = folder


def test_prepared_transaction_is_described_as_prepared_and_then_as_complete(world: World) -> None:
    prepared = world.prepare()
    found = world.runner.perform(effects.Describe(transaction=prepared))
    assert is_as_prepared(prepared, found)
    ended = world.runner.perform(effects.EndTransaction(transaction=prepared))
    assert ended is EndTxnResult.ACCEPTED
    found = world.runner.perform(effects.Describe(transaction=prepared))
    assert is_complete(prepared, found)
    assert committed_path(world.folder, FOLDERS).exists()
    assert world.kafka.asked == [], "Kafka is not asked about a transaction of another system"


def test_transaction_that_its_system_does_not_know_is_described_as_unknown(world: World) -> None:
    gone = transaction(FOLDERS, str(world.folder))
    assert world.runner.perform(effects.Describe(transaction=gone)) is None


def test_transaction_of_kafka_does_not_reach_another_system(world: World) -> None:
    world.use_sinks()
    own = transaction(KAFKAS)
    world.runner.perform(effects.Describe(transaction=own))
    world.runner.perform(effects.EndTransaction(transaction=own))
    world.runner.perform(effects.Fence(transactional_id=KAFKAS))
    assert world.kafka.asked == [KAFKAS] * 3
    assert world.made == []


def test_list_holds_the_ids_of_kafka_and_of_the_systems_of_the_sinks(world: World) -> None:
    world.prepare()
    world.prepare(OTHERS)
    listed = effects.ListTransactions(prefix=PREFIX)
    assert set(world.runner.perform(listed)) == {KAFKAS}, "no sink of another system is known"
    world.use_sinks()
    assert world.runner.perform(listed) == {
        KAFKAS: TransactionState.ONGOING,
        FOLDERS: TransactionState.ONGOING,
    }


def test_unfinished_list_leaves_out_the_committed_transactions_of_a_system(world: World) -> None:
    world.use_sinks()
    world.runner.perform(effects.EndTransaction(transaction=world.prepare()))
    every = world.runner.perform(effects.ListTransactions(prefix=PREFIX))
    assert every[FOLDERS] is TransactionState.COMPLETE_COMMIT
    unfinished = world.runner.perform(effects.ListTransactions(prefix=PREFIX, unfinished=True))
    assert FOLDERS not in unfinished


def test_fence_aborts_a_prepared_transaction_of_a_system(world: World) -> None:
    world.use_sinks()
    prepared = world.prepare()
    world.runner.perform(effects.Fence(transactional_id=FOLDERS))
    assert world.runner.perform(effects.Describe(transaction=prepared)) is None
    assert world.kafka.asked == []


def test_transaction_is_ended_also_if_the_code_has_no_such_sink_any_more(world: World) -> None:
    world.use_sinks()
    world.sinks.use(StreamGraph("empty"))
    world.runner.perform(effects.EndTransaction(transaction=world.prepare()))
    assert committed_path(world.folder, FOLDERS).exists()


def test_coordinator_is_made_once_and_closed_with_the_runner(world: World) -> None:
    world.use_sinks()
    for _ in range(2):
        world.runner.perform(effects.ListTransactions(prefix=PREFIX))
        world.use_sinks()  # each claim of the job does
    assert len(world.made) == 1
    world.runner.close()
    assert world.closed == 1
    assert world.kafka.asked == ["closed"]


def test_options_of_the_sinks_are_found_by_their_system() -> None:
    (options,) = sinks_by_system(build(Deliveries))[FOLDER].values()
    assert options["folder"] == "lines"


def test_system_without_a_registered_coordinator_is_refused() -> None:
    with pytest.raises(RefusedError, match=r"no coordinator for it\. Add it"):
        make_transaction_coordinator("postgres", {})
