"""`SharedTransactionAdmin`: one transaction-admin client for all tasks of a wave in one Spark
worker.

A Spark worker runs many tasks of a wave, one after the other. Connecting a client takes as long as
a task that does no other work, so the tasks share a client. The client is valid for one attempt
only. A client of an earlier attempt would answer with the id of the Kafka cluster that it reached
then. The check of the cluster would not notice that this attempt reaches another cluster.
"""

from __future__ import annotations

from collections.abc import Callable

from tidegate.ids import Attempt, JobName
from tidegate.ports.kafka import TransactionAdmin
from tidegate.protocol.messages import Deploy

Key = tuple[JobName, str, Attempt, str]


class SharedTransactionAdmin:
    """The shared client of a process that runs one task at a time."""

    def __init__(self) -> None:
        self._key: Key | None = None
        self._admin: TransactionAdmin | None = None

    def of(self, deploy: Deploy, make: Callable[[], TransactionAdmin]) -> TransactionAdmin:
        """Return the client of the deployment's attempt. Close the client of another attempt, if
        any.
        """
        key = (deploy.job, deploy.journal_id, deploy.attempt, deploy.claim_nonce)
        if self._admin is None or self._key != key:
            self.close()
            self._key, self._admin = key, make()
        return self._admin

    def close(self) -> None:
        """Close the client, if there is one."""
        admin, self._admin = self._admin, None
        if admin is not None:
            admin.close()
