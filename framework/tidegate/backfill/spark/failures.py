"""Translates what Spark raises into errors of tidegate, by the one line that says what happened.

Spark's own messages are pages of two stack traces. The line that matters is the exception of the
Python worker if there is one, else the Java exception's own message.
"""

from __future__ import annotations

import re
from typing import Any, Final

from tidegate.errors import SparkError, SparkLostError, TidegateError

_PYTHON_ERROR: Final = re.compile(r"^(?:[\w.]+\.)?\w+(?:Error|Exception|Exit|Interrupt)\b.*$")
_SUBJECT: Final = re.compile(r"^(?:: |[\w.$]+(?:Exception|Error): )+")
LINE_MAX: Final = 400  # characters


def spark_error(what: str, error: Exception, spark: Any = None) -> TidegateError:
    """`error` as an error of tidegate; one that is of tidegate already is returned as it is.

    A Java exception keeps its text in the JVM. Call this in the thread of the failed call, before
    the JVM is ended. `spark` is the session, where there is one: if its JVM does not answer, the
    error is a SparkLostError. py4j's own errors do not tell that from a failed call.
    """
    if isinstance(error, TidegateError):
        return error
    try:
        text = str(error)
    except Exception as lost:  # noqa: BLE001  (py4j's own, or an OSError of its connection)
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
    """The line of a message of Spark that says what happened, without class names of Java."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    start = next((i for i, line in enumerate(lines) if line.startswith("Traceback (most")), None)
    if start is not None:
        # The last one: in a chain of exceptions it is the one that ended the task.
        raised = [line for line in lines[start:] if _PYTHON_ERROR.match(line)]
        python = [line for line in raised if not line.startswith(("org.", "java.", "py4j."))]
        if python:
            return python[-1][:LINE_MAX].rstrip(".")
    told = [line for line in lines if not line.startswith(("An error occurred while", "at "))]
    return _SUBJECT.sub("", told[0])[:LINE_MAX].rstrip(".") if told else ""
