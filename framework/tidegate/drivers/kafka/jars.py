"""Kafka's jars: a lock in this package lists and hashes them, and they are downloaded once per
user.

`kafka-<version>.jars` has one line per jar, with its coordinates and its SHA-256, in the order of
the class path. It names packages and never a registry: jgo knows where packages come from. jgo is
trusted only with the download. It checks only a SHA-1 from the same server, and it writes files in
place, so a killed download would leave a broken jar forever. Therefore each download uses a staging
folder, checks the SHA-256, and renames the folder once at the end. So the cache has all jars of a
version or none.

`java` calls `jars`. `make lock` runs this module to resolve the dependency trees again.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import sys
import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tidegate.errors import ExternalError, UserError, check
from tidegate.message_text import counted

VERSIONS = ("4.3.0", "4.3.1", "3.9.1")
"""The versions of Kafka with a lock in this package; the first is the default."""

LOG_BINDING = "org.slf4j:slf4j-simple:1.7.36"
"""The log binding. Kafka's own dependencies have none, and without it a failing broker logs
nothing.
"""

SHA256_DIGITS = 64
DOWNLOADS_AT_ONCE = 8  # more do not help: the largest jar takes as long as all the others together
ATTEMPTS_PER_JAR = 3  # one brief error of a registry must not waste the other 45 downloads
DOWNLOAD_TIMEOUT_S = 60  # between two packets, not for the whole download

Report = Callable[[str], None]
"""A function that gets short lines about the progress. The caller decides how to show them."""


@dataclass(frozen=True, slots=True)
class Jar:
    """One line of a lock."""

    group: str
    artifact: str
    version: str
    classifier: str
    sha256: str

    @property
    def coordinates(self) -> str:
        return f"{self.group}:{self.artifact}:{self.version}:{self.classifier}"

    @property
    def file_name(self) -> str:
        parts = (self.artifact, self.version, self.classifier)
        return "-".join(part for part in parts if part) + ".jar"


def jars(version: str, report: Report) -> list[Path]:
    """Return the jars of a Kafka version in class path order. Download them if any is missing.

    Raises:
        UserError: the version is unknown, or jgo is not installed and jars are missing.
        ExternalError: a download failed or a hash differs.
    """
    wanted = read_lock(version)
    folder = cache_folder() / f"kafka-{version}"
    paths = [folder / jar.file_name for jar in wanted]
    if not all(path.exists() for path in paths):
        _download(version, wanted, folder, report)
    return paths


def read_lock(version: str) -> list[Jar]:
    """Return the jars in the lock of a Kafka version, in its order.

    Raises:
        UserError: this package has no lock for the version.
    """
    path = lock_path(version)
    if not path.exists():
        *others, last = VERSIONS
        choice = f"{', '.join(others)} or {last}"
        message = f"Kafka {version} is not a version that tidegate can start: choose {choice}."
        raise UserError(message)
    return parse_lock(path.read_text(encoding="utf-8"))


def parse_lock(text: str) -> list[Jar]:
    """Parse the lines `group:artifact:version:classifier sha256`."""
    found = []
    for line in text.splitlines():
        coordinates, _, sha256 = line.partition(" ")
        fields = [*coordinates.split(":"), sha256]
        check(len(fields) == len(Jar.__slots__), f"not a line of a lock of jars: {line!r}")
        check(len(sha256) == SHA256_DIGITS, f"not a SHA-256 in a lock of jars: {line!r}")
        found.append(Jar(*fields))
    check(found, "a lock of jars is empty")
    return found


def lock_path(version: str) -> Path:
    """Return the path of the lock of a Kafka version, which may not exist."""
    return Path(__file__).with_name(f"kafka-{version}.jars")


def cache_folder() -> Path:
    """Return the folder of the user's files that tidegate can download or compute again."""
    given = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(given).absolute() / "tidegate"


def missing_extra_error(what: str) -> UserError:
    """Return the error for a library of the extra `broker` that is not installed."""
    return UserError(
        f"The embedded Kafka broker needs {what}, which is not installed. It comes with an extra:"
        " pip install 'tidegate[broker]'. To use a broker of your own instead, pass"
        " --kafka HOST:PORT."
    )


def _download(version: str, wanted: list[Jar], folder: Path, report: Report) -> None:
    try:
        from jgo.maven import MavenContext
    except ImportError as error:
        raise missing_extra_error("jgo") from error
    staging = folder.with_name(f"{folder.name}.{uuid.uuid4().hex}")
    (staging / "jars").mkdir(parents=True)
    try:
        # Without a folder of its own, jgo would fill the user's Maven repository.
        context = MavenContext(repo_cache=staging / "repo", timeout=DOWNLOAD_TIMEOUT_S)
        with ThreadPoolExecutor(DOWNLOADS_AT_ONCE) as pool:
            futures = [pool.submit(_fetch, context, jar, staging / "jars") for jar in wanted]
            for count, future in enumerate(futures, 1):
                try:
                    future.result()
                except BaseException:
                    pool.shutdown(cancel_futures=True)
                    raise
                report(f"downloading Kafka {version}: {count} of {counted(len(wanted), 'jar')}")
        _put_in_place(staging / "jars", folder, [jar.file_name for jar in wanted])
    finally:
        shutil.rmtree(staging, ignore_errors=True)


def _fetch(context: Any, jar: Jar, into: Path) -> None:
    failure: Exception | None = None
    for _ in range(ATTEMPTS_PER_JAR):
        try:
            path = (
                context.project(jar.group, jar.artifact)
                .at_version(jar.version)
                .artifact(jar.classifier)
                .resolve()
            )
        except (OSError, RuntimeError, ValueError, AssertionError) as error:
            failure = error
            continue
        if sha256_of(path) != jar.sha256:
            path.unlink()
            message = (
                f"The jar {jar.coordinates} came with another SHA-256 than the one tidegate was"
                " tested with, and was thrown away. Try again; if it stays so, a proxy or the"
                " registry has changed it."
            )
            raise ExternalError(message)
        path.rename(into / jar.file_name)
        return
    message = (
        f"The jar {jar.coordinates} could not be downloaded: {failure}. Check that this machine"
        " reaches a Maven registry, and try again."
    )
    raise ExternalError(message) from failure


def _put_in_place(source: Path, folder: Path, names: list[str]) -> None:
    if folder.exists() and not all((folder / name).exists() for name in names):
        shutil.rmtree(folder)  # jars were deleted from it
    try:
        source.rename(folder)
    except OSError:
        # Another process may have put the folder there first, which is fine. Otherwise it is an
        # error.
        if not all((folder / name).exists() for name in names):
            raise


def sha256_of(path: Path) -> str:
    """Return the SHA-256 of a file, in hexadecimal digits."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def write_lock(version: str) -> None:
    """Resolve the dependency tree of a Kafka version and write its lock. Needs the network."""
    # Not jgo.build: to sort jars, it downloads its own JDK.
    from jgo import resolve

    lines = []
    for artifact in resolve(f"org.apache.kafka:kafka_2.13:{version}+{LOG_BINDING}"):
        names = (artifact.groupId, artifact.artifactId, artifact.version, artifact.classifier or "")
        lines.append(f"{':'.join(names)} {sha256_of(artifact.resolve())}\n")
    lock_path(version).write_text("".join(sorted(lines)), encoding="utf-8")


if __name__ == "__main__":
    for each in sys.argv[1:] or VERSIONS:
        write_lock(each)
