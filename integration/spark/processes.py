"""The processes of a driver, and waits for conditions on them.

A driver of a test leads a session of processes. All processes with its session id belong to it: the
JVM, pyspark's daemon and the Python workers.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable

import psutil

from integration.support.running import TooLateError

TIMEOUT_S = 240.0  # a session starts in 4 s on a quiet machine


def wait_until(holds: Callable[[], object], what: str) -> None:
    deadline = time.monotonic() + TIMEOUT_S
    while not holds():
        if time.monotonic() > deadline:
            raise TooLateError(f"not within {TIMEOUT_S} s: {what}")
        time.sleep(0.05)


def processes_of(session_id: int) -> list[psutil.Process]:
    found = []
    for process in psutil.process_iter():
        try:
            alive = process.status() != psutil.STATUS_ZOMBIE
            if alive and os.getsid(process.pid) == session_id:
                found.append(process)
        except (psutil.NoSuchProcess, ProcessLookupError):
            continue
    return found


def is_alive(process: psutil.Process) -> bool:
    """Return whether a process runs. A zombie does not."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
