"""The versions that all processes of a cluster must share, and the error text if they differ.

Every process that registers sends its version of tidegate and its minor version of Python. Both are
the versions of the running code. An upgrade of a package on the disk does not change them.
"""

from __future__ import annotations

import sys
from typing import Final

TIDEGATE: Final = "0.1.0"
"""The version in `pyproject.toml`; a test compares the two."""
PYTHON: Final = f"{sys.version_info.major}.{sys.version_info.minor}"


def difference(sender: str, tidegate: str, python: str) -> str | None:
    """Return why a process that registers here is refused, or None if its versions match those of
    this process.

    `sender` names the process and its host. Both versions are empty if the sender is older than
    this check.
    """
    if (tidegate, minor(python)) == (TIDEGATE, PYTHON):
        return None
    theirs = f"tidegate {tidegate} and Python {minor(python)}" if tidegate else "an older tidegate"
    return (
        f"{sender} has {theirs}, and this process has tidegate {TIDEGATE} and Python {PYTHON}. "
        "Install the same versions on all hosts of the cluster and on the clients."
    )


def minor(python: str) -> str:
    """Return the minor version of Python, for example 3.11."""
    return ".".join(python.split(".")[:2])
