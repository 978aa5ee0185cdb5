"""The transactions of a sink that writes to another system than Kafka.

A writer (`dataplane/sink_writer.py`) prepares a transaction at each barrier and reports it with a
handle, a text that only its own system reads. The JobMaster ends it later, in another process and
perhaps on another host, through a `TransactionCoordinator`. Kafka's own port is `TransactionAdmin`
in `ports/kafka.py`, which also answers questions about topics.

A system that keeps the promise "exactly_once" has these properties:

- A prepared transaction stays until it is ended, also if its writer dies. A system may abort it
  after a timeout. The job then fails loudly, or rolls the checkpoint back.
- Its records are not visible before the commit, and all of them are visible after it.
- Commit and abort may be repeated. After a commit, an abort changes nothing, and vice versa.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from tidegate.ids import TransactionalId, Uid
from tidegate.ports.kafka import EndTxnResult, TransactionState

SinkOptions = Mapping[Uid, Mapping[str, object]]
"""The options of the job's sinks that use one system, as their declarations describe them."""


class TransactionCoordinator(Protocol):
    """The client that ends transactions of one system. Several threads call it.

    A method raises TransactionSystemError if the system does not answer. The caller then repeats
    the call.
    """

    def describe(self, transactional_id: TransactionalId, handle: str) -> TransactionState | None:
        """Return the state of a transaction; None if the system does not know it.

        ONGOING: it is prepared. COMPLETE_COMMIT: its records are visible. COMPLETE_ABORT: they
        never will be, and the system is certain of it. No other state occurs. A committed
        transaction must be known until the next checkpoint is settled.
        """
        ...

    def end(self, transactional_id: TransactionalId, handle: str, *, commit: bool) -> EndTxnResult:
        """Commit or abort a prepared transaction. The caller describes it afterwards."""
        ...

    def fence(self, transactional_id: TransactionalId) -> None:
        """Abort every transaction of an id that is not committed."""
        ...

    def list(
        self, prefix: str, *, unfinished: bool = False
    ) -> dict[TransactionalId, TransactionState]:
        """Return the ids with this prefix that the sinks of the job have in the system. Raise if an
        id may be missing. With `unfinished`, leave out ids without a prepared transaction.

        The answer serves to fence what dead attempts have left, and to notice that a journal lacks
        its newest entries. If the job's code has no sink of the system any more, or cannot be
        loaded, the list is empty: such transactions are fenced when the code has the sink again.
        """
        ...

    def close(self) -> None:
        """Close the connections. Calls in progress may fail."""
        ...
