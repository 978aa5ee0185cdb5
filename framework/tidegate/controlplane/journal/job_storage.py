"""The checkpoint storage of one job, with its id, and the wait of a recovery for the storage.

A JobMaster gets the storage's id from its JobManager, binds its store to the id, and passes the id
to the slots. The store then refuses every other storage behind the same path (`ports/blobs.py`).
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import cached_property
from pathlib import Path
from typing import Final

from tidegate.config import CheckpointSettings, Config
from tidegate.controlplane.journal.effect_runner import ProcedureStopped
from tidegate.controlplane.journal.job_plan import installed_code
from tidegate.controlplane.journal.storage_calls import StorageCalls
from tidegate.errors import StorageGoneError, TidegateError, from_foreign
from tidegate.ports.blobs import BlobStore
from tidegate.ports.drivers import Drivers
from tidegate.protocol.submission import Submission
from tidegate.storage_location import locate

PAUSE_S: Final = 0.5
"""The time between two checks for a storage that is gone, in seconds."""

_log = logging.getLogger(__name__)


class JobStorage:
    """The checkpoint storage of one job. `identity` is empty if the JobManager did not give the
    storage's id. Then `wait_until_available` reads the id at its first call.
    """

    def __init__(
        self, settings: CheckpointSettings, working_folder: str, drivers: Drivers, identity: str
    ) -> None:
        self.identity = identity
        self.timeout_s = settings.timeout / 1000
        """The longest time of a call, in seconds (`checkpoint.timeout`). A call that lasts longer
        counts as hanging."""
        self.calls = StorageCalls(drivers.clock)
        self._url, self._working_folder, self._drivers = settings.dir, working_folder, drivers

    @cached_property
    def location(self) -> str:
        """The absolute path or the URL of the storage."""
        return locate(self._url, self._working_folder)

    @cached_property
    def store(self) -> BlobStore:
        """The store, bound to the storage's id if this is known. A bound store refuses another
        storage behind the same path.
        """
        store = self._drivers.blob_store(self.location)
        if self.identity:
            store.bind(self.identity)
        return store

    def fetch_code(
        self, submission: Submission, config: Config, replaced: Callable[[], bool]
    ) -> Path | TidegateError | None:
        """Wait until the storage is there, and return the folder of the submission's code on this
        host. Return None for a submission without an archive. Return the error if there is no such
        folder, including ProcedureStopped from `wait_until_available`.
        """
        while True:
            try:
                self.wait_until_available(replaced)
                with self.calls.during("the code of the job"):
                    return installed_code(submission, config, self.store)
            except StorageGoneError:
                continue  # the storage has vanished after the wait
            except Exception as error:  # noqa: BLE001 - whatever it is, the journal is settled
                return from_foreign(error)

    def wait_until_available(self, replaced: Callable[[], bool]) -> None:
        """Return when the storage is there. The restart strategy does not count the wait, because
        nothing could be settled or fenced if it failed the job. ProcedureStopped if the storage is
        gone and `replaced` returns that another JobMaster has the job.
        """
        if not self.identity:
            with self.calls.during("identify"):
                self.identity = self.store.identify()
        told = False
        while True:
            try:
                with self.calls.during("confirm"):
                    self.store.confirm()
            except StorageGoneError as error:
                if replaced():
                    raise ProcedureStopped("Another JobMaster has the job.") from error
                if not told:
                    _log.error("the recovery waits: %s", error)
                    told = True
                self._drivers.clock.sleep(PAUSE_S)
            else:
                return
