"""The archive of a pipeline whose file is not in the working folder."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tidegate.api.archive import CodeArchive, pack
from tidegate.api.code import load_pipeline
from tidegate.api.references import read_reference

PIPELINE = """
from tidegate import Json, KafkaSink, KafkaSource, Pipeline

class Copies(Pipeline, name="copies"):
    a = KafkaSource("a", value=Json(int))
    b = KafkaSink("b", value=Json(int))

    def define(self) -> None:
        self.a.to(self.b)
"""


def packed(reference: str, working_folder: Path, loaded: str) -> CodeArchive:
    try:
        pipeline = load_pipeline(reference, working_folder)
        root = read_reference(reference, working_folder).root
        return pack(
            pipeline, working_folder, root=root, size_max=1_000_000, data_files=["schemas/a.avsc"]
        )
    finally:
        for name in [each for each in sys.modules if each.partition(".")[0] == loaded]:
            del sys.modules[name]


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(sys, "path", list(sys.path))
    project = tmp_path / "project"
    (project / "flows").mkdir(parents=True)
    (project / "schemas").mkdir()
    (project / "schemas" / "a.avsc").write_text("{}")
    (project / "helper_beside.py").write_text("")
    (project / "flows" / "__init__.py").write_text("")
    (project / "flows" / "copies.py").write_text(PIPELINE)
    (project / "single.py").write_text(PIPELINE)
    return project


def test_archive_of_a_package_in_another_folder_holds_what_is_beside_the_package(
    project: Path, tmp_path: Path
) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "not_ours.py").write_text("")
    archive = packed("../project/flows/copies.py", elsewhere, "flows")
    assert {"flows/copies.py", "helper_beside.py", "schemas/a.avsc"} <= set(archive.files)
    assert "not_ours.py" not in archive.files


def test_archive_of_a_single_file_in_another_folder_holds_the_folder_of_the_file(
    project: Path, tmp_path: Path
) -> None:
    (tmp_path / "not_ours.py").write_text("")
    archive = packed("project/single.py", tmp_path, "single")
    assert {"single.py", "helper_beside.py", "schemas/a.avsc"} <= set(archive.files)
    assert "not_ours.py" not in archive.files


def test_schema_file_of_the_working_folder_is_packed_for_a_pipeline_of_another_folder(
    project: Path, tmp_path: Path
) -> None:
    (project / "schemas" / "a.avsc").unlink()
    (tmp_path / "schemas").mkdir()
    (tmp_path / "schemas" / "a.avsc").write_text("{}")
    assert "schemas/a.avsc" in packed("project/single.py", tmp_path, "single").files
