"""The current process, with data from the operating system."""

from __future__ import annotations

import gc
import os
import socket
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, NoReturn

from tidegate.drivers.process.call_watch import OsCallWatch
from tidegate.drivers.process.user_signals import guard_handlers
from tidegate.ports.processes import CallWatch, CurrentProcess, ExitStatus

GC_THRESHOLDS: Final = (200_000, 50, 50)
"""The arguments of `gc.set_threshold`; `tune_gc` gives the reasons."""


def tune_gc() -> None:
    """Exclude all present objects from further collections, and make collections rare.

    The framework makes no reference cycles per record: batches, values and state are freed by their
    reference counts, and a collection finds no garbage among them. But a batch of 250 records holds
    more than 700 objects for a short time. So with Python's own thresholds (700, 10, 10), nine of
    ten batches collect the young generation (0.04 to 0.3 ms). Each twelfth batch collects the
    middle generation (0.2 to 0.7 ms). While keyed state grows, 1000 batches collect all generations
    three to six times (90 to 130 ms, at worst 340 ms). No barrier passes during such a pause.
    Together this was a fifth to a half of the CPU of a keyed loop. With `GC_THRESHOLDS` there was
    no collection with 100,000 keys. With 2,000,000 keys, nearly all of them new, there was one in
    1250 batches, 2 % of the CPU (measured on 2 cores at 2.5 GHz).

    The first threshold, 200,000, is far above the number of objects of a batch and equals
    `state.cache_entries`. Only growing data reaches it, and a collection of so many objects takes
    26 to 36 ms. The other thresholds are 50 and 50, so that the collector does not walk the older
    generations, which contain the state, before ten million objects have been added. Zero would
    mean no collection at all. The cycles that libraries and user code do make would then stay
    forever (kafka-python leaves one for each failed connection).

    The frozen objects are the modules, including the user's, the objects that `open` has loaded,
    and restored state. A walk over the modules alone takes 37 to 46 ms. The function collects
    before it freezes, because a frozen cycle is never freed. This collection is quick, because the
    objects that the fork server had imported are frozen since the fork.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(*GC_THRESHOLDS)


class OsProcess:
    """An implementation of `ports.processes.CurrentProcess`. It is also correct in a fork of the
    process that made it. `stacks` is the file descriptor for the stacks of a stalled process.
    """

    def __init__(self, stacks: int = 2) -> None:
        self._stacks = stacks

    @property
    def pid(self) -> int:
        return os.getpid()

    @property
    def host(self) -> str:
        return socket.gethostname()

    def exit(self, status: ExitStatus) -> NoReturn:
        os._exit(status)

    def watch_calls(self, stalled_after_s: float) -> CallWatch:
        return OsCallWatch(self._stacks, stalled_after_s)

    def guard_signal_handlers(self, report: Callable[[BaseException, str], None]) -> None:
        guard_handlers(lambda error, number: report(error, number.name))

    def freeze_gc(self) -> None:
        tune_gc()


if TYPE_CHECKING:
    _: CurrentProcess = OsProcess()
