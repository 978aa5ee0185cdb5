"""A JobManager that was followed by a newer one writes nothing, and says of nothing that it is
written.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import pytest

from tidegate.controlplane.jobmanager.leadership import CHECK_INTERVAL_MS, Leadership
from tidegate.errors import StorageError
from tidegate.ids import LeaderEpoch


class Loop:
    """Work is done at once; what it posts is written down."""

    def __init__(self) -> None:
        self.posted: list[Any] = []
        self.pauses: list[float] = []
        self.stopped = False

    def submit(
        self, work: Callable[[], Any], done: Callable[[Any], Any], failed: Callable[[Any], Any]
    ) -> None:
        try:
            result = work()
        except StorageError as error:
            event = failed(error)
        else:
            event = done(result)
        if callable(event):
            event()
        else:
            self.posted.append(event)

    def call_later(self, seconds: float, event: Callable[[], Any]) -> None:
        self.pauses.append(seconds)
        event()

    def stop(self) -> None:
        self.stopped = True


class Store:
    """A store with the results of successive leader checks. None means no answer."""

    def __init__(self, *leads: bool | None) -> None:
        self.leads, self.looks = list(leads), 0

    def is_leader(self, epoch: LeaderEpoch) -> bool:
        self.looks += 1
        leads = self.leads.pop(0)
        if leads is None:
            raise StorageError("the storage does not answer")
        return leads


def of(store: Store, loop: Loop, *, alone: bool = False) -> Leadership:
    return Leadership(cast("Any", store), "c", LeaderEpoch(1), cast("Any", loop), local=alone)


@pytest.mark.parametrize(
    ("leads", "written", "posted"),
    [((True, True), True, ["stored"]), ((False,), False, []), ((True, False), True, [])],
    ids=["leads", "was followed before", "was followed while it wrote"],
)
def test_write_is_confirmed_only_if_the_jobmanager_leads_before_and_after_it(
    leads: tuple[bool, ...], written: bool, posted: list[str]
) -> None:
    """Found by the simulator: a submit was answered as accepted, and the newer JobManager, which
    had read its jobs before, knew nothing of it.
    """
    store, loop, writes = Store(*leads), Loop(), list[str]()
    of(store, loop).run_if_leader(lambda: writes.append("x"), "stored", str)
    assert (writes == ["x"], loop.posted, loop.stopped) == (written, posted, not posted)


def test_leader_is_checked_once_if_there_is_no_write() -> None:
    store, loop = Store(True), Loop()
    of(store, loop).run_if_leader(None, "leads", str)
    assert (loop.posted, store.looks) == (["leads"], 1)


def test_local_jobmanager_never_checks_leadership() -> None:
    store, loop, writes = Store(), Loop(), list[str]()
    leadership = of(store, loop, alone=True)
    leadership.run_if_leader(lambda: writes.append("x"), "stored", str)
    leadership.check_periodically(CHECK_INTERVAL_MS)
    assert (writes, loop.posted, store.looks) == (["x"], ["stored"], 0)


def test_failed_write_is_reported() -> None:
    def broken() -> None:
        raise StorageError("the disk is full")

    loop = Loop()
    of(Store(True), loop).run_if_leader(broken, "stored", str)
    assert (loop.posted, loop.stopped) == (["the disk is full"], False)


def test_leadership_is_checked_once_per_interval_and_its_loss_stops_the_loop() -> None:
    store, loop = Store(True, False), Loop()
    leadership = of(store, loop)
    leadership.check_periodically(CHECK_INTERVAL_MS - 1)
    assert store.looks == 0
    leadership.check_periodically(CHECK_INTERVAL_MS)
    leadership.check_periodically(CHECK_INTERVAL_MS + 1)
    assert (store.looks, loop.stopped) == (1, False)
    leadership.check_periodically(2 * CHECK_INTERVAL_MS)
    assert (store.looks, loop.stopped) == (2, True)


@pytest.mark.parametrize(("leads", "posted"), [(True, ["stored"]), (False, [])])
def test_write_is_not_reported_as_failed_while_the_second_leader_check_gets_no_answer(
    *, leads: bool, posted: list[str]
) -> None:
    """The written submission exists, and the next leader finds it. If the JobManager reported a
    failure now, a job would start although its user was notified that it does not exist.
    """
    store, loop = Store(True, None, None, leads), Loop()
    of(store, loop).run_if_leader(lambda: None, "stored", str)
    assert (loop.posted, len(loop.pauses), loop.stopped) == (posted, 2, not posted)


def test_write_is_not_made_if_the_first_leader_check_fails() -> None:
    store, loop, writes = Store(None), Loop(), list[str]()
    of(store, loop).run_if_leader(lambda: writes.append("x"), "stored", str)
    assert (writes, loop.posted) == ([], ["the storage does not answer"])
