"""Which local folders stay for the next attempt, and which go."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tidegate.dataplane.state import local_files
from tidegate.dataplane.state.local_files import LocalStateFiles, identity_of, note_verified
from tidegate.dataplane.state.local_state_dir import LocalStateDir
from tidegate.errors import StorageError
from tidegate.protocol.subtask_snapshot import StateFile


def attempts(root: Path) -> list[str]:
    return sorted(path.name for path in root.iterdir())


def test_only_folders_of_earlier_attempts_are_removed(tmp_path: Path) -> None:
    for name in ("3", "4", "5", "notes"):
        (tmp_path / name / "0-1").mkdir(parents=True)
    LocalStateDir(tmp_path, 4, "0-1").remove_earlier()
    assert attempts(tmp_path) == ["4", "5", "notes"]


def test_remove_earlier_keeps_the_newest_earlier_attempts_by_number(tmp_path: Path) -> None:
    for name in ("2", "9", "17", "34", "49"):
        (tmp_path / name / "0-1").mkdir(parents=True)
    LocalStateDir(tmp_path, 34, "0-1").remove_earlier(keep=2)
    assert attempts(tmp_path) == ["17", "34", "49", "9"]


def test_local_folder_is_made_empty_and_removed_without_folders_of_other_slots(
    tmp_path: Path,
) -> None:
    mine, other = LocalStateDir(tmp_path, 1, "0-1"), LocalStateDir(tmp_path, 1, "0-2")
    for folder in (mine, other):
        folder.make()
        (folder.path / "file").write_text("")
    mine.make()
    assert not list(mine.path.iterdir())
    mine.remove()
    assert attempts(tmp_path / "1") == ["0-2"]


def test_remove_all_of_the_last_slot_removes_the_job_folder(tmp_path: Path) -> None:
    root = tmp_path / "job" / "j1"
    killed, mine, other = (
        LocalStateDir(root, attempt, slot) for attempt, slot in ((1, "0-1"), (2, "0-2"), (2, "1-3"))
    )
    for folder in (killed, mine, other):
        folder.make()
    mine.remove_all()
    assert attempts(root) == ["2"]
    killed.make()  # as if the other one had to remove that, too
    other.remove_all()
    assert not root.exists()


def test_folders_of_earlier_attempts_are_removed_if_the_disk_is_full(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A full disk may be full of nothing else. But only then it goes: others may restore from
    it.
    """
    made = Path.mkdir
    left = LocalStateDir(tmp_path, 1, "0-1")
    left.make()

    def refused_while_full(self: Path, *args: Any, **kwargs: Any) -> None:
        if left.path.exists():
            raise OSError(errno.ENOSPC, "No space left on device")
        made(self, *args, **kwargs)

    next_one = LocalStateDir(tmp_path, 2, "0-2")
    next_one.make()
    assert left.path.exists()
    monkeypatch.setattr(Path, "mkdir", refused_while_full)
    next_one.make()
    assert next_one.path.exists()
    assert attempts(tmp_path) == ["2"]


def test_missing_job_folder_raises_no_error(tmp_path: Path) -> None:
    folder = LocalStateDir(tmp_path / "job", 2, "0-1")
    folder.remove_earlier()
    assert list(folder.previous_files().names()) == []


def test_a_folder_that_cannot_be_made_is_named_with_the_remedy(tmp_path: Path) -> None:
    (tmp_path / "job").write_text("a file, and no folder")
    folder = LocalStateDir(tmp_path / "job", 2, "0-1")
    with pytest.raises(StorageError, match=r"/job.* for local state cannot be made: .*local_dir"):
        folder.make()


def test_previous_files_are_the_files_of_earlier_attempts(tmp_path: Path) -> None:
    for attempt in (1, 2, 3):
        folder = LocalStateDir(tmp_path, attempt, "0-1")
        folder.make()
        (folder.path / f"of-{attempt}").write_text("x")
    found = LocalStateDir(tmp_path, 2, "0-2").previous_files()
    assert list(found.names()) == ["of-1"]


def test_missing_folder_has_no_local_state_files(tmp_path: Path) -> None:
    """Another slot of this host may remove the folder at the same time."""
    there = tmp_path / "there"
    there.mkdir()
    (there / "file").touch()
    assert list(LocalStateFiles.find_in([tmp_path / "gone", there]).names()) == ["file"]


def test_folder_that_vanishes_during_listing_raises_no_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "sub").mkdir()

    def vanishing(self: Path, _pattern: str) -> Iterator[Path]:
        yield self / "file"
        raise FileNotFoundError(str(self / "sub"))

    monkeypatch.setattr(Path, "rglob", vanishing)
    assert list(LocalStateFiles.find_in([tmp_path]).names()) == ["file"]


def test_wave_trusts_verified_notes_of_the_previous_attempt_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If a wave fails, the next one reads every file: one that cannot be read may be why."""
    monkeypatch.setattr(local_files, "LINKED_BYTES_MIN", 0)

    def takes_unread(attempt: int) -> bool:
        """Whether a wave takes over the file that attempt 1 has verified, without reading it."""
        folder = LocalStateDir(tmp_path, attempt, "0-b")
        folder.make()
        stated = StateFile(name="table", path="", size=4, sha256="as noted, not as it is")
        found = folder.files_of_earlier_waves("0-*").link(stated, folder.path / "table")
        return found is not None

    first = LocalStateDir(tmp_path, 1, "0-a")
    first.make()
    (first.path / "table").write_text("rows")
    note_verified(first.path, [(identity_of(first.path / "table"), "as noted, not as it is")])
    assert takes_unread(2)
    assert not takes_unread(3)
