"""Whether this JobManager still leads its cluster; one that does not, ends.

Two standing JobManagers of one cluster may live at once: the host of one stood still, another was
started, and the first goes on. The newer leader epoch counts. Before it writes a job down or starts
a JobMaster, and now and then, each looks whether there is a newer one: its JobMasters would depose
the other's, and what it writes of a job would be out of date. It looks again when it has written: a
newer one that came meanwhile has read its jobs without this one, which nobody may be told is
accepted. One that comes after that look finds it. It decides nothing else.

Called in the loop's thread; the storage is asked in worker threads.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, Final

from tidegate.controlplane.dispatcher.job_store import JobStore
from tidegate.controlplane.loop import EventLoop
from tidegate.errors import TidegateError
from tidegate.ids import LeaderEpoch

LOOK_INTERVAL_MS: Final = 10_000
"""Between two looks for a newer JobManager, while there is no other reason to look."""

CONFIRM_PAUSE_S: Final = 0.5
"""Between two looks after a write, while the storage does not answer."""

Action = Callable[[], object]

_log = logging.getLogger(__name__)


class Leadership:
    """Of one JobManager. A local one is alone, and never asks: its client starts the next when it
    has seen this one's end.
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
        """The loop calls events that are functions."""
        self._store, self._cluster, self._epoch = store, cluster, epoch
        self._loop, self._alone = loop, local
        self._looking = False
        self._looked_ms = 0
        self.replaced = False
        """A newer JobManager leads the cluster; this one ends."""

    def run_if_leader(
        self,
        write: Action | None,
        done: Any,
        failed: Callable[[TidegateError], Any],
        *,
        accept: Callable[[], bool] | None = None,
    ) -> None:
        """Write in a worker thread, if there is anything to, and post `done`, unless a newer
        JobManager has come; post what `failed` gives where nothing was written, because the storage
        does not say who leads, or does not take it.

        `accept` makes what was written count. It is called once this JobManager is confirmed to
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

        after = done if accept is None and (write is None or self._alone) else written
        self._loop.submit(write_if_leading, lambda leads: after if leads else self._end, failed)

    def _confirm(self, done: Any, accept: Callable[[], bool] | None) -> None:
        """Post `done` once it is sure that nobody has come while it was written. It stands now: so
        as long as the storage does not say, it is neither done nor failed.
        """

        def again(error: TidegateError) -> Action:
            _log.warning("it is not known whether this JobManager still leads: %s", error)
            self._loop.call_later(CONFIRM_PAUSE_S, lambda: self._confirm(done, accept))
            return _nothing

        def counts() -> bool:
            return self._leads() and (accept is None or accept())

        self._loop.submit(counts, lambda leads: done if leads else self._end, again)

    def _leads(self) -> bool:
        """In a worker thread."""
        return self._alone or self._store.is_leader(self._epoch)

    def check_periodically(self, now_ms: int) -> None:
        """One look at a time, ten seconds after the last began."""
        if self._alone or self._looking or now_ms - self._looked_ms < LOOK_INTERVAL_MS:
            return
        self._looking, self._looked_ms = True, now_ms

        def not_known(error: TidegateError) -> Action:
            _log.warning("it is not known whether this JobManager leads: %s", error)
            return self._looked

        self.run_if_leader(None, self._looked, not_known)

    def _looked(self) -> None:
        self._looking = False

    def _end(self) -> None:
        self.replaced = True
        _log.error(
            "another JobManager has taken over cluster %s: this one, of epoch %d, stood still or "
            "was forgotten. It ends with all that it has started. One JobManager of a cluster.name "
            "is enough: see that this one is not started again beside the other",
            self._cluster,
            self._epoch,
        )
        self._loop.stop()


def _nothing() -> None:
    """The event of a look that was not answered."""
