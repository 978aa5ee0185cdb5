"""The storage behind the checkpoint path and the brokers behind an address, for each process.

A path and an address are resolved on a host. Mounts fail, change and differ between hosts, and on
one host a name may lead to other brokers. This module only decides which process sees which storage
or cluster. `mishaps.py` and `swaps.py` decide when, and tidegate must detect it. A write of a job
to a storage or a Kafka cluster that is not its own is a violation, because tidegate had to refuse
the work before.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from tests.simulator.blobs import MemoryBlobs
from tests.simulator.kafka.faults import PROCEED, Api, Call, Verdict
from tests.simulator.scheduler import SimProcess
from tidegate.commit.journal.entries import entry_number

ProcessFilter = Callable[[SimProcess], bool]
"""A predicate that selects the processes that see another storage or Kafka cluster than others."""

ANOTHER: Final = "another"
"""Identity of a storage that is not the job's."""
JOB_REQUESTS: Final = frozenset(
    {
        Api.INIT_PRODUCER_ID,
        Api.ADD_PARTITIONS,
        Api.PRODUCE,
        Api.FETCH,
        Api.END_TXN,
        Api.OFFSET_COMMIT,
    }
)
"""Requests that a job may send only to its own Kafka cluster. Other requests may go to any."""


def everyone(_process: SimProcess) -> bool:
    """Select the processes of all hosts."""
    return True


def nobody(_process: SimProcess) -> bool:
    """Select no process."""
    return False


class Mounts:
    """A `blobs.Storages` that returns the job's storage, or another one to selected processes."""

    def __init__(self, right: MemoryBlobs) -> None:
        self.right = right
        self._selects: ProcessFilter = nobody
        self._wrong = right

    def seen_by(self, process: SimProcess) -> MemoryBlobs:
        """Return the storage behind the path on the host of a process."""
        return self._wrong if self._selects(process) else self.right

    def mount(self, wrong: MemoryBlobs, selects: ProcessFilter) -> None:
        """Show another storage to the selected processes from now on."""
        self._wrong, self._selects = wrong, selects

    def correct(self) -> None:
        """Show the job's storage to all processes again."""
        self._selects = nobody


def nothing() -> MemoryBlobs:
    """Return the empty storage without identity that a host sees after an unmount."""
    return MemoryBlobs(identity="")


def older_copy(blobs: MemoryBlobs, attempt: int, identity: str) -> MemoryBlobs:
    """Return a copy of the storage without the journal entries from number `attempt` on.

    It is like a copy that was made before this attempt claimed the journal.
    """
    kept = {
        path: data
        for path, data in blobs.objects.items()
        if (number := entry_number(path)) is None or number < attempt
    }
    return MemoryBlobs(identity, kept)


class OtherClusterFaults:
    """The `kafka.faults.Faults` of a Kafka cluster that is not the job's.

    It calls `record_violation` for each request that a job may send only to its own cluster.
    """

    def __init__(self, record_violation: Callable[[str], None]) -> None:
        self._violated = record_violation

    def decide(self, call: Call) -> Verdict:
        """Let every request arrive and be answered at once."""
        if call.api in JOB_REQUESTS:
            self._violated(f"{call.process} asks another Kafka cluster for {call.api.value}")
        return PROCEED
