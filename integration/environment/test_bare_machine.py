"""A new user's first minute: from a bare machine to a record through a real broker.

Goal: the project needs no software that happens to be installed on this machine. Method: a copy of
the tree as in a clone, an empty HOME, and a restricted PATH. The PATH has Python, make and the
usual small tools, but no Java, Maven, Docker, uv or compiler. Then one `make` target does the whole
set-up. Most other environment variables stay, because they hold the addresses of this machine's
package registries.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
MISSING = {
    *("java", "javac", "mvn", "mvnw", "gradle", "docker", "podman", "uv", "uvx", "pip", "pip3"),
    *("gcc", "g++", "cc", "c++", "clang", "cargo", "rustc", "cmake", "tidegate"),
}

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """A copy of the files that a clone of this tree would hold."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        check=False,
        capture_output=True,
    )
    if listed.returncode != 0:
        pytest.skip("this tree is no git work tree")
    for name in filter(None, listed.stdout.decode().split("\0")):
        source, target = ROOT / name, tmp_path / "clone" / name
        if source.is_file():
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source, target)
    return tmp_path / "clone"


@pytest.fixture
def bare(tmp_path: Path) -> dict[str, str]:
    """The environment of a machine that has only Python, make and small tools."""
    tools, home = tmp_path / "bin", tmp_path / "home"
    tools.mkdir()
    home.mkdir()
    for folder in os.environ["PATH"].split(os.pathsep):
        for tool in Path(folder).iterdir() if Path(folder).is_dir() else ():
            if tool.name not in MISSING and not tool.name.startswith("python"):
                link = tools / tool.name
                if not link.is_symlink():
                    link.symlink_to(tool)
    python = Path(sys.base_prefix) / "bin" / f"python3.{sys.version_info.minor}"
    (tools / "python3").symlink_to(python)
    dropped = ("XDG_", "VIRTUAL_ENV", "PYTHON", "PYENV", "JAVA_HOME", "MAVEN_", "M2_", "UV_CACHE")
    kept = {key: value for key, value in os.environ.items() if not key.startswith(dropped)}
    for name in ("MAKEFLAGS", "MAKELEVEL", "MFLAGS"):  # set by the make that runs this test
        kept.pop(name, None)
    useless = str(tmp_path / "no-such-folder")
    return kept | {"HOME": str(home), "PATH": str(tools), "PIP_FIND_LINKS": useless}


def test_make_ready_sets_up_a_bare_machine_and_a_second_make_reuses_it(
    clone: Path, bare: dict[str, str]
) -> None:
    for name in ("java", "mvn", "docker"):
        assert shutil.which(name, path=bare["PATH"]) is None
    began = time.monotonic()
    done = make(clone, bare, "ready")
    cold_s = time.monotonic() - began
    assert done.returncode == 0, done.stdout + done.stderr
    assert "read back [b'value']" in done.stdout

    began = time.monotonic()
    again = make(clone, bare, "ready")
    warm_s = time.monotonic() - began
    assert again.returncode == 0, again.stdout + again.stderr
    assert "setting up" not in again.stderr, "what is there is used again"
    assert "downloading" not in again.stdout
    # 25 s on a quiet machine. Registries and machine load vary, so the test only prints the time.
    print(f"from nothing to a record and stopped: {cold_s:.1f} s; again: {warm_s:.1f} s")

    up = tidegate(clone, bare, "kafka", "up")
    try:
        assert up.returncode == 0, up.stderr
        assert up.stdout.startswith("127.0.0.1:")
    finally:
        assert tidegate(clone, bare, "kafka", "down", "--wipe").returncode == 0


def test_make_alone_lists_the_targets_one_line_each(clone: Path, bare: dict[str, str]) -> None:
    done = make(clone, bare)
    lines = done.stdout.splitlines()
    assert done.returncode == 0
    assert not (clone / ".venv").exists(), "the list needs no set-up"
    names = {line.split()[0] for line in lines}
    assert {"demo", "test", "check", "bench", "soak", "clean"} <= names
    assert all(len(line) <= 120 and len(line.split()) > 2 for line in lines)


def test_an_old_python_is_refused_with_the_remedy(clone: Path, bare: dict[str, str]) -> None:
    # `false` fails at the version check, as a Python that is too old does.
    done = make(clone, bare, ".venv/ready", "PYTHON=false")
    assert done.returncode != 0
    assert "needs Python 3.11 or later" in done.stderr
    assert "make PYTHON=" in done.stderr


def test_a_python_without_venv_is_refused_with_the_remedy(
    clone: Path, bare: dict[str, str], tmp_path: Path
) -> None:
    fake = tmp_path / "python-without-venv"
    fake.write_text('#!/bin/sh\ntest "$1" = -c\n', encoding="utf-8")
    fake.chmod(0o755)
    done = make(clone, bare, ".venv/ready", f"PYTHON={fake}")
    assert done.returncode != 0
    assert "apt install python3-venv" in done.stderr


def make(clone: Path, environment: dict[str, str], *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["make", *words], cwd=clone, env=environment, check=False, capture_output=True, text=True
    )


def tidegate(
    clone: Path, environment: dict[str, str], *words: str
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [clone / ".venv" / "bin" / "tidegate", *words],
        cwd=clone,
        env=environment,
        check=False,
        capture_output=True,
        text=True,
    )
