"""Where the log lines of a process go: standard error, one line each, as logfmt.

A process's standard error is its log file (`drivers/process` opens it), so that what native
libraries and a dying interpreter print stands in the same place and order. Lines come from the
standard library's logging; what a call gives as `extra` stands in its line as `name=value`.

Secrets are masked here: values of `extra` by their name, and all text by `masking.masked_text`.

A log is no reason to fail: lines that its disk does not take are counted and given up, and before
the next that it takes stands how many.
"""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import MutableMapping
from typing import Any, Final, Literal, TextIO

from tidegate.masking import masked, masked_text

Level = Literal["debug", "info", "warning", "error"]

_OF_EVERY_RECORD: Final = frozenset(vars(logging.makeLogRecord({})))


def set_up_logging(level: Level, **names: object) -> None:
    """Log to standard error from `level` up; `names` (role, job) stand on every line. May be called
    again, in a fork.
    """
    handler = logging.StreamHandler(BestEffortStream(sys.stderr))
    handler.setFormatter(LogFormat(**names))
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    for foreign in ("kafka", "asyncio", "grpc"):  # what they report at "info" is their daily life
        logging.getLogger(foreign).setLevel(max(logging.WARNING, root.level))


class BestEffortStream:
    """A text stream that never raises for its disk's sake."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._dropped = 0
        self._reason = ""

    def write(self, text: str) -> int:
        """Write a line at once, or count it."""
        try:
            if self._dropped:
                # Late, because what the stream had buffered comes when there is room again.
                said = {"message": f"{self._dropped} lines are lost or late: {self._reason}"}
                self._stream.write(_line(time.time(), "warning", said) + "\n")
            self._stream.write(text)
            self._stream.flush()
        except OSError as error:
            self._dropped += 1
            self._reason = error.strerror or str(error)
        else:
            self._dropped = 0
        return len(text)

    def flush(self) -> None:
        """Every write is one."""


class LogFormat(logging.Formatter):
    """`at=2025-01-31T12:00:00.000Z level=info role=… from=… message="…"`, tracebacks below it."""

    def __init__(self, **names: object) -> None:
        super().__init__()
        self._names = names

    def format(self, record: logging.LogRecord) -> str:
        own = {"from": record.name, **extra_of(record), "message": record.getMessage()}
        values = {**self._names, **own}
        line = _line(record.created, record.levelname.lower(), masked(values))
        if record.exc_info:
            line += "\n" + self.formatException(record.exc_info)
        return masked_text(line)


def extra_of(record: logging.LogRecord) -> dict[str, Any]:
    """What the call that logged gave as `extra`."""
    return {name: value for name, value in vars(record).items() if name not in _OF_EVERY_RECORD}


def _line(at: float, level: str, values: MutableMapping[str, Any]) -> str:
    seconds = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(at))
    head = f"at={seconds}.{int(at % 1 * 1000):03d}Z level={level}"
    return head + "".join(f" {name}={_quoted(str(value))}" for name, value in values.items())


def _quoted(text: str) -> str:
    if text and not any(mark in text for mark in ' "=\n'):
        return text
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n") + '"'
