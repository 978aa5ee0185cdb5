"""The process that is asking, by the operating system."""

from __future__ import annotations

import os
import socket
from typing import TYPE_CHECKING, NoReturn

from tidegate.drivers.process.garbage import settle_gc
from tidegate.ports.processes import ExitStatus, ThisProcess


class OsProcess:
    """`ports.processes.ThisProcess`; right also in a fork of the process that made it."""

    @property
    def pid(self) -> int:
        return os.getpid()

    @property
    def host(self) -> str:
        return socket.gethostname()

    def leave(self, status: ExitStatus) -> NoReturn:
        os._exit(status)

    def settle(self) -> None:
        settle_gc()


if TYPE_CHECKING:
    _: ThisProcess = OsProcess()
