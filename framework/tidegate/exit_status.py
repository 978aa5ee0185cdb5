"""How a process ended, in words for people: its exit status, or the signal that killed it by name.

The status is that of `subprocess` and `multiprocessing`: a signal is its negative number.
"""

from __future__ import annotations

import signal
from typing import Final

CRASHES: Final = frozenset(
    {
        *(signal.SIGABRT, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGSEGV),
        *(signal.SIGSYS, signal.SIGTRAP),
    }
)
"""The signals by which a process ends because of its own code."""

SIGKILLED: Final = -int(signal.SIGKILL)
"""The status of a process that ended by SIGKILL. The system sends it when memory runs out."""


def was_killed(status: int | None) -> bool:
    """Return whether something else has ended the process by a signal: a user, a supervisor, or the
    system because it had no memory left. None is a status that the system has not told.
    """
    return status is not None and status < 0 and -status not in CRASHES


def exit_text(status: int | None) -> str:
    """Return "ended with status 3" or "was killed by SIGKILL", for a sentence about a process. None
    is a status that the system has not told.
    """
    if status is None:
        return "ended with an unknown status"
    try:
        return f"was killed by {signal.Signals(-status).name}"
    except ValueError:  # no signal has this number
        return f"ended with status {status}"
