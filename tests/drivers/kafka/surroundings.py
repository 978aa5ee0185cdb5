"""What a reader or a sink is given by its slot, for tests: a Runtime with a mailbox that they
drive.

With `threads` I/O actions run in threads, as in a slot; without, they wait in `io` until the test
runs them, in the order that it chooses. What fails lands in `failures`.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, cast

from tidegate.config import Config
from tidegate.dataplane.counters import Counters
from tidegate.dataplane.engine import Mailbox
from tidegate.dataplane.state.local_files import LocalStateFiles
from tidegate.dataplane.subtask_context import Action, SubtaskContext
from tidegate.drivers.threads import SystemThreads
from tidegate.ids import Attempt, JobName, SubtaskId, SubtaskIndex, VertexId
from tidegate.ports.blobs import BlobStore
from tidegate.ports.drivers import Drivers
from tidegate.ports.kafka import TransactionAdmin


class SubtaskHarness:
    def __init__(
        self,
        drivers: object,
        transactions: TransactionAdmin,
        *,
        job: str = "job",
        attempt: int = 1,
        subtask: int = 0,
        pooled: int = 2,
        slots: int = 8,
        timeout_ms: int = 60_000,
        config: Config | None = None,
        threads: bool = False,
    ) -> None:
        self.mailbox = Mailbox(SystemThreads())
        self.io: list[Action] = []
        self.failures: list[BaseException] = []
        self.counters = Counters()
        self._threads = ThreadPoolExecutor(8) if threads else None
        self.context = SubtaskContext(
            job=JobName(job),
            journal_id="j1",
            attempt=Attempt(attempt),
            subtask=SubtaskId(VertexId("v"), SubtaskIndex(subtask)),
            parallelism=1,
            max_parallelism=128,
            config=config or Config(),
            drivers=cast("Drivers", drivers),
            blobs=cast("BlobStore", None),
            local=Path("unused"),
            transactions=transactions,
            transaction_timeout_ms=timeout_ms,
            producer_pool_size=pooled,
            transactional_id_indexes=range(slots),
            post=self.mailbox.post,
            run_io=self._run_io,
            fail=self.failures.append,
            counters=self.counters,
            earlier=LocalStateFiles(),
        )

    def run_io(self, index: int = 0) -> None:
        """Run one waiting I/O action; what it raises is a failure of the attempt."""
        self._guarded(self.io.pop(index))

    def run_until_idle(self) -> None:
        """Run everything that waits, until nothing does (not with threads)."""
        for _ in range(1000):
            self.mailbox.run_posted()
            if not self.io:
                break
            self.run_io()
        self.mailbox.run_posted()

    def until(self, holds: Callable[[], Any], timeout_s: float = 30.0) -> None:
        """Run posted actions until `holds` or something failed; TimeoutError after `timeout_s`."""
        end = time.monotonic() + timeout_s
        while not holds() and not self.failures:
            if time.monotonic() > end:
                raise TimeoutError
            self.mailbox.wait(0.05)
            self.mailbox.run_posted()
        if self.failures:
            raise self.failures[0]

    def close(self) -> None:
        if self._threads is not None:
            self._threads.shutdown(cancel_futures=True)

    def _run_io(self, action: Action) -> None:
        if self._threads is None:
            self.io.append(action)
        else:
            self._threads.submit(self._guarded, action)

    def _guarded(self, action: Action) -> None:
        try:
            action()
        except Exception as error:  # noqa: BLE001  # as a slot does
            self.failures.append(error)
            self.mailbox.post(lambda: None)
