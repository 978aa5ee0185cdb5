"""The checkpoint storage of one job: which one it is, and how a recovery waits for it.

A JobMaster is told the storage's id by its JobManager, binds its store to it, and hands it to the
slots. The store then refuses every other storage behind the same path (`ports/blobs.py`).
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import cached_property
from pathlib import Path
from typing import Final

from tidegate.config import CheckpointSettings, Config
from tidegate.controlplane.jobmaster.effect_runner import ProcedureStopped
from tidegate.controlplane.jobmaster.job_plan import installed_code
from tidegate.controlplane.jobmaster.storage_calls import StorageCalls
from tidegate.errors import StorageGoneError, TidegateError, from_foreign
from tidegate.ports.blobs import BlobStore
from tidegate.ports.drivers import Drivers
from tidegate.protocol.messages import Submission

PAUSE_S: Final = 0.5
"""Between two looks for a storage that is gone."""

_log = logging.getLogger(__name__)


class JobStorage:
    """`identity` is empty where the JobManager did not say it: then the first use reads it."""

    def __init__(
        self, settings: CheckpointSettings, working_folder: str, drivers: Drivers, identity: str
    ) -> None:
        self.identity = identity
        self.timeout_s = settings.timeout / 1000
        """A call that lasts longer than a checkpoint may take hangs."""
        self.calls = StorageCalls(drivers.clock)
        self._url, self._working_folder, self._drivers = settings.storage, working_folder, drivers

    @cached_property
    def where(self) -> str:
        """The absolute path, or the URL."""
        return self._url if "://" in self._url else str(Path(self._working_folder, self._url))

    @cached_property
    def store(self) -> BlobStore:
        """The storage, and no other that comes to lie behind its path."""
        store = self._drivers.blob_store(self.where)
        if self.identity:
            store.bind(self.identity)
        return store

    def fetch_code(
        self, submission: Submission, config: Config, replaced: Callable[[], bool]
    ) -> Path | TidegateError | None:
        """The folder of the submission's code on this host, as soon as the storage is there; None
        for a submission without an archive. Or why there is none; ProcedureStopped as
        `wait_until_there`.
        """
        while True:
            try:
                self.wait_until_there(replaced)
                with self.calls.during("the code of the job"):
                    return installed_code(submission, config, self.store)
            except StorageGoneError:
                continue  # it has vanished between the two
            except Exception as error:  # noqa: BLE001 - whatever it is, the journal is settled
                return from_foreign(error)

    def wait_until_there(self, replaced: Callable[[], bool]) -> None:
        """Return when the storage is there. The restart strategy does not count the wait: nothing
        could be settled or fenced if it gave the job up. ProcedureStopped if `replaced` says that
        another JobMaster has the job.
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
                    raise ProcedureStopped("another JobMaster has the job") from error
                if not told:
                    _log.error("the recovery waits: %s", error)
                    told = True
                self._drivers.clock.sleep(PAUSE_S)
            else:
                return
