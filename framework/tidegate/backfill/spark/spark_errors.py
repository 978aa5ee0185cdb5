"""Translates exceptions of Spark into errors of tidegate with a message of one line.

A message of Spark is several pages long and contains two stack traces. One line of it states the
reason. If a Python worker raised an exception, this is the line of that exception. Otherwise it is
the message of the Java exception.
"""

from __future__ import annotations

import re
from typing import Any, Final

from tidegate.errors import SparkError, SparkLostError, TidegateError

_PYTHON_ERROR: Final = re.compile(r"^(?:[\w.]+\.)?\w+(?:Error|Exception|Exit|Interrupt)\b.*$")
_SUBJECT: Final = re.compile(r"^(?:: |[\w.$]+(?:Exception|Error): )+")
LINE_MAX: Final = 400  # characters


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
    try:
        text = str(error)
    except Exception as lost:  # noqa: BLE001  (an error of py4j, or an OSError of its connection)
        return _lost(what, lost)
    if spark is not None:
        try:
            _ = spark.sparkContext.startTime  # the smallest call into the JVM
        except Exception as lost:  # noqa: BLE001  (as above)
            return _lost(what, lost)
    return SparkError(f"{what}: {cause(text) or type(error).__name__}.")


def _lost(what: str, error: Exception) -> SparkLostError:
    return SparkLostError(f"{what}: Spark's JVM has ended ({type(error).__name__}).")


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
