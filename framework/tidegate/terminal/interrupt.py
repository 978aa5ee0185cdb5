"""Ctrl-C before anything has started: the process ends at once.

Python imports for the first tenths of a second. A Ctrl-C during an import would be a traceback, or
an error of the library whose import it broke. So until a command is able to stop in order, the
signal ends the process with exit code 130 and no text. This module imports nothing else of
tidegate, because it must be ready first.
"""

from __future__ import annotations

import os
import signal
import sys
from typing import TYPE_CHECKING, Final, NoReturn, Self

if TYPE_CHECKING:
    from types import FrameType, TracebackType

INTERRUPTED: Final = 130
"""The exit code after Ctrl-C: 128 plus the number of the signal, as in shells."""


class ExitOnInterrupt:
    """A block in which Ctrl-C ends the process at once. The caller has started nothing yet that
    outlives this process. A SIGINT that the shell ignores stays ignored.

    It is a class of its own, because the import of `contextlib` takes longer than all else here.
    """

    def __enter__(self) -> Self:
        self._before = signal.getsignal(signal.SIGINT)
        if self._before is not signal.SIG_IGN:
            signal.signal(signal.SIGINT, _exit)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if signal.getsignal(signal.SIGINT) is _exit:
            signal.signal(signal.SIGINT, self._before)


def _exit(_signal: int, _frame: FrameType | None) -> NoReturn:
    exit_at_once(INTERRUPTED)


def exit_at_once(code: int) -> NoReturn:
    """End this process without waiting for its threads. What was printed is written first."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, RuntimeError, ValueError):
            continue  # the stream is in use or closed, and the process ends in any case
    os._exit(code)
