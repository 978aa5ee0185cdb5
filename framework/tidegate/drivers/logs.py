"""The log output of a process: one line per log record on standard error, as logfmt.

The standard error of a process is its log file (`drivers/process` opens it). So the output of
native libraries and of a dying interpreter is in the same file and in the right order. Lines come
from the standard library's logging. The values that a call passes as `extra` are in its line as
`name=value`.

The root logger belongs to user code after this, which may configure it as in any program. Functions
such as `logging.config.dictConfig` and `logging.disable` switch off the loggers that exist. The
loggers of tidegate therefore ignore them (`OwnLogger`), so that a log always has its errors.

This module masks secrets: values of `extra` by their name, and all text by `masking.masked_text`.

A full disk does not stop the process: log lines that cannot be written are counted and dropped. The
number of dropped lines is written before the next line that can be written.
"""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import MutableMapping
from typing import Any, ClassVar, Final, Literal, TextIO

from tidegate.masking import masked, masked_text
from tidegate.message_text import counted
from tidegate.user_exceptions import traceback_of

Level = Literal["debug", "info", "warning", "error"]

OWN: Final = "tidegate"
"""The name of the loggers of tidegate, and the beginning of their names."""

_OF_EVERY_RECORD: Final = frozenset(vars(logging.makeLogRecord({})))


def set_up_logging(level: Level, **names: object) -> None:
    """Log to standard error from `level` up, with `names` (role, job) on every line. A fork may
    call it again.
    """
    handler = logging.StreamHandler(BestEffortStream(sys.stderr))
    handler.setFormatter(LogFormat(**names))
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    OwnLogger.handler = handler
    own = logging.getLogger(OWN)
    own.propagate = False  # a handler of the root logger would write the lines again
    own.setLevel(level.upper())
    manager: Any = logging.Logger.manager
    for name, logger in manager.loggerDict.items():
        if isinstance(logger, logging.Logger) and _is_own(name):
            logger.__class__ = OwnLogger
    manager.loggerClass = _new_logger  # for modules that are imported later
    for foreign in ("kafka", "asyncio", "grpc"):  # at "info" they report only their normal work
        logging.getLogger(foreign).setLevel(max(logging.WARNING, root.level))


class OwnLogger(logging.Logger):
    """A logger of tidegate in a process of a cluster. User code can set its level and add handlers.
    It cannot disable the logger, and cannot remove the handler of the process's log.
    """

    handler: ClassVar[logging.Handler]
    """The handler of the process's log."""

    @property
    def disabled(self) -> bool:
        """False, whatever user code assigns."""
        return False

    @disabled.setter
    def disabled(self, _value: bool) -> None:
        pass

    def isEnabledFor(self, level: int) -> bool:  # noqa: N802  # the name is that of `logging`
        """Return whether the logger's own level allows it, whatever `logging.disable` says."""
        return level >= self.getEffectiveLevel()

    def callHandlers(self, record: logging.LogRecord) -> None:  # noqa: N802  # as above
        """Write the record to the process's log, then pass it to the handlers of user code."""
        if record.levelno >= self.handler.level:
            self.handler.handle(record)
        if self.hasHandlers():
            super().callHandlers(record)


def _is_own(name: str) -> bool:
    return f"{name}.".startswith(f"{OWN}.")


def _new_logger(name: str) -> logging.Logger:
    return OwnLogger(name) if _is_own(name) else logging.getLoggerClass()(name)


class BestEffortStream:
    """A text stream that never raises an error of its disk."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._dropped = 0
        self._reason = ""

    def write(self, text: str) -> int:
        """Write a line and flush it, or count it as dropped. Return the length of `text`."""
        try:
            if self._dropped:
                # "late": the stream writes its buffered text when the disk has space again.
                said = {"message": f"{counted(self._dropped, 'line')} lost or late: {self._reason}"}
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
        """Do nothing: every write already flushes."""


class LogFormat(logging.Formatter):
    """The format of a log line, with a traceback in the lines below it:
    `ts=2025-01-31T12:00:00.000Z level=info role=… logger=… message="…"`.
    """

    def __init__(self, **names: object) -> None:
        super().__init__()
        self._names = names

    def format(self, record: logging.LogRecord) -> str:
        own = {"logger": record.name, **extra_of(record), "message": record.getMessage()}
        values = {**self._names, **own}
        line = _line(record.created, record.levelname.lower(), masked(values))
        if record.exc_info and record.exc_info[1] is not None:
            shown = traceback_of(record.exc_info[1], record.exc_info[2])
            line += "\n" + shown.rstrip("\n")
        return masked_text(line)


def extra_of(record: logging.LogRecord) -> dict[str, Any]:
    """Return the values that the logging call passed as `extra`."""
    return {name: value for name, value in vars(record).items() if name not in _OF_EVERY_RECORD}


def _line(at: float, level: str, values: MutableMapping[str, Any]) -> str:
    seconds = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(at))
    head = f"ts={seconds}.{int(at % 1 * 1000):03d}Z level={level}"
    return head + "".join(f" {name}={_quoted(str(value))}" for name, value in values.items())


def _quoted(text: str) -> str:
    if text and not any(mark in text for mark in ' "=\n'):
        return text
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n") + '"'
