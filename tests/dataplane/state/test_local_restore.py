"""A restore takes files that earlier attempts left on the host, if their content is verified."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from tests.dataplane.state.job import JOB, Step, declare
from tests.dataplane.state.totals import KEYS, add, only, paths, rocksdb_step, totals
from tidegate.api.state.state import ValueState
from tidegate.dataplane.state import local_files
from tidegate.errors import StorageError


def contents(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.fixture(params=[0, 1 << 30], ids=["linked", "copied"])
def _linked_or_copied(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local_files, "LINKED_BYTES_MIN", request.param)


@pytest.mark.usefixtures("_linked_or_copied")
@pytest.mark.parametrize("parallelism", [2, 3])
def test_rocksdb_files_left_by_an_earlier_attempt_are_not_downloaded(
    tmp_path: Path, parallelism: int
) -> None:
    """With tables, and with a changelog's segments; also where the key groups move."""
    step = rocksdb_step(tmp_path)
    step.start(2)
    for _ in range(2):
        add(step)
        snapshots = step.snapshot()
    step.stop()
    left = contents(tmp_path)
    step.start(parallelism, snapshots, same_host=True)
    assert step.blobs.gets == []
    assert totals(step) == [2] * len(KEYS)
    for _ in range(3):
        add(step)
        snapshots = step.snapshot()
    assert contents(tmp_path).items() >= left.items(), "links share their bytes with a zombie"
    step.start(parallelism, snapshots)
    assert totals(step) == [5] * len(KEYS)
    step.stop()


@pytest.mark.parametrize("parallelism", [2, 3])
def test_memory_backend_files_left_by_an_earlier_attempt_are_not_downloaded(
    tmp_path: Path, parallelism: int
) -> None:
    """Every subtask gives its file the same name, and the checksums differ."""
    step = Step(tmp_path, declare(total=ValueState(int, default=0)), backend="memory")
    step.start(2)
    add(step)
    snapshots = step.snapshot()
    step.start(parallelism, snapshots, same_host=True)
    assert step.blobs.gets == []
    assert totals(step) == [1] * len(KEYS)
    step.stop()


@pytest.mark.usefixtures("_linked_or_copied")
def test_table_restored_from_a_local_file_is_not_uploaded_again(tmp_path: Path) -> None:
    step = rocksdb_step(tmp_path)
    step.start(1)
    add(step)
    before = step.snapshot()
    step.start(1, before, same_host=True)
    step.blobs.puts.clear()
    after = step.snapshot()
    assert only(paths(before), ".sst") <= paths(after)
    assert not only(set(step.blobs.puts), ".sst")
    step.stop()


@pytest.mark.usefixtures("_linked_or_copied")
@pytest.mark.parametrize("damage", [b"", b"x", None])
def test_damaged_or_missing_local_file_is_downloaded(tmp_path: Path, damage: bytes | None) -> None:
    """Torn, altered or gone: also when every file of that name is."""
    step = rocksdb_step(tmp_path)
    step.start(1)
    add(step)
    (snapshot,) = step.snapshot()
    (table,) = [file for file in snapshot.files if file.name.endswith(".sst")]
    step.stop()
    for path in tmp_path.rglob(table.name):
        data = path.read_bytes()
        path.unlink()
        if damage is not None:
            path.write_bytes(damage + data[1:] if damage else data[:-1])
    step.start(1, [snapshot], same_host=True)
    assert step.blobs.gets == [f"{JOB}/{table.path}"]
    assert totals(step) == [1] * len(KEYS)
    step.stop()


def test_files_are_downloaded_if_a_hard_link_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    step = rocksdb_step(tmp_path)
    step.start(1)
    add(step)
    snapshots = step.snapshot()

    def refused(_path: Path, _target: Path) -> None:
        raise OSError(errno.EXDEV, "Invalid cross-device link")

    with monkeypatch.context() as patched:
        patched.setattr(local_files, "LINKED_BYTES_MIN", 0)
        patched.setattr(Path, "hardlink_to", refused)
        step.start(1, snapshots, same_host=True)
    assert set(step.blobs.gets) == {f"{JOB}/{path}" for path in paths(snapshots)}
    assert totals(step) == [1] * len(KEYS)
    step.stop()


@pytest.mark.usefixtures("_linked_or_copied")
def test_unreadable_local_file_is_downloaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A bad sector must not stop a restore that the storage can serve, nor the one after it."""
    step = rocksdb_step(tmp_path)
    step.start(1)
    add(step)
    snapshots = step.snapshot()

    def unreadable(path: Path) -> str:
        raise StorageError(f"state file {path} cannot be read: Input/output error")

    with monkeypatch.context() as patched:
        patched.setattr(local_files, "sha256_of", unreadable)
        step.start(1, snapshots, same_host=True)
    assert set(step.blobs.gets) == {f"{JOB}/{path}" for path in paths(snapshots)}
    assert totals(step) == [1] * len(KEYS)
    step.stop()


def hashed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the files whose checksum is computed by a restore from now on."""
    names: list[str] = []
    computed = local_files.sha256_of

    def noted(path: Path) -> str:
        names.append(path.name)
        return computed(path)

    monkeypatch.setattr(local_files, "sha256_of", noted)
    return names


def test_a_table_that_was_verified_on_this_host_is_not_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither when this host wrote it, nor when an earlier restore took it over."""
    monkeypatch.setattr(local_files, "LINKED_BYTES_MIN", 0)
    step = rocksdb_step(tmp_path)
    step.start(1)
    add(step)
    snapshots = step.snapshot()
    names = hashed(monkeypatch)
    for _ in range(2):
        step.start(1, snapshots, same_host=True, notes_count=True)
        snapshots = step.snapshot()
    assert not [name for name in names if name.endswith(".sst")]
    assert step.blobs.gets == []
    assert totals(step) == [1] * len(KEYS)
    step.stop()


def test_verified_note_of_an_earlier_boot_of_the_host_is_ignored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local_files, "LINKED_BYTES_MIN", 0)
    step = rocksdb_step(tmp_path)
    step.start(1)
    add(step)
    snapshots = step.snapshot()
    monkeypatch.setattr(local_files, "_boot_id", lambda: "another start")
    names = hashed(monkeypatch)
    step.start(1, snapshots, same_host=True, notes_count=True)
    assert [name for name in names if name.endswith(".sst")]
    assert step.blobs.gets == []
    step.stop()


def test_torn_verified_note_does_not_fail_the_restore(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local_files, "LINKED_BYTES_MIN", 0)
    step = rocksdb_step(tmp_path)
    step.start(1)
    add(step)
    snapshots = step.snapshot()
    notes = list(tmp_path.rglob(local_files.NOTE))
    assert notes
    for note in notes:
        note.write_bytes(note.read_bytes()[:-1])
    step.start(1, snapshots, same_host=True, notes_count=True)
    assert step.blobs.gets == []
    assert totals(step) == [1] * len(KEYS)
    step.stop()


def test_table_that_changed_after_it_was_verified_is_downloaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has its name, its inode and its size still: the time of its last change tells."""
    monkeypatch.setattr(local_files, "LINKED_BYTES_MIN", 0)
    step = rocksdb_step(tmp_path)
    step.start(1)
    add(step)
    (snapshot,) = step.snapshot()
    (table,) = [file for file in snapshot.files if file.name.endswith(".sst")]
    step.stop()
    for path in tmp_path.rglob(table.name):
        with path.open("r+b") as opened:
            opened.write(b"x")
    step.start(1, [snapshot], same_host=True, notes_count=True)
    assert step.blobs.gets == [f"{JOB}/{table.path}"]
    assert totals(step) == [1] * len(KEYS)
    step.stop()


def test_verified_note_is_ignored_by_a_restore_that_does_not_trust_notes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The restore ignores such a note, as in a slot and after a wave that failed."""
    monkeypatch.setattr(local_files, "LINKED_BYTES_MIN", 0)
    step = rocksdb_step(tmp_path)
    step.start(1)
    add(step)
    snapshots = step.snapshot()
    names = hashed(monkeypatch)
    step.start(1, snapshots, same_host=True)
    assert [name for name in names if name.endswith(".sst")]
    step.stop()
