"""Checks, before the first wave, that the workers can run the driver's plan.

The workers rebuild the graph from the job's code, and a manifest lists the parts of this graph. So
they need the driver's Python, to the patch version, and its version of tidegate. Spark itself
compares only the minor version of Python. That is enough if the driver has sent its packages
(`packing`), but these are built for one platform. The workers also need the checkpoint storage,
which can be a folder only if all workers run on this machine.

A small Spark job reads the versions, with as many tasks as Spark has cores. It does not check
workers that start later. It starts Python workers that the first wave then uses.
"""

from __future__ import annotations

import platform
import sysconfig
from collections.abc import Iterator
from importlib import metadata
from typing import Any, Final

import msgspec

from tidegate.backfill.spark.apart import run_in_thread
from tidegate.backfill.spark.levels import TaskAttempt, run_levels
from tidegate.backfill.spark.master import is_on_this_machine
from tidegate.backfill.spark.rows import FrameRow, Report
from tidegate.backfill.spark.session import BackfillSession
from tidegate.backfill.spark.spark_errors import spark_error
from tidegate.errors import ConfigError, SparkError, UserError
from tidegate.storage_location import is_url

_REMEDY: Final = "Install the driver's versions on every host, or set PYSPARK_PYTHON."
_SHIP: Final = (
    "Add --ship to send the driver's packages to the workers, install the driver's versions on"
    " every host, or set PYSPARK_PYTHON."
)
_OTHER_PYTHON: Final = "PYTHON_VERSION_MISMATCH"
_NOT_INSTALLED: Final = ("No module named '", "PACKAGE_NOT_INSTALLED", "must be installed")
_BUILT_FOR: Final = "SOABI"
"""The Python variable with the minor version and the platform of extension modules."""


class Versions(msgspec.Struct, frozen=True):
    """The versions that must be the same in the driver and in its workers."""

    python: str
    tidegate: str

    def has_same_minor(self, other: Versions) -> bool:
        """Return whether both have the same tidegate, and the same Python except for the patch
        version.
        """
        mine, theirs = (each.python.rpartition(".")[0] for each in (self, other))
        return mine == theirs and self.tidegate == other.tidegate

    def __str__(self) -> str:
        return f"Python {self.python} and tidegate {self.tidegate}"


_decode: Final = msgspec.msgpack.Decoder(Versions).decode


def own_versions() -> Versions:
    """Return the versions of this process."""
    return Versions(platform.python_version(), metadata.version("tidegate"))


def report_versions(
    attempt: TaskAttempt, payload: bytes, rows: Iterator[FrameRow]
) -> Iterator[Report]:
    """Report the versions of a worker. This is the entry of the Spark job of `check_versions`."""
    del payload, rows
    yield attempt.report(msgspec.msgpack.encode(own_versions()))


def check_versions(session: BackfillSession) -> None:
    """Return if the Python workers have the versions of this process.

    Raises:
        UserError: the workers have other versions, or no tidegate. The message names the versions
            of the driver and of the workers.
        SparkError: the Spark job that reads the versions has failed.
    """
    own = own_versions()
    entry = f"{__name__}:{report_versions.__name__}"
    try:
        reports = run_levels(session, _tasks(session), 1, entry, b"")
    except SparkError as error:
        is_missing = any(text in str(error) for text in _NOT_INSTALLED)
        if not is_missing and _OTHER_PYTHON not in str(error):
            raise
        remedy = _SHIP if is_missing and not session.ships else _REMEDY
        message = f"Spark's Python workers do not fit the driver, which has {own}. {error} {remedy}"
        raise UserError(message) from error
    fits = own.has_same_minor if session.ships else own.__eq__
    others = sorted({str(found) for each in reports if not fits(found := _decode(each.body))})
    if others:
        message = (
            f"Spark's Python workers have {', '.join(others)}, and the driver has {own}. {_REMEDY}"
        )
        raise UserError(message)


def check_platform(session: BackfillSession) -> None:
    """Return if the Python workers have the Python and the platform for which the driver's packages
    are built. The workers need no tidegate for this check.

    Raises:
        UserError: a worker has another minor version of Python or another platform.
        SparkError: the Spark job that reads the platform has failed.
    """
    own, tasks = str(sysconfig.get_config_var(_BUILT_FOR)), _tasks(session)

    def ask() -> list[Any]:
        questions = session.spark.sparkContext.parallelize([_BUILT_FOR] * tasks, tasks)
        found: list[Any] = questions.map(sysconfig.get_config_var).collect()
        return found

    try:
        found = run_in_thread(ask, name="spark-platform")
    except Exception as error:
        failure = spark_error("The workers did not report their platform", error, session.spark)
        if _OTHER_PYTHON not in str(failure):
            raise failure from error
        found = [str(failure)]
    others = sorted({str(each) for each in found} - {own})
    if others:
        message = (
            f"--ship cannot send the driver's packages: they are built for {own}, and Spark's"
            f" Python workers have {', '.join(others)}. Run the command with their minor version of"
            " Python on their platform, set PYSPARK_PYTHON, or install tidegate on every host and"
            " leave out --ship."
        )
        raise UserError(message)


def _tasks(session: BackfillSession) -> int:
    """Return the number of tasks: one for each core of Spark."""
    return max(1, int(session.spark.sparkContext.defaultParallelism))


def check_storage(master: str, storage: str) -> None:
    """Return if the workers of a master reach the checkpoint storage of this URL or path.

    A folder counts as reached only if the master is on this machine, because tidegate cannot know
    whether the hosts of a cluster share it.

    Raises:
        ConfigError: the storage is a folder, and the workers may run on other hosts.
    """
    is_folder = not is_url(storage) or storage.startswith("file://")
    if is_folder and not is_on_this_machine(master):
        message = (
            f"checkpoint.dir {storage!r} is a folder of this machine, and the workers of"
            f" {master} may run on others. Set checkpoint.dir to an object store: s3://, gs://"
            " or az://."
        )
        raise ConfigError(message)
