"""Checks whether this JobManager still leads its cluster. A JobManager that does not lead exits.

Two JobManagers of one session cluster may run at once: the host of the first one hangs, a second
one starts, and then the first one continues. The newer leader epoch counts. Each JobManager checks
for a newer epoch before it stores a job or starts a JobMaster, and at intervals. Otherwise the
JobMasters of the older one would fence those of the newer one, and its data about a job would be
out of date.

It checks again after each write. A newer JobManager that started during the write has read its jobs
without this write, so the write must not be reported as accepted. A JobManager that starts after
the second check finds the write. This module makes no other decisions.

The thread of the loop calls these methods. Worker threads query the storage.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, Final

from tidegate.controlplane.jobmanager.job_store import JobStore
from tidegate.controlplane.loop import EventLoop
from tidegate.errors import TidegateError
from tidegate.ids import LeaderEpoch

CHECK_INTERVAL_MS: Final = 10_000
"""Milliseconds between two periodic checks for a newer JobManager."""

CONFIRM_PAUSE_S: Final = 0.5
"""Seconds between two checks after a write, while the storage does not answer."""

Action = Callable[[], object]

_log = logging.getLogger(__name__)


class Leadership:
    """The leadership of one JobManager.

    The JobManager of a local cluster is the only one and never asks the storage: its client starts
    the next JobManager only after this one has ended.
    """

    def __init__(
        self,
        store: JobStore,
        cluster: str,
        epoch: LeaderEpoch,
        loop: EventLoop[Any],
        *,
        local: bool,
    ) -> None:
        """`loop` must call the events that are functions."""
        self._store, self._cluster, self._epoch = store, cluster, epoch
        self._loop, self._local = loop, local
        self._checking = False
        self._last_check_ms = 0
        self.replaced = False
        """Whether a newer JobManager leads the cluster, so that this one exits."""

    def run_if_leader(
        self,
        write: Action | None,
        done: Any,
        failed: Callable[[TidegateError], Any],
        *,
        accept: Callable[[], bool] | None = None,
    ) -> None:
        """Run `write`, if given, in a worker thread and post `done`. Only the leader does this.

        If a newer JobManager leads, end this one. If the storage does not say who leads, or the
        write fails, post the event that `failed` returns.

        `accept` makes the written data count. It is called when this JobManager is confirmed to
        lead after the write, and again until the storage says whether it succeeded. It returns
        False if a newer JobManager has decided otherwise.
        """

        def write_if_leading() -> bool:
            leads = self._leads()
            if leads and write is not None:
                write()
            return leads

        def written() -> None:
            self._confirm(done, accept)

        after = done if accept is None and (write is None or self._local) else written
        self._loop.submit(write_if_leading, lambda leads: after if leads else self._end, failed)

    def _confirm(self, done: Any, accept: Callable[[], bool] | None) -> None:
        """Post `done` when the storage confirms that no newer JobManager came during the write.

        The data is already written. While the storage does not answer, the outcome is therefore
        neither `done` nor `failed`, and the check is repeated.
        """

        def again(error: TidegateError) -> Action:
            _log.warning("it is not known whether this JobManager still leads: %s", error)
            self._loop.call_later(CONFIRM_PAUSE_S, lambda: self._confirm(done, accept))
            return _nothing

        def counts() -> bool:
            return self._leads() and (accept is None or accept())

        self._loop.submit(counts, lambda leads: done if leads else self._end, again)

    def _leads(self) -> bool:
        """Ask the storage whether this JobManager leads. This runs in a worker thread."""
        return self._local or self._store.is_leader(self._epoch)

    def check_periodically(self, now_ms: int) -> None:
        """Check for a newer JobManager, ten seconds after the last check began.

        Only one check runs at a time.
        """
        if self._local or self._checking or now_ms - self._last_check_ms < CHECK_INTERVAL_MS:
            return
        self._checking, self._last_check_ms = True, now_ms

        def not_known(error: TidegateError) -> Action:
            _log.warning("it is not known whether this JobManager leads: %s", error)
            return self._check_done

        self.run_if_leader(None, self._check_done, not_known)

    def _check_done(self) -> None:
        self._checking = False

    def _end(self) -> None:
        self.replaced = True
        _log.error(
            "another JobManager leads cluster %s: this one, of epoch %d, exits with all processes "
            "that it has started. It hung, or it still ran when the other one was started. Run "
            "only one JobManager for each cluster.name",
            self._cluster,
            self._epoch,
        )
        self._loop.stop()


def _nothing() -> None:
    """Do nothing: the event after a check that the storage did not answer."""
