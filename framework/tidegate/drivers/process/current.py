"""The current process, with data from the operating system."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from typing import TYPE_CHECKING, NoReturn

from tidegate.drivers.process.call_watch import OsCallWatch
from tidegate.drivers.process.gc_tuning import tune_gc
from tidegate.drivers.process.user_signals import guard_handlers
from tidegate.ports.processes import CallWatch, CurrentProcess, ExitStatus


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
