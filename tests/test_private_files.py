"""Files that quote records are for their owner only, whatever the umask says."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tidegate.private_files import (
    close_to_others,
    copy_private,
    make_private_folder,
    private_opener,
    write_private,
)


@pytest.fixture(autouse=True)
def _open_umask() -> Iterator[None]:
    """With this umask, a file that is created without a mode can be written by everybody."""
    before = os.umask(0)
    yield
    os.umask(before)


def mode(path: Path) -> int:
    return path.stat().st_mode & 0o777


def test_every_folder_that_is_made_is_closed_to_others(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    make_private_folder(tmp_path / "a" / "b" / "c")
    make_private_folder(tmp_path / "a" / "b" / "c")
    assert [mode(tmp_path / each) for each in ("a", "a/b", "a/b/c")] == [0o700] * 3
    assert mode(tmp_path) == 0o755, "a folder that exists keeps its mode"
    with pytest.raises(FileExistsError):
        make_private_folder(tmp_path / "a", exist_ok=False)


def test_a_folder_below_a_file_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(OSError, match="exists"):
        make_private_folder(tmp_path / "file")
    with pytest.raises(NotADirectoryError):
        make_private_folder(tmp_path / "file" / "a")


def test_files_are_closed_to_others_from_their_first_moment(tmp_path: Path) -> None:
    write_private(tmp_path / "written", b"1")
    with open(tmp_path / "opened", "xb", opener=private_opener) as file:
        assert os.fstat(file.fileno()).st_mode & 0o777 == 0o600
    copy_private(tmp_path / "written", tmp_path / "copied")
    assert (tmp_path / "copied").read_bytes() == b"1"
    assert [mode(tmp_path / each) for each in ("written", "opened", "copied")] == [0o600] * 3


def test_folder_of_an_older_version_is_closed_to_others(tmp_path: Path) -> None:
    (tmp_path / "job").mkdir(mode=0o755)
    close_to_others(tmp_path / "job")
    close_to_others(tmp_path / "absent")
    assert mode(tmp_path / "job") == 0o700
