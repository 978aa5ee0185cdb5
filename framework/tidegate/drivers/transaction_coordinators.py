"""The coordinator of each system that holds transactions of sinks, registered once.

Kafka is not in this table: its `TransactionAdmin` serves sources, too. ARCHITECTURE.md has the
recipe "Add a sink".
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from tidegate.errors import RefusedError
from tidegate.ports.transactions import SinkOptions, TransactionCoordinator

TRANSACTION_COORDINATORS: Final[dict[str, Callable[[SinkOptions], TransactionCoordinator]]] = {}
"""Makers of coordinators, by the name of the system (`Sink.transaction_system`)."""


def make_transaction_coordinator(system: str, sinks: SinkOptions) -> TransactionCoordinator:
    """Return the coordinator of a system. RefusedError if no coordinator is registered."""
    make = TRANSACTION_COORDINATORS.get(system)
    if make is None:
        raise RefusedError(
            f"A sink or a checkpoint of the job has transactions of the system {system!r}, and "
            "this process has no coordinator for it. Add it to TRANSACTION_COORDINATORS in a "
            "module that the pipeline imports, or start the job with the code that wrote the "
            "checkpoint."
        )
    return make(sinks)
