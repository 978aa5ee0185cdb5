"""The child processes of `tidegate dev`, and the questions that it asks other commands.

A child has a pipe as standard input that only this process holds open (`dev_child.py`), and its
output comes line by line. It is in a session of its own, because Ctrl-C is for `tidegate dev`,
which stops its children in order.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Final

MODULE: Final = "tidegate.cli.dev_child"
RECORDS: Final = "records"
"""The word that makes a child show records. Other words are commands of tidegate."""
POLL_S: Final = 0.1


class DevChild:
    """A running child. Its lines go to `on_line`, and `on_end` gets its exit status at its end.

    Lines of its stderr go to `on_error_line` if that is given, and otherwise to `on_line` too.
    """

    def __init__(
        self,
        words: Sequence[str],
        scratch: Path | None,
        on_line: Callable[[str], None],
        on_end: Callable[[int], None] | None = None,
        *,
        on_error_line: Callable[[str], None] | None = None,
    ) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", MODULE, str(scratch or ""), *words],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE if on_error_line else subprocess.STDOUT,
            env={**os.environ, "PYTHONUNBUFFERED": "1"},
            start_new_session=True,
        )
        self._on_line, self._on_end = on_line, on_end
        self._stopping = False
        self._errors = threading.Thread(
            target=_read_lines,
            args=(self._process.stderr, on_error_line or on_line),
            name="dev-child-stderr",
            daemon=True,
        )
        self._thread = threading.Thread(target=self._follow, name="dev-child", daemon=True)
        self._errors.start()
        self._thread.start()

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def alive(self) -> bool:
        """Whether the process runs."""
        return self._process.poll() is None

    def stop(self, timeout_s: float, is_impatient: Callable[[], bool]) -> None:
        """Interrupt the process and wait for its end. Kill it if it takes longer than `timeout_s`,
        or if `is_impatient` returns True.
        """
        self._stopping = True
        self._signal(signal.SIGINT)
        waited_s = 0.0
        while waited_s < timeout_s and not is_impatient():
            try:
                self._process.wait(POLL_S)
                break
            except subprocess.TimeoutExpired:
                waited_s += POLL_S
        self._signal(signal.SIGKILL)
        self._process.wait()
        self._thread.join()

    def _signal(self, number: signal.Signals) -> None:
        if self._process.poll() is None:
            self._process.send_signal(number)

    def _follow(self) -> None:
        _read_lines(self._process.stdout, self._on_line)
        self._errors.join()
        status = self._process.wait()
        if self._process.stdin is not None:
            self._process.stdin.close()
        if self._on_end is not None and not self._stopping:
            self._on_end(status)


def _read_lines(pipe: IO[bytes] | None, on_line: Callable[[str], None]) -> None:
    if pipe is not None:
        with pipe:
            for line in pipe:
                on_line(line.decode(errors="replace").rstrip("\n"))


@dataclass(frozen=True, slots=True)
class Answer:
    """The exit code and the output of a command."""

    code: int
    out: str
    err: str


def ask(*commands: Sequence[str]) -> list[Answer]:
    """Run commands of tidegate at the same time, and return their answers.

    Each one is a new process, because a process cannot import changed code again.
    """
    running = [
        subprocess.Popen(
            [sys.executable, "-P", "-m", "tidegate.cli.main", *words],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        for words in commands
    ]
    answers = []
    for process in running:
        out, err = process.communicate()
        answers.append(Answer(process.returncode, out.strip(), err.strip()))
    return answers
