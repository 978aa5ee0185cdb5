"""The first calls of a process, before it imports anything else: what its starter may have set.

This module imports nothing else of tidegate, because it must be ready first.
"""

from __future__ import annotations

import codecs
import os
import re
import sys
import warnings
from typing import Final, TextIO

ESCAPE: Final = "tidegate-escape"
"""The name under which Python finds the function for characters that a stream does not have."""

_LIBRARIES: Final = (
    "tidegate",
    "confluent_kafka",
    "fastavro",
    "google",
    "grpc",
    "jgo",
    "kafka",
    "mmh3",
    "msgspec",
    "obstore",
    "pydantic",
    "rich",
    "rocksdict",
    "setproctitle",
    "typer",
    "watchfiles",
)
"""The packages of tidegate. A warning in them, or in the standard library, is not about code of the
user.
"""


def ignore_library_warnings() -> None:
    """Ignore the warnings in tidegate and its libraries, if warnings are exceptions.

    `PYTHONWARNINGS=error` is meant for code of the user. A warning there stays an exception.
    """
    if sys.warnoptions:
        names = "|".join(map(re.escape, (*_LIBRARIES, *sys.stdlib_module_names)))
        warnings.filterwarnings("ignore", module=rf"({names})(\.|$)")


def complete_standard_streams() -> None:
    """Let the standard streams take any text, and open those that the starter has closed.

    A terminal or a locale may have no letters but ASCII: others are shown as their escapes. A
    closed stream (`>&-`) leads to the null device. Otherwise the next file or socket of the process
    would get its descriptor, and what is printed would go there.
    """
    for descriptor in (0, 1, 2):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # gets the lowest descriptor that is free: this one
    sys.stdin = sys.stdin or _opened(0, "r")
    sys.stdout = sys.stdout or _opened(1, "w")
    sys.stderr = sys.stderr or _opened(2, "w")
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors=ESCAPE)


def _escaped(error: UnicodeError) -> tuple[str, int]:
    r"""Return the escapes of the characters that an encoding does not have, and where they end. The
    escapes are those of JSON (`\u00e4`), because the commands also print JSON.
    """
    if not isinstance(error, UnicodeEncodeError):
        raise error
    units = error.object[error.start : error.end].encode("utf-16-be", "surrogatepass")
    pairs = (units[at : at + 2].hex() for at in range(0, len(units), 2))
    return "".join(f"\\u{pair}" for pair in pairs), error.end


codecs.register_error(ESCAPE, _escaped)


def _opened(descriptor: int, mode: str) -> TextIO:
    return open(descriptor, mode, encoding="utf-8", closefd=False)  # type: ignore[return-value]
