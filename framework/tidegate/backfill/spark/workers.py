"""Checks before the first wave: the workers can do what the driver plans.

The workers rebuild the graph from the job's code, and a manifest names what they have built. So
they need the driver's Python, to the patch version, and its version of tidegate. Spark itself
compares the minor version of Python only. And they need the checkpoint storage: a folder is that
only where all of them run on this machine.

The versions are asked for by a small Spark job, with as many tasks as Spark has cores. It is no
proof for a worker that comes later. It starts Python workers that the first wave then uses.
"""

from __future__ import annotations

import platform
from collections.abc import Iterator
from importlib import metadata
from typing import Final

import msgspec

from tidegate.backfill.spark.levels import TaskAttempt, run_levels
from tidegate.backfill.spark.master import is_on_this_machine
from tidegate.backfill.spark.rows import FrameRow, Report
from tidegate.backfill.spark.session import BackfillSession
from tidegate.errors import ConfigError, SparkError, UserError

_REMEDY: Final = "Install the driver's versions on every host, or set PYSPARK_PYTHON."
_WORKER_CANNOT_RUN: Final = ("PYTHON_VERSION_MISMATCH", "No module named 'tidegate")


class Versions(msgspec.Struct, frozen=True):
    """What must be the same in the driver and in its workers."""

    python: str
    tidegate: str

    def __str__(self) -> str:
        return f"Python {self.python} and tidegate {self.tidegate}"


_decode: Final = msgspec.msgpack.Decoder(Versions).decode


def own_versions() -> Versions:
    """Those of this process."""
    return Versions(platform.python_version(), metadata.version("tidegate"))


def report_versions(
    attempt: TaskAttempt, payload: bytes, rows: Iterator[FrameRow]
) -> Iterator[Report]:
    """The entry of the job that asks."""
    del payload, rows
    yield attempt.report(msgspec.msgpack.encode(own_versions()))


def check_versions(session: BackfillSession) -> None:
    """Return if the Python workers have the versions of this process.

    Raises:
        UserError: they have others, or no tidegate; the message names the versions of both.
        SparkError: the job that asks has failed.
    """
    own = own_versions()
    tasks = max(1, session.spark.sparkContext.defaultParallelism)
    entry = f"{__name__}:{report_versions.__name__}"
    try:
        reports = run_levels(session, tasks, 1, entry, b"")
    except SparkError as error:
        if not any(text in str(error) for text in _WORKER_CANNOT_RUN):
            raise
        message = (
            f"Spark's Python workers do not fit the driver, which has {own}: {error} {_REMEDY}"
        )
        raise UserError(message) from error
    others = sorted({str(found) for each in reports if (found := _decode(each.body)) != own})
    if others:
        message = (
            f"Spark's Python workers have {', '.join(others)}, and the driver has {own}. {_REMEDY}"
        )
        raise UserError(message)


def check_storage(master: str, storage: str) -> None:
    """Return if the workers of a master reach the checkpoint storage of this URL or path.

    A folder counts as reached only if the master is on this machine: nothing tells whether the
    hosts of a cluster share it.

    Raises:
        ConfigError: it is a folder, and the workers may run elsewhere.
    """
    is_folder = "://" not in storage or storage.startswith("file://")
    if is_folder and not is_on_this_machine(master):
        message = (
            f"checkpoint.storage {storage!r} is a folder of this machine, and the workers of"
            f" {master} may run on others. Set checkpoint.storage to an object store: s3://, gs://"
            " or az://."
        )
        raise ConfigError(message)
