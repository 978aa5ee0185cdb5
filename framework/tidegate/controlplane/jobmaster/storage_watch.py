"""A check of the checkpoint storage twice a second, so that its loss is reported within seconds.

The journal thread also notices a loss, but only when it writes, and a call to a storage that hangs
does not return. Each check reads one small file, in a thread of its own. While a check does not
return, no second check begins. A check also counts as a call that can hang, because failed
checkpoints wait for it. For the same reason, any error ends a check. While any call of the
JobMaster does not return, the status shows that the storage does not answer.

When the storage is gone, the checkpoint coordinator suspends checkpoints (`StorageStateChanged`),
and a recovery waits in `journal/job_storage.py`. A failed checkpoint is judged after one more check
(`check_storage_then`). If the storage has vanished since the last check, the failure does not
count. This module decides one thing: the JobMaster exits if a storage call hangs in any of its
threads, so that another JobMaster can claim the journal.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final

from tidegate.controlplane.jobmaster.events import STORAGE_HANGS
from tidegate.controlplane.journal.job_storage import JobStorage
from tidegate.errors import StorageError, StorageGoneError
from tidegate.ports.drivers import Drivers

SLOW_S: Final = 2.0
"""A storage call that takes longer, in seconds, is reported. A healthy storage answers in
milliseconds, and a user who stops the job must read the reason within seconds."""

_log = logging.getLogger(__name__)


class StorageWatch:
    """The storage checks of one JobMaster. Methods are called in its loop."""

    def __init__(
        self,
        storage: JobStorage,
        drivers: Drivers,
        post: Callable[[Callable[[], None]], None],
    ) -> None:
        self._storage, self._process = storage, drivers.process
        self._store, self._location, self._calls = storage.store, storage.location, storage.calls
        self._clock, self._post = drivers.clock, post
        self._pool = drivers.threads.pool(1, name="storage-watch")
        self._checking_since_s: float | None = None
        self._slow = False
        #: The actions to call after the running check, and those to call after the next check.
        self._after: list[Callable[[], None]] = []
        self._after_next: list[Callable[[], None]] = []
        self.gone = ""
        """The reason why the last check found no storage. Empty if it found the storage."""

    @property
    def problem(self) -> str:
        """The reason why the storage cannot be used now, for the status. Empty if it can be
        used.
        """
        if self.gone:
            return self.gone
        if self._calls.hanging(SLOW_S) is None:
            return ""
        return (
            f"The checkpoint storage {self._location} has not answered for {SLOW_S:g} s or longer."
        )

    def check_storage(self) -> None:
        """Begin a check unless one is running. Exit the process if a storage call hangs."""
        self._exit_if_hanging()
        if self._checking_since_s is not None:
            if self.problem and not self.gone and not self._slow:
                self._slow = True
                _log.warning("%s", self.problem)
            return
        self._begin()

    def check_storage_then(self, then: Callable[[], None]) -> None:
        """Call `then` after a check that begins after this call."""
        self._after_next.append(then)
        if self._checking_since_s is None:
            self._begin()

    def _begin(self) -> None:
        self._checking_since_s = self._clock.monotonic()
        self._after, self._after_next = self._after_next, []
        self._pool.submit(self._work)

    def _exit_if_hanging(self) -> None:
        """Exit the process if a storage call lasts longer than `checkpoint.timeout`. Nothing is
        closed: the hanging call may or may not take effect, and only the next claim finds out.
        """
        limit_s = self._storage.timeout_s
        call = self._storage.calls.hanging(limit_s)
        if call is not None:
            _log.error(
                "The checkpoint storage %s did not answer %r within %g s (checkpoint.timeout). The "
                "JobMaster exits with status %d and is started again.",
                self._location,
                call.what,
                limit_s,
                STORAGE_HANGS,
            )
            self._process.exit(STORAGE_HANGS)

    def _work(self) -> None:
        gone: str | None = ""
        try:
            with self._calls.during("the look at the storage"):
                self._store.confirm()
        except StorageGoneError as error:
            gone = str(error)
        except Exception as error:  # noqa: BLE001  # a check without an end would block all others
            level = logging.DEBUG if isinstance(error, StorageError) else logging.WARNING
            described = f"{type(error).__name__}: {error}"
            _log.log(level, "the look at the storage failed", extra={"error": described})
            gone = None  # unknown: the storage may be there, and the next write finds out
        self._post(lambda: self._check_done(gone))

    def _check_done(self, gone: str | None) -> None:
        self._checking_since_s, self._slow = None, False
        if gone is not None and gone != self.gone:
            if gone:
                _log.error("%s The job publishes nothing until then.", gone)
            else:
                _log.warning(
                    "The checkpoint storage %s is back; the job continues.", self._location
                )
            self.gone = gone
        after, self._after = self._after, []
        for action in after:
            action()
        if self._after_next and self._checking_since_s is None:
            self._begin()
