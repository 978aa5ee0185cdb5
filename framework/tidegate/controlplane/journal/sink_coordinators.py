"""The coordinators of the transaction systems other than Kafka, for one JobMaster.

The effect runner asks them about transactions that are not Kafka's. A transactional id names its
system, so a transaction of the last checkpoint is ended also if the job's code has no sink of that
system any more. Only the systems of the job's present sinks are listed.
"""

from __future__ import annotations

from collections.abc import Mapping

from tidegate.api.connectors.sink import Sink
from tidegate.commit.transactional_ids import transaction_system
from tidegate.graph.stream_graph import StreamGraph
from tidegate.ids import KAFKA, TransactionalId, Uid
from tidegate.ports.drivers import Drivers
from tidegate.ports.kafka import TransactionState
from tidegate.ports.transactions import SinkOptions, TransactionCoordinator


class SinkCoordinators:
    """The coordinators of one job, by system. Any thread may call every method except `use`."""

    def __init__(self, drivers: Drivers) -> None:
        """Start without sinks. A coordinator is made when it is first needed."""
        self._drivers, self._lock = drivers, drivers.threads.lock()
        self._sinks: dict[str, SinkOptions] = {}
        self._made: dict[str, TransactionCoordinator] = {}

    def use(self, graph: StreamGraph) -> None:
        """Use the sinks of this graph. No procedure may run meanwhile."""
        sinks = sinks_by_system(graph)
        if sinks != self._sinks:
            self.close()
            self._sinks = sinks

    def of(self, transactional_id: TransactionalId) -> TransactionCoordinator | None:
        """Return the coordinator of an id; None if Kafka holds its transactions.

        RefusedError if no coordinator is registered for the system.
        """
        system = transaction_system(transactional_id)
        return None if system == KAFKA else self._coordinator(system)

    def list(self, prefix: str, *, unfinished: bool) -> dict[TransactionalId, TransactionState]:
        """Return the ids with a prefix in the systems of the job's sinks."""
        found: dict[TransactionalId, TransactionState] = {}
        for system in self._sinks:
            found |= self._coordinator(system).list(f"{system}:{prefix}", unfinished=unfinished)
        return found

    def close(self) -> None:
        """Close all coordinators. The next call makes new ones."""
        with self._lock:
            made, self._made = self._made, {}
        for coordinator in made.values():
            coordinator.close()

    def _coordinator(self, system: str) -> TransactionCoordinator:
        with self._lock:
            if system not in self._made:
                self._made[system] = self._drivers.transaction_coordinator(
                    system, self._sinks.get(system, {})
                )
            return self._made[system]


def sinks_by_system(graph: StreamGraph) -> dict[str, SinkOptions]:
    """Return the options of the sinks that write transactions to another system than Kafka."""
    found: dict[str, dict[Uid, Mapping[str, object]]] = {}
    for node in graph:
        sink = node.declaration
        if isinstance(sink, Sink) and sink.transaction_system not in {"", KAFKA}:
            found.setdefault(sink.transaction_system, {})[Uid(node.id)] = sink.describe()
    return dict(found)
