"""The archive of a pipeline whose file is not in the working folder."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from tidegate.api.code.archive import CodeArchive, pack
from tidegate.api.code.code import load_pipeline
from tidegate.api.code.references import read_reference
from tidegate.errors import PipelineError

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


def linked(link: Path, target: Path, *, absolute: bool) -> None:
    link.symlink_to(target if absolute else os.path.relpath(target, link.parent))


def refused(reference: str, folder: Path, loaded: str) -> str:
    with pytest.raises(PipelineError) as caught:
        packed(reference, folder, loaded)
    return str(caught.value)


@pytest.mark.parametrize("absolute", [True, False])
def test_pipeline_whose_file_is_a_link_out_of_its_folder_is_refused(
    project: Path, tmp_path: Path, *, absolute: bool
) -> None:
    jobs = tmp_path / "jobs"
    jobs.mkdir()
    linked(jobs / "outside.py", project / "single.py", absolute=absolute)
    target = (project / "single.py").resolve()
    for reference in ("outside.py", "outside:Copies", str(jobs / "outside.py")):
        text = refused(reference, jobs, "outside")
        assert f"'outside' is imported through {jobs / 'outside.py'}, a symbolic link to " in text
        assert str(target) in text


@pytest.mark.parametrize("absolute", [True, False])
@pytest.mark.parametrize("what", ["file", "package", "folder", "below a folder"])
def test_module_that_is_imported_through_a_link_out_of_the_folder_is_refused(
    project: Path, tmp_path: Path, what: str, *, absolute: bool
) -> None:
    shared = tmp_path / "shared"
    (shared / "tools").mkdir(parents=True)
    (shared / "tools" / "names.py").write_text("")
    link, target, module = project / "tools", shared / "tools", "tools.names"
    if what == "package":
        (shared / "tools" / "__init__.py").write_text("")
    elif what == "file":
        link, target, module = project / "names.py", shared / "tools" / "names.py", "names"
    elif what == "below a folder":
        (project / "plain").mkdir()
        link, module = project / "plain" / "tools", "plain.tools.names"
    linked(link, target, absolute=absolute)
    (project / "uses.py").write_text(f"import {module}\n{PIPELINE}")
    (project / "flows" / "uses.py").write_text(f"import {module}\n{PIPELINE}")
    for reference, loaded in (("uses.py", "uses"), ("flows/uses.py", "flows")):
        if loaded == "flows" and what != "below a folder":
            continue  # its files are stored with the package
        text = refused(reference, project, loaded)
        assert f"is imported through {link}, a symbolic link to {target.resolve()}." in text
    for name in [each for each in sys.modules if each.partition(".")[0] in module.split(".")]:
        del sys.modules[name]


def test_module_of_a_package_that_is_a_link_out_of_it_is_refused(project: Path) -> None:
    (project / "flows" / "beside.py").symlink_to("../helper_beside.py")
    (project / "flows" / "uses.py").write_text(f"from flows import beside\n{PIPELINE}")
    assert "The module 'flows.beside' is imported through" in refused(
        "flows/uses.py", project, "flows"
    )


def test_links_inside_of_the_folder_and_linked_roots_are_followed(
    project: Path, tmp_path: Path
) -> None:
    (project / "same.py").symlink_to("single.py")
    assert {"same.py", "single.py"} <= set(packed("same.py", project, "same").files)
    (tmp_path / "alias").symlink_to(project)
    assert "single.py" in packed("alias/single.py", tmp_path, "single").files
    (tmp_path / "jobs").mkdir()
    (tmp_path / "jobs" / "streams").symlink_to(project / "flows")
    found = packed("streams.copies:Copies", tmp_path / "jobs", "streams").files
    assert "streams/copies.py" in found


def test_linked_module_that_nothing_imports_is_left_out_and_listed(
    project: Path, tmp_path: Path
) -> None:
    (tmp_path / "unused.py").write_text("")
    (project / "unused.py").symlink_to(tmp_path / "unused.py")
    archive = packed("single.py", project, "single")
    assert "unused.py" not in archive.files
    assert "unused.py (symbolic link out of the folder)" in map(str, archive.left_out)
    (project / "plain").mkdir()
    (project / "plain" / "used.py").write_text("")
    (project / "plain" / "unused.py").symlink_to(tmp_path / "unused.py")
    archive = packed("flows/copies.py", project, "flows")
    assert "plain/used.py" in archive.files
    assert "plain/unused.py (symbolic link out of the folder)" in map(str, archive.left_out)
