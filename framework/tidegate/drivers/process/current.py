"""The current process, with data from the operating system."""

from __future__ import annotations

import os
import socket
from typing import TYPE_CHECKING, NoReturn

from tidegate.drivers.process.gc_tuning import tune_gc
from tidegate.ports.processes import CurrentProcess, ExitStatus


class OsProcess:
    """An implementation of `ports.processes.CurrentProcess`. It is also correct in a fork of the
    process that made it.
    """

    @property
    def pid(self) -> int:
        return os.getpid()

    @property
    def host(self) -> str:
        return socket.gethostname()

    def exit(self, status: ExitStatus) -> NoReturn:
        os._exit(status)

    def freeze_gc(self) -> None:
        tune_gc()


if TYPE_CHECKING:
    _: CurrentProcess = OsProcess()
