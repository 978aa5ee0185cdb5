"""`SharedControl`: one client of transaction control for all tasks of a wave in one worker.

A worker of Spark runs many tasks of a wave, one after the other. To connect costs each as much as
to do nothing else, so that the tasks share a client. It is that of one attempt and no longer: who
asks a client of an earlier attempt which Kafka cluster it reaches would hear of the cluster that it
reached then.
"""

from __future__ import annotations

from collections.abc import Callable

from tidegate.ids import Attempt, JobName
from tidegate.ports.kafka import TransactionAdmin
from tidegate.protocol.messages import Deploy

Key = tuple[JobName, str, Attempt, str]


class SharedControl:
    """For a process that runs one task at a time."""

    def __init__(self) -> None:
        self._key: Key | None = None
        self._log: TransactionAdmin | None = None

    def of(self, deploy: Deploy, make: Callable[[], TransactionAdmin]) -> TransactionAdmin:
        """The client of a deployment's attempt; that of another attempt is closed."""
        key = (deploy.job, deploy.journal, deploy.attempt, deploy.claim_nonce)
        if self._log is None or self._key != key:
            self.close()
            self._key, self._log = key, make()
        return self._log

    def close(self) -> None:
        """Close the client, if there is one."""
        log, self._log = self._log, None
        if log is not None:
            log.close()
