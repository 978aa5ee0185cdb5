"""Becomes another program that dies with its owner, even if the owner is killed by SIGKILL.

`broker_process` runs this file as a script. The script asks the kernel for SIGKILL at its parent's
death and checks that the parent is still alive. Then it replaces itself by the program of its
arguments, for which the request stays valid. It imports no module of tidegate and starts in some
15 ms.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1  # from linux/prctl.h


def main(owner_pid: str, *command: str) -> None:
    """Replace this process by `command`, which dies when the process `owner_pid` dies. Return
    without starting `command` if the owner is already dead.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG)")
    if os.getppid() == int(owner_pid):
        os.execv(command[0], command)  # noqa: S606 - that there is no shell is the point


if __name__ == "__main__":
    main(*sys.argv[1:])
