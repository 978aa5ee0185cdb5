"""The archive of a pipeline's files: what is in it, and that it is unpacked as it was packed.

Method: real folders and subprocesses that import real pipelines, since an import cannot be undone;
archives that no `pack` makes are written by hand.
"""

from __future__ import annotations

import io
import os
import shutil
import stat
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.controlplane.jobmanager.test_job_store import Blobs
from tidegate.api.code.archive import (
    INSTALLED_KEPT,
    CodeArchive,
    contents,
    digest_of,
    install,
    pack,
)
from tidegate.api.code.pipeline_files import CACHE, FILES_MAX
from tidegate.api.pipeline import Pipeline
from tidegate.errors import CorruptCheckpointError, PipelineError, StorageError
from tidegate.ports.blobs import BlobStore

SIZE_MAX = 1 << 20
PATH = "a/submissions/1/x.zip"


@pytest.fixture(autouse=True)
def modules() -> Iterator[None]:
    """Forget the modules of a test."""
    before = dict(sys.modules)
    yield
    for name in set(sys.modules) - set(before):
        del sys.modules[name]


def written(folder: Path, *files: str) -> Path:
    """Make files, each as `path:text`."""
    for path, text in (each.split(":", 1) for each in files):
        file = folder / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    return folder


def imported(name: str, where: Path) -> type[Pipeline]:
    """A class of a module that lies there, as after its import."""
    top = name.partition(".")[0]
    module = sys.modules[top] = ModuleType(top)
    if where.is_dir():
        module.__path__ = [str(where)]
    else:
        module.__file__ = str(where)
    made: type[Pipeline] = type("Job", (), {"__module__": name})
    return made


def single(folder: Path, **sizes: int) -> CodeArchive:
    return pack(imported("job", folder / "job.py"), folder, size_max=sizes.get("size", SIZE_MAX))


def left_out(archive: CodeArchive) -> dict[str, str]:
    return {each.path: each.reason for each in archive.left_out}


def test_archive_of_a_single_module_includes_its_helper_modules_and_data_files(
    tmp_path: Path,
) -> None:
    written(tmp_path, "job.py:import helper", "helper.py:X = 1", "rules/a.avsc:{}")
    archive = single(tmp_path)
    assert archive.files == ("helper.py", "job.py", "rules/a.avsc")
    assert archive.left_out == ()
    assert archive.size == len("import helper") + len("X = 1") + len("{}")
    assert digest_of(archive.data) == archive.digest


def package(folder: Path, size_max: int = SIZE_MAX) -> CodeArchive:
    return pack(imported("flows.job", folder / "flows"), folder, size_max=size_max)


def test_a_package_is_packed_with_all_modules_and_packages_beside_it(tmp_path: Path) -> None:
    """Any of them may be imported later, in a function or where a library is optional."""
    ours = (
        "flows/__init__.py:",
        "flows/job.py:def f(): import helper",
        "flows/schema.avsc:{}",
        "helper.py:X = 1",
        "compiled.cpython-311-x86_64-linux-gnu.so:",
        "shared/__init__.py:",
        "shared/names.txt:a",
        "shared/deep/below.py:",
        "parts/one.py:",
        "parts/nested/two.py:",
        "company/team/three.py:",
    )
    beside = (
        "README.md:",
        "settings.json:{}",
        "data/big.csv:1",
        "parts/two.csv:1",
        "parts/data/three.csv:1",
        "not-importable/x.py:",
        "not-importable.py:",
        ".hidden.py:",
        "__pycache__/helper.cpython-311.pyc:",
        "venv/pyvenv.cfg:",
        "venv/x.py:",
        "tidegate.toml:",
    )
    written(tmp_path, *ours, *beside)
    archive = package(tmp_path)
    assert set(archive.files) == {each.split(":")[0] for each in ours}
    assert left_out(archive) == {}


def test_symlink_beside_a_package_that_leads_out_of_the_folder_is_left_out_and_listed(
    tmp_path: Path,
) -> None:
    work = written(tmp_path / "work", "flows/__init__.py:", "flows/job.py:")
    written(tmp_path, "helper.py:")
    (work / "helper.py").symlink_to(tmp_path / "helper.py")
    (work / "circle").symlink_to(work)
    assert left_out(package(work)) == {
        "helper.py": "symbolic link out of the folder",
        "circle": "a symbolic link to a folder above it",
    }


def test_modules_beside_a_package_are_left_out_first_if_the_archive_is_too_large(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written(tmp_path, "flows/__init__.py:", "flows/job.py:" + "A" * 50, "other.py:" + "B" * 60)
    written(tmp_path, "small.py:C")
    archive = package(tmp_path, 60)
    assert archive.files == ("flows/__init__.py", "flows/job.py", "small.py")
    assert left_out(archive) == {"other.py": "60 bytes: too large for job.max_code_size"}
    with pytest.raises(PipelineError, match="50 bytes together"):
        package(tmp_path, 49)
    monkeypatch.setattr("tidegate.api.code.pipeline_files.FILES_MAX", 2)
    archive = package(tmp_path)
    assert archive.files == ("flows/__init__.py", "flows/job.py")
    assert left_out(archive) == {".": "2 files: more than 2 are not stored"}


def test_installed_package_is_packed_with_only_imported_modules_of_the_working_folder(
    tmp_path: Path,
) -> None:
    """The command may run in a home folder."""
    written(tmp_path / "lib", "flows/__init__.py:", "flows/job.py:", "beside.py:")
    work = written(tmp_path / "work", "other.py:", "helper.py:")
    sys.modules["helper"] = ModuleType("helper")
    sys.modules["helper"].__file__ = str(work / "helper.py")
    archive = pack(imported("flows.job", tmp_path / "lib" / "flows"), work, size_max=SIZE_MAX)
    assert archive.files == ("flows/__init__.py", "flows/job.py", "helper.py")


SECRETS = [
    "secrets.yaml",
    "secret.json",
    "Credentials.toml",
    "credentials",
    "prod.env",
    "tls/server.key",
    "tls/server.pem",
    "tls/store.p12",
    "tls/kafka.keystore.jks",
    "id_rsa",
    "id_ed25519",
]


def test_files_that_are_known_to_hold_secrets_are_left_out_and_listed(tmp_path: Path) -> None:
    code = ["job.py", "secrets.py", "keys.csv", "monkey.txt", "id_rsa.pub"]
    written(tmp_path, *(f"{name}:x" for name in (*code, *SECRETS)))
    archive = single(tmp_path)
    assert archive.files == tuple(sorted(code))
    assert left_out(archive) == dict.fromkeys(SECRETS, "may hold a secret")


def test_schema_file_in_the_working_folder_is_packed_with_a_package(tmp_path: Path) -> None:
    written(tmp_path, "flows/__init__.py:", "schemas/a.avsc:{}", "other.txt:")
    pipeline = imported("flows", tmp_path / "flows")
    names = ["schemas/a.avsc", "./schemas/a.avsc", "../outside.avsc", str(tmp_path / "other.txt")]
    archive = pack(pipeline, tmp_path, size_max=SIZE_MAX, data_files=names)
    assert archive.files == ("flows/__init__.py", "schemas/a.avsc")


def test_the_same_files_give_the_same_archive(tmp_path: Path) -> None:
    for name in ("one", "two"):
        written(tmp_path / name, "job.py:A = 1", "b/c.txt:c")
    os.utime(tmp_path / "two" / "job.py", (1, 1))
    (tmp_path / "two" / "job.py").chmod(0o755)
    one, two = single(tmp_path / "one"), single(tmp_path / "two")
    assert one.data == two.data
    written(tmp_path / "two", "b/c.txt:d")
    assert single(tmp_path / "two").digest != one.digest


def test_caches_settings_links_and_virtual_environments_are_left_out_and_listed(
    tmp_path: Path,
) -> None:
    folder = tmp_path / "work"
    for path, text in {
        "job.py": "A = 1",
        ".git/config": "x",
        ".env": "PASSWORD=s3cr3t",
        "tidegate.toml": "[kafka.properties]",
        "__pycache__/job.cpython-311.pyc": "",
        "venv/pyvenv.cfg": "home",
        "venv/lib/x.py": "",
        "lib/site-packages/x.py": "",
        "state/journal": "1",
        "old.pyc": "",
    }.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text)
    (tmp_path / "outside.txt").write_text("secret")
    (folder / "link.txt").symlink_to(tmp_path / "outside.txt")
    (folder / "up").symlink_to(tmp_path)
    (folder / "circle").symlink_to(folder)
    (folder / "same.py").symlink_to(folder / "job.py")
    os.mkfifo(folder / "pipe")
    pipeline = imported("job", folder / "job.py")
    archive = pack(pipeline, folder, size_max=SIZE_MAX, ours=[folder / "state"])
    assert archive.files == ("job.py", "same.py")
    assert left_out(archive) == {
        ".env": "hidden",
        ".git": "folder of a tool",
        "__pycache__": CACHE,
        "circle": "a symbolic link to a folder above it",
        "lib/site-packages": "virtual environment",
        "link.txt": "symbolic link out of the folder",
        "old.pyc": CACHE,
        "pipe": "no regular file",
        "state": "written by tidegate",
        "tidegate.toml": "settings, which may hold passwords",
        "up": "symbolic link out of the folder",
        "venv": "virtual environment",
    }


def test_the_largest_data_files_are_left_out_until_the_rest_fits(tmp_path: Path) -> None:
    written(tmp_path, "job.py:" + "A" * 60, "a.csv:" + "a" * 30, "b.csv:" + "b" * 50)
    archive = single(tmp_path, size=100)
    assert archive.files == ("a.csv", "job.py")
    assert left_out(archive) == {"b.csv": "50 bytes: too large for job.max_code_size"}
    with pytest.raises(PipelineError, match=r"60 bytes together, more than job\.max_code_size"):
        single(tmp_path, size=59)


def test_data_files_beyond_the_limit_are_left_out_by_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Large folders of data next to the pipeline are left out. Modules and smaller data folders
    stay.
    """
    assert FILES_MAX == 10_000
    monkeypatch.setattr("tidegate.api.code.pipeline_files.FILES_MAX", 5)
    written(tmp_path, "job.py:", "rules/a.txt:", "rules/b.txt:", "images/x.py:", "images/1.png:")
    assert len(single(tmp_path).files) == 5
    written(tmp_path, "images/2.png:", "images/3.png:")
    archive = single(tmp_path)
    assert archive.files == ("images/x.py", "job.py", "rules/a.txt", "rules/b.txt")
    assert left_out(archive) == {"images": "3 files: more than 5 are not stored"}
    written(tmp_path, *(f"m{number}.py:" for number in range(4)))
    with pytest.raises(PipelineError, match="there are more than 5 modules"):
        single(tmp_path)


def test_folder_with_too_many_files_to_scan_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A pipeline in a home folder, say: reading it would take minutes."""
    monkeypatch.setattr("tidegate.api.code.pipeline_files.LISTED_MAX", 3)
    written(tmp_path, "job.py:", "a.txt:", "b.txt:")
    assert len(single(tmp_path).files) == 3
    written(tmp_path, "c.txt:")
    with pytest.raises(PipelineError, match="more than 3 files and folders"):
        single(tmp_path)


def test_an_installed_module_is_packed_without_its_neighbours(tmp_path: Path) -> None:
    folder = tmp_path / "site-packages"
    written(folder, "job.py:A = 1", "other.py:B = 1")
    assert single(folder).files == ("job.py",)


# --- unpacking ----------------------------------------------------------------------------------


def stored(data: bytes) -> BlobStore:
    blobs = Blobs()
    blobs.objects[PATH] = data
    return blobs  # type: ignore[return-value]  # files are not asked for


def test_archive_is_installed_with_modes_for_its_owner_only(tmp_path: Path) -> None:
    work = written(tmp_path / "work", "job.py:A = 1", "rules/a.txt:rules")
    archive = single(work)
    root = tmp_path / "cache"
    folder = install(stored(archive.data), PATH, archive.digest, archive.size, root)
    assert folder == root / archive.digest
    assert (folder / "job.py").read_text() == "A = 1"
    assert (folder / "rules" / "a.txt").read_text() == "rules"
    modes = {path: stat.S_IMODE(path.stat().st_mode) for path in (root, *root.rglob("*"))}
    assert {mode for path, mode in modes.items() if path.is_dir()} == {0o700}
    assert {mode for path, mode in modes.items() if path.is_file()} == {0o600}


def test_install_rewrites_changed_files_and_keeps_unchanged_files(tmp_path: Path) -> None:
    archive = single(written(tmp_path / "work", "job.py:A = 1", "b.py:B = 1"))
    parts = stored(archive.data), PATH, archive.digest, archive.size, tmp_path / "cache"
    folder = install(*parts)
    same = (folder / "b.py").stat().st_ino
    (folder / "job.py").write_text("A = 2")
    elsewhere = tmp_path / "elsewhere"
    elsewhere.write_text("B = 1")
    install(*parts)
    assert (folder / "job.py").read_text() == "A = 1"
    assert (folder / "b.py").stat().st_ino == same, "what is right stays: others import from it"
    (folder / "b.py").unlink()
    (folder / "b.py").symlink_to(elsewhere)
    install(*parts)
    assert not (folder / "b.py").is_symlink()


def test_install_error_names_a_missing_or_damaged_archive(tmp_path: Path) -> None:
    archive = single(written(tmp_path / "work", "job.py:A = 1"))
    damaged = archive.data[:-1] + bytes([archive.data[-1] ^ 1])
    root = tmp_path / "cache"
    with pytest.raises(CorruptCheckpointError, match=rf"{PATH} in the checkpoint storage, is dam"):
        install(stored(damaged), PATH, archive.digest, archive.size, root)
    with pytest.raises(CorruptCheckpointError, match="is missing"):
        install(stored(b""), "a/other", archive.digest, archive.size, root)
    assert not root.exists()


def test_install_error_names_a_folder_that_cannot_be_written(tmp_path: Path) -> None:
    archive = single(written(tmp_path / "work", "job.py:A = 1"))
    (tmp_path / "cache").write_text("a file")
    with pytest.raises(StorageError, match=rf"cannot be written to {tmp_path}/cache"):
        install(stored(archive.data), PATH, archive.digest, archive.size, tmp_path / "cache")


def zipped(*names: str, mode: int = 0, content: bytes = b"x") -> bytes:
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w") as archive:
        for name in names:
            info = zipfile.ZipInfo("placeholder")
            info.filename, info.external_attr = name, mode << 16
            archive.writestr(info, content)
    return data.getvalue()


BAD_NAMES = ["../x", "/etc/x", "a/../../x", "a//b", "./x", "a/", "..", "c:\\x\\..\\..\\y", ""]


@pytest.mark.parametrize("name", BAD_NAMES)
def test_archive_with_a_path_out_of_the_folder_is_refused_before_any_file_is_written(
    tmp_path: Path, name: str
) -> None:
    data = zipped("good.py", name)
    with pytest.raises(CorruptCheckpointError):
        install(stored(data), PATH, digest_of(data), SIZE_MAX, tmp_path / "cache" / "code")
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


def test_archive_with_a_symlink_or_a_duplicate_file_name_is_refused() -> None:
    with pytest.raises(CorruptCheckpointError, match="not as a regular file"):
        list(contents(zipped("a", mode=stat.S_IFLNK | 0o777), PATH, SIZE_MAX))
    with pytest.warns(UserWarning, match="Duplicate name"):
        twice = zipped("a", "a")
    with pytest.raises(CorruptCheckpointError, match="twice"):
        list(contents(twice, PATH, SIZE_MAX))


def test_archive_larger_than_the_submitted_size_is_refused() -> None:
    assert dict(contents(zipped("a", "b"), PATH, 2)) == {"a": b"x", "b": b"x"}
    with pytest.raises(CorruptCheckpointError, match="more than 1 bytes"):
        list(contents(zipped("a", "b"), PATH, 1))


def test_error_names_an_archive_that_is_not_a_zip_file() -> None:
    with pytest.raises(CorruptCheckpointError, match=f"archive {PATH} cannot be read"):
        list(contents(b"no zip", PATH, SIZE_MAX))


def test_a_host_keeps_the_newest_archives_of_a_job(tmp_path: Path) -> None:
    root = tmp_path / "cache"
    folders = []
    for number in range(INSTALLED_KEPT + 2):
        archive = single(written(tmp_path / "work", f"job.py:A = {number}"))
        folders.append(install(stored(archive.data), PATH, archive.digest, archive.size, root))
        os.utime(folders[-1], (number, number))
    assert set(root.iterdir()) == set(folders[-INSTALLED_KEPT:])


def test_install_ignores_an_old_archive_that_another_process_removes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The slots of a host install at the same time, and each of them removes the same folders."""
    root = tmp_path / "cache"
    for number in range(INSTALLED_KEPT):
        archive = single(written(tmp_path / "work", f"job.py:A = {number}"))
        os.utime(install(stored(archive.data), PATH, archive.digest, archive.size, root), (1, 1))
    iterdir = Path.iterdir

    def listed_before_a_removal(folder: Path) -> Iterator[Path]:
        found = list(iterdir(folder))
        shutil.rmtree(min(each for each in found if each.stat().st_mtime == 1))
        return iter(found)

    archive = single(written(tmp_path / "work", "job.py:A = 'new'"))
    monkeypatch.setattr(Path, "iterdir", listed_before_a_removal)
    folder = install(stored(archive.data), PATH, archive.digest, archive.size, root)
    monkeypatch.undo()
    assert (folder / "job.py").read_text() == "A = 'new'"
    assert len(list(root.iterdir())) == INSTALLED_KEPT, "what is gone is not counted"


NAMES = st.text(alphabet="ab", min_size=1, max_size=3)


@given(files=st.dictionaries(NAMES.map(lambda name: f"{name}.txt"), st.binary(max_size=50)))
def test_packed_files_are_unpacked_with_equal_content(
    tmp_path_factory: pytest.TempPathFactory, files: dict[str, bytes]
) -> None:
    folder = tmp_path_factory.mktemp("work")
    (folder / "job.py").write_bytes(b"")
    for name, content in files.items():
        (folder / name).write_bytes(content)
    archive = single(folder)
    assert dict(contents(archive.data, PATH, archive.size)) == {"job.py": b"", **files}
