"""A driver process of its own, for tests that interrupt or kill it.

usage: python -m integration.spark.driver FOLDER interrupted|killed

The process prints a line for each step. FOLDER holds the temporary folder of the session, and a
file for each running task, named by its process id.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

from integration.spark.jobs import ROOT
from tidegate.backfill.spark.levels import run_levels
from tidegate.backfill.spark.session import BackfillSession, start_session


def main(folder: Path, how: str) -> None:
    handler = signal.getsignal(signal.SIGINT)
    with start_session("local[2,4]", python_path=[ROOT], folder=folder) as session:
        _say("handler kept" if signal.getsignal(signal.SIGINT) is handler else "handler lost")
        _say(f"jvm {session.jvm_pid} {os.getpid()}")
        try:
            _sleep(session, folder)
        except KeyboardInterrupt:
            _say("interrupted")
        if how == "interrupted":
            reports = run_levels(session, 2, 2, "integration.spark.entries:empty", b"next")
            _say(f"next job: {[each.body.decode() for each in reports]}")
    _say("closed")


def _sleep(session: BackfillSession, folder: Path) -> None:
    run_levels(session, 2, 1, "integration.spark.entries:sleeps", str(folder).encode())


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
