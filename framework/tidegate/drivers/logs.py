"""Where the log lines of a process go: standard error, one line each, as logfmt.

A process's standard error is its log file (`drivers/process` opens it), so that what native
libraries and a dying interpreter print stands in the same place and order. Lines come from
structlog, in the processes that run jobs, and from the standard library's logging, in those that
only need a sentence now and then and must start fast (importing structlog takes 80 ms); both look
the same.
"""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import MutableMapping
from typing import Any, Literal

Level = Literal["debug", "info", "warning", "error"]


def set_up_logging(level: Level, **names: object) -> None:
    """Log to standard error from `level` up; `names` (role, job) stand on every line."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(LogFormat(**names))
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    for foreign in ("kafka", "asyncio", "grpc"):  # what they report at "info" is their daily life
        logging.getLogger(foreign).setLevel(max(logging.WARNING, root.level))


def set_up_structlog(level: Level, **names: object) -> None:
    """The same for structlog's loggers; may be called again, in a fork."""
    import structlog

    def render(_logger: Any, method: str, event: MutableMapping[str, Any]) -> str:
        message = str(event.pop("event", ""))
        trace = event.pop("exception", None)
        line = _line(time.time(), method, {**names, **event, "message": message})
        return f"{line}\n{trace}" if trace else line

    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.format_exc_info,
            render,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(
            logging.getLevelNamesMapping()[level.upper()]
        ),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
        cache_logger_on_first_use=False,  # a fork has other names than its zygote
    )


class LogFormat(logging.Formatter):
    """`at=2025-01-31T12:00:00.000Z level=info role=… from=… message="…"`, tracebacks below it."""

    def __init__(self, **names: object) -> None:
        super().__init__()
        self._names = names

    def format(self, record: logging.LogRecord) -> str:
        values = {**self._names, "from": record.name, "message": record.getMessage()}
        line = _line(record.created, record.levelname.lower(), values)
        if record.exc_info:
            line += "\n" + self.formatException(record.exc_info)
        return line


def _line(at: float, level: str, values: MutableMapping[str, Any]) -> str:
    seconds = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(at))
    head = f"at={seconds}.{int(at % 1 * 1000):03d}Z level={level}"
    return head + "".join(f" {name}={_quoted(str(value))}" for name, value in values.items())


def _quoted(text: str) -> str:
    if text and not any(mark in text for mark in ' "=\n'):
        return text
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n") + '"'
