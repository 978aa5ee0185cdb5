"""Checks that the extra `spark` is installed and that its pyspark has what a backfill calls.

The check reads the metadata of the installed packages and imports none of them, because an import
of pyspark takes most of a second. `session` calls it first.
"""

from __future__ import annotations

import re
import warnings
from importlib import metadata, util
from typing import Final

from tidegate.errors import UserError

PYSPARK_MIN: Final = (4, 2)  # has Python stream sources with availableNow, and repartitionById
PYSPARK_BELOW: Final = (4, 4)  # the next minor version, which is not tested
PACKAGES: Final = ("pyspark", "py4j", "pandas", "pyarrow")
"""Packages that mapInArrow imports. pyspark brings py4j, and the extra brings the others."""


def ignore_pandas_version() -> None:
    """Ignore pyspark's warning about a new version of pandas, because only the version of pandas
    is used. pyspark warns at its import and at every plan. Each caller sets the filter again,
    because other code may have reset the filters in the meantime.
    """
    warnings.filterwarnings(
        "ignore", message="PySpark does not yet fully support pandas", category=FutureWarning
    )


def check_installed() -> None:
    """Return if a backfill can import and use pyspark.

    Raises:
        UserError: a package of the extra is missing, or the version of pyspark is not supported.
    """
    missing = [name for name in PACKAGES if util.find_spec(name) is None]
    if missing:
        which, they = ("is", "It comes") if len(missing) == 1 else ("are", "They come")
        message = (
            f"A backfill on Spark needs {' and '.join(missing)}, which {which} not installed."
            f" {they} with an extra: pip install 'tidegate[spark]'."
        )
        raise UserError(message)
    check_version("pyspark", metadata.version("pyspark"))
    ignore_pandas_version()


def check_version(what: str, version: str) -> None:
    """Return if this version of Spark has what a backfill calls.

    Raises:
        UserError: the version is older or newer than the extra allows.
    """
    if not PYSPARK_MIN <= minor_version(version) < PYSPARK_BELOW:
        oldest, next_one = (".".join(map(str, each)) for each in (PYSPARK_MIN, PYSPARK_BELOW))
        message = (
            f"A backfill needs Spark {oldest} or later and before {next_one}, but {what} has the"
            f" version {version}. Install one that fits: pip install 'tidegate[spark]'."
        )
        raise UserError(message)


def minor_version(version: str) -> tuple[int, int]:
    """Return `(4, 3)` for "4.3.0", and `(0, 0)` for a text that is not a version."""
    found = re.match(r"(\d+)\.(\d+)", version)
    return (int(found[1]), int(found[2])) if found else (0, 0)
