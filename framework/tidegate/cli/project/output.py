"""The output of `tidegate dev`: lines for people, or with `--json` one JSON object per event.

For people, lines about the session go to stderr and records to stdout. With `--json` everything is
an event on stdout, with its name in `event`. The lines of a child that are events already, those of
`tidegate run --json` and of the record viewer, pass through unchanged. The rest of its text becomes
a field of an event. So a script never meets a line that is not JSON.

Several threads print, so each line is one write.
"""

from __future__ import annotations

import json
import os
import re
import signal
import sys
import time
from collections.abc import Callable

Value = str | int | bool | list[str]


class DevOutput:
    """Lines for people."""

    as_json = False

    def __init__(self) -> None:
        self._status_lines = StatusLines(say)

    def event(self, name: str, text: str, /, **fields: Value) -> None:  # noqa: ARG002
        """Report an event: `text` for people, the name and the fields for scripts."""
        say(text)

    def message(self, text: str) -> None:
        """Report a text without an event of its own, such as an error of the brokers."""
        self.event("message", text, text=text)

    def hint(self, text: str) -> None:
        """Show what the user can type or do. A script gets no hints."""
        say(text)

    def job_line(self, line: str) -> None:
        """Report a line that the run of the pipeline has printed."""
        self._status_lines.line(line)

    def record_line(self, line: str) -> None:
        """Report a line of the record viewer."""
        print(line, flush=True)


class JsonOutput(DevOutput):
    """One JSON object per event, for scripts.

    If the reader of the output has ended, the session ends as after Ctrl-C.
    """

    as_json = True

    def __init__(self) -> None:
        super().__init__()
        self._unread = False
        """Whether the reader has ended."""

    def event(self, name: str, text: str, /, **fields: Value) -> None:  # noqa: ARG002
        self._write({"event": name, "time_ms": int(time.time() * 1000), **fields})

    def hint(self, text: str) -> None:
        """Print nothing."""

    def job_line(self, line: str) -> None:
        self._pass_on(line, "job_output")

    def job_text(self, line: str) -> None:
        """Report a line of the run's stderr: user code's output, or an error."""
        self.event("job_output", line, text=line)

    def record_line(self, line: str) -> None:
        self._pass_on(line, "message")

    def _pass_on(self, line: str, name: str) -> None:
        try:
            found = json.loads(line)
        except json.JSONDecodeError:
            found = None
        if isinstance(found, dict) and "event" in found:
            self._print(line)
        else:
            self.event(name, line, text=line)

    def _write(self, event: dict[str, Value]) -> None:
        self._print(json.dumps(event))

    def _print(self, line: str) -> None:
        if self._unread:
            return
        try:
            sys.stdout.write(line + "\n")
            sys.stdout.flush()
        except BrokenPipeError:
            self._unread = True
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            os.kill(os.getpid(), signal.SIGTERM)


class StatusLines:
    """The status lines of a run, without those that only repeat the line before. While no record
    arrives, a run reports only new checkpoints.
    """

    def __init__(self, show_line: Callable[[str], None]) -> None:
        self._show, self._before = show_line, ""

    def line(self, text: str) -> None:
        """Show a line, unless it differs from the one before only by rates and the checkpoint."""
        told = re.sub(r" \([\d,]+/s\)|, checkpoint [^;]*", "", text)
        if told != self._before:
            self._show(text)
        self._before = told


def say(text: str) -> None:
    """Print lines about the session on stderr."""
    for line in text.splitlines():
        print(f"dev: {line}", file=sys.stderr, flush=True)
