"""Becomes another program that dies with its owner, also when the owner is killed by SIGKILL.

Run as a script by `broker_process`: it asks the kernel for SIGKILL at its parent's death, makes
sure that the parent has not died before that, and turns into the program of its arguments, which
keeps the request. It imports nothing of tidegate and starts in some 15 ms.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1  # from linux/prctl.h


def main(owner_pid: str, *command: str) -> None:
    """Replace this process by `command`; it dies when the process `owner_pid` does."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG)")
    if os.getppid() == int(owner_pid):
        os.execv(command[0], command)  # noqa: S606 - that there is no shell is the point


if __name__ == "__main__":
    main(*sys.argv[1:])
