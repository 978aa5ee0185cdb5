"""Translates exceptions of Spark into errors of tidegate with a message of one line.

A message of Spark is several pages long and contains two stack traces. One line of it states the
reason. If a Python worker raised an exception, this is the line of that exception. Otherwise it is
the message of the Java exception.

`texts_in` gives the complete texts a file, which each message then names. pyspark and py4j write
into the same file what they would print on standard error, in front of the message.
"""

from __future__ import annotations

import contextlib
import logging
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from tidegate.errors import SparkError, SparkLostError, TidegateError
from tidegate.masking import masked_text

_PYTHON_ERROR: Final = re.compile(r"^(?:[\w.]+\.)?\w+(?:Error|Exception|Exit|Interrupt)\b.*$")
_SUBJECT: Final = re.compile(r"^(?:: |[\w.$]+(?:Exception|Error): )+")
LINE_MAX: Final = 400  # characters

_LOGGERS: Final = ("py4j", "pyspark")
_LOGGERS_WITH_OWN_OUTPUT: Final = ("", "DataFrameQueryContextLogger", "SQLQueryContextLogger")
"""Loggers that write to standard error by themselves. py4j uses the root logger in some places."""
_PACKAGES: Final = re.compile(r"/(?:py4j|pyspark)/")


class _TextsHandler(logging.FileHandler):
    """Appends records to a file that it opens for the first of them. Secrets are masked."""

    def format(self, record: logging.LogRecord) -> str:
        return masked_text(super().format(record))

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802  (of logging)
        """Do nothing: a full disk loses the complete text, and the message has its main line."""

    def take(self, record: logging.LogRecord) -> bool:
        """Write a record of pyspark or py4j. As a filter of a logger, return whether the logger
        continues with the record.
        """
        if not _PACKAGES.search(record.pathname):
            return True
        self.handle(record)
        return False


_handlers: Final[list[_TextsHandler]] = []
"""The handler of `texts_in`, while its block runs."""


@contextlib.contextmanager
def texts_in(path: Path) -> Iterator[None]:
    """Append the complete texts of Spark's errors to a file, and all that pyspark and py4j log.
    Messages of `spark_error` name the file.
    """
    handler = _TextsHandler(path, encoding="utf-8", delay=True)
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    root = logging.getLogger()
    with contextlib.ExitStack() as undo:
        undo.callback(handler.close)
        if not root.handlers and logging.lastResort is not None:
            # A call of `logging.exception` would otherwise add a handler that stays.
            root.addHandler(logging.lastResort)
            undo.callback(root.removeHandler, logging.lastResort)
        for logger in map(logging.getLogger, _LOGGERS):
            undo.callback(setattr, logger, "propagate", logger.propagate)
            logger.propagate = False
            logger.addHandler(handler)
            undo.callback(logger.removeHandler, handler)
        for logger in map(logging.getLogger, _LOGGERS_WITH_OWN_OUTPUT):
            logger.addFilter(handler.take)
            undo.callback(logger.removeFilter, handler.take)
        _handlers.append(handler)
        undo.callback(_handlers.remove, handler)
        yield


@contextlib.contextmanager
def spark_translated() -> Iterator[None]:
    """Translate an exception of pyspark or py4j that no other code has translated.

    For example, a JVM that was killed can be noticed by a call that only asks for a number.
    """
    try:
        yield
    except Exception as error:
        if type(error).__module__.partition(".")[0] not in _LOGGERS:
            raise
        raise spark_error("Spark failed", error) from error


def log_hint() -> str:
    """Return the sentence that names the file of the complete texts. Empty without a file."""
    return f" See {_handlers[-1].baseFilename}." if _handlers else ""


def spark_error(what: str, error: Exception, spark: Any = None) -> TidegateError:
    """Return the error of tidegate for `error`. An error of tidegate is returned unchanged.

    `what` says which action failed, and becomes the start of the message. Call this function in the
    thread of the failed call and before the JVM ends, because the JVM holds the text of a Java
    exception.

    `spark` is the session, if one exists. If its JVM does not answer, this function returns a
    SparkLostError. It must ask the JVM, because py4j raises the same errors for a failed call and
    for a JVM that has ended.
    """
    if isinstance(error, TidegateError):
        return error
    for handler in _handlers:
        facts = (type(error), error, error.__traceback__)
        handler.handle(logging.LogRecord(__name__, logging.ERROR, "", 0, what, None, facts))
    try:
        text = str(error)
    except Exception as lost:  # noqa: BLE001  (an error of py4j, or an OSError of its connection)
        return _lost(what, lost)
    if spark is not None:
        try:
            _ = spark.sparkContext.startTime  # the smallest call into the JVM
        except Exception as lost:  # noqa: BLE001  (as above)
            return _lost(what, lost)
    return SparkError(f"{what}: {cause(text) or type(error).__name__}.{log_hint()}")


def _lost(what: str, error: Exception) -> SparkLostError:
    return SparkLostError(f"{what}: Spark's JVM has ended ({type(error).__name__}).{log_hint()}")


def cause(text: str) -> str:
    """Return the line of a Spark message that states the reason, without names of Java classes."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    start = next((i for i, line in enumerate(lines) if line.startswith("Traceback (most")), None)
    if start is not None:
        # In a chain of exceptions, the last one ended the task.
        raised = [line for line in lines[start:] if _PYTHON_ERROR.match(line)]
        python = [line for line in raised if not line.startswith(("org.", "java.", "py4j."))]
        if python:
            return python[-1][:LINE_MAX].rstrip(".")
    told = [line for line in lines if not line.startswith(("An error occurred while", "at "))]
    return _SUBJECT.sub("", told[0])[:LINE_MAX].rstrip(".") if told else ""
