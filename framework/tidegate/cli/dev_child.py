"""The processes that `tidegate dev` starts: a run of the pipeline, or the display of its records.

Standard input is a pipe that only `tidegate dev` holds open. If it closes, the parent is gone, also
if it was killed. A child then ends as after Ctrl-C, and removes the scratch folder. The broker of
`tidegate dev` has ended with it, so nothing needs the folder any more.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
import threading
from typing import Final

from tidegate.cli.project.processes import RECORDS
from tidegate.terminal.interrupt import ExitOnInterrupt

SECOND_INTERRUPT_S: Final = 0.5
"""The pause before the second interrupt. The first one asks for a final checkpoint, which cannot
succeed if the broker has ended.
"""
END_S: Final = 15.0
"""The time after which an orphaned child exits in any case."""


def main(scratch: str, command: str, *words: str) -> None:
    """Run a command as a child. `scratch` is the folder to remove if the parent dies, or empty."""
    if command == RECORDS:
        with ExitOnInterrupt():
            from tidegate.cli.project.record_viewer import show_records
            from tidegate.drivers.process.parent_watch import exit_with_parent

        exit_with_parent()
        show_records(*words)
        return
    with ExitOnInterrupt():
        from tidegate.cli.main import main as tidegate

        parent = ParentWatch()
        threading.Thread(target=parent.watch, name="parent-watch", daemon=True).start()
    try:
        tidegate([command, *words])
    finally:
        if parent.gone and scratch:
            shutil.rmtree(scratch, ignore_errors=True)


class ParentWatch:
    """A thread that interrupts this process when the parent is gone."""

    def __init__(self) -> None:
        self.gone = False

    def watch(self) -> None:
        """Wait for the end of standard input, and then end this process."""
        while os.read(0, 1 << 16):
            continue
        self.gone = True
        pause = threading.Event()
        os.kill(os.getpid(), signal.SIGINT)
        pause.wait(SECOND_INTERRUPT_S)
        os.kill(os.getpid(), signal.SIGINT)
        pause.wait(END_S)
        os._exit(1)


if __name__ == "__main__":
    main(*sys.argv[1:])
