"""Whether this JobManager still leads its cluster; one that does not, ends.

Two standing JobManagers of one cluster may live at once: the host of one stood still, another was
started, and the first goes on. The newer leader epoch counts. Before it writes a job down or starts
a JobMaster, and now and then, each looks whether there is a newer one: its JobMasters would depose
the other's, and what it writes of a job would be out of date. It decides nothing else.

Called in the loop's thread; the storage is asked in worker threads.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, Final

from tidegate.controlplane.dispatcher.store import JobStore
from tidegate.controlplane.loop import EventLoop
from tidegate.errors import TidegateError
from tidegate.ids import LeaderEpoch

LOOK_INTERVAL_MS: Final = 10_000
"""Between two looks for a newer JobManager, while there is no other reason to look."""

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
        alone: bool,
    ) -> None:
        """The loop calls events that are functions."""
        self._store, self._cluster, self._epoch = store, cluster, epoch
        self._loop, self._alone = loop, alone
        self._looking = False
        self._looked_ms = 0

    def if_leading(self, work: Action, done: Any, failed: Callable[[TidegateError], Any]) -> None:
        """Work in a worker thread and post `done`, unless a newer JobManager has come; post what
        `failed` gives where the storage does not say, or the work fails.
        """

        def work_if_leading() -> bool:
            leads = self._alone or self._store.is_leader(self._epoch)
            if leads:
                work()
            return leads

        self._loop.submit(work_if_leading, lambda leads: done if leads else self._end, failed)

    def look(self, now_ms: int) -> None:
        """One look at a time, ten seconds after the last began."""
        if self._alone or self._looking or now_ms - self._looked_ms < LOOK_INTERVAL_MS:
            return
        self._looking, self._looked_ms = True, now_ms

        def not_known(error: TidegateError) -> Action:
            _log.warning("it is not known whether this JobManager leads: %s", error)
            return self._looked

        self.if_leading(lambda: None, self._looked, not_known)

    def _looked(self) -> None:
        self._looking = False

    def _end(self) -> None:
        _log.error(
            "another JobManager has taken over cluster %s: this one, of epoch %d, stood still or "
            "was forgotten. It ends with all that it has started. One JobManager of a cluster.name "
            "is enough: see that this one is not started again beside the other",
            self._cluster,
            self._epoch,
        )
        self._loop.stop()
