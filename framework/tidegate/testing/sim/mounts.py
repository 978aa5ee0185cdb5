"""What lies behind the path of the checkpoint storage, and which brokers an address leads to, for
each process of a simulated world.

A path and an address mean something on a host. Mounts fail, change and differ from host to host,
and a name may lead to other brokers on one of them. Here is only who sees what: `mishaps.py` and
`swaps.py` say when, and the product must find out. Whatever a job writes to a storage or a Kafka
cluster that is not its own is a violation, because it had to be refused before.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from tidegate.checkpoint.journal import entry_number
from tidegate.testing.sim.blobs import MemoryBlobs
from tidegate.testing.sim.kafka.faults import PROCEED, Api, Call, Verdict
from tidegate.testing.sim.scheduler import SimProcess

Who = Callable[[SimProcess], bool]
"""Which processes see something else than others."""

ANOTHER: Final = "another"
"""The identity of a storage that is not the job's."""
WORK: Final = frozenset(
    {
        Api.INIT_PRODUCER_ID,
        Api.ADD_PARTITIONS,
        Api.PRODUCE,
        Api.FETCH,
        Api.END_TXN,
        Api.OFFSET_COMMIT,
    }
)
"""What a job asks of its own Kafka cluster only; it may look at any."""


def everyone(_process: SimProcess) -> bool:
    """Of all hosts."""
    return True


def nobody(_process: SimProcess) -> bool:
    """Of no host."""
    return False


class Mounts:
    """`blobs.Storages`: the job's storage, but for those who see another one."""

    def __init__(self, right: MemoryBlobs) -> None:
        self.right = right
        self._who: Who = nobody
        self._wrong = right

    def seen_by(self, process: SimProcess) -> MemoryBlobs:
        """What lies behind the path on the host of a process."""
        return self._wrong if self._who(process) else self.right

    def mount(self, wrong: MemoryBlobs, who: Who) -> None:
        """From now on these processes see another storage."""
        self._wrong, self._who = wrong, who

    def correct(self) -> None:
        """Everybody sees the job's storage."""
        self._who = nobody


def nothing() -> MemoryBlobs:
    """What is seen where a storage was unmounted."""
    return MemoryBlobs(identity="")


def older_copy(blobs: MemoryBlobs, attempt: int, identity: str) -> MemoryBlobs:
    """The storage as a copy of it that was made before an attempt has claimed."""
    kept = {
        path: data
        for path, data in blobs.objects.items()
        if (number := entry_number(path)) is None or number < attempt
    }
    return MemoryBlobs(identity, kept)


class Elsewhere:
    """`kafka.faults.Faults` of a Kafka cluster that is not the job's: `violated` hears of work."""

    def __init__(self, violated: Callable[[str], None]) -> None:
        self._violated = violated

    def decide(self, call: Call) -> Verdict:
        """Every request arrives and is answered at once."""
        if call.api in WORK:
            self._violated(f"{call.process} asks another Kafka cluster for {call.api.value}")
        return PROCEED
