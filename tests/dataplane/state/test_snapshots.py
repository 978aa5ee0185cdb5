"""The upload and the restore of snapshots: which files are sent, shared and refused."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import msgspec
import pytest

from tests.dataplane.state.blobs import MemoryBlobs
from tests.dataplane.state.job import JOB, MAX_PARALLELISM, UID, Step, declare, open_store
from tests.dataplane.state.totals import KEYS, add, only, paths, rocksdb_step, totals
from tidegate.api.state.state import ValueState
from tidegate.dataplane.state.layout import groups_span
from tidegate.dataplane.state.local_files import LocalStateFiles
from tidegate.dataplane.state.snapshots import RestoredStore, SnapshotUploader, restore
from tidegate.drivers.rocksdb import changelog
from tidegate.errors import CorruptCheckpointError, InternalError, StorageError
from tidegate.graph.key_groups import key_group
from tidegate.ids import Attempt, SubtaskId, SubtaskIndex, VertexId
from tidegate.protocol.subtask_snapshot import KeyedSnapshot, StateFile


@pytest.fixture(params=["memory", "rocksdb"])
def step(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Step]:
    states = declare(total=ValueState(int, default=0))
    step = Step(tmp_path, states, backend=request.param, cache_entries=100)
    yield step
    step.stop()


# --- upload -------------------------------------------------------------------------------------


def test_path_of_a_state_file_has_attempt_vertex_subtask_and_uid(step: Step) -> None:
    step.start(2)
    add(step)
    for index, snapshot in enumerate(step.snapshot()):
        assert snapshot.uid == UID
        assert (snapshot.first_key_group, snapshot.last_key_group) == (index * 4, index * 4 + 3)
        for file in snapshot.files:
            assert file.path.startswith(f"files/1/v/{index}/running-total/{file.name}")
            assert len(step.blobs.objects[f"{JOB}/{file.path}"]) == file.size
    assert set(step.blobs.puts) == set(step.blobs.objects)


def test_no_storage_path_is_uploaded_twice(step: Step) -> None:
    step.start(1)
    for _ in range(5):
        add(step)
        step.snapshot()
    assert len(step.blobs.puts) == len(set(step.blobs.puts))


def test_sst_table_is_uploaded_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(changelog, "SEGMENTS_MAX", 0)
    step = rocksdb_step(tmp_path)
    step.start(1)
    add(step)
    first = only(paths(step.snapshot()), ".sst")
    add(step)
    second = only(paths(step.snapshot()), ".sst")
    assert first < second
    assert len(only(set(step.blobs.puts), ".sst")) == len(second)
    step.stop()


def test_only_changelog_segments_are_uploaded_between_full_checkpoints(tmp_path: Path) -> None:
    step = rocksdb_step(tmp_path)
    step.start(1)
    add(step)
    first = paths(step.snapshot())
    for number in (1, 2):
        add(step)
        snapshot = step.snapshot()
        segments = {f"files/1/v/0/running-total/segment-{n:04}.1" for n in range(1, number + 1)}
        assert paths(snapshot) == first | segments
        assert len(set(step.blobs.puts)) == len(first) + number
    step.start(2, snapshot)
    assert totals(step) == [3] * len(KEYS)
    step.stop()


def test_tables_uploaded_for_a_failed_checkpoint_are_not_uploaded_again(tmp_path: Path) -> None:
    step = rocksdb_step(tmp_path)
    step.start(1)
    add(step)
    step.blobs.failing = "CURRENT.1"  # CURRENT is sent before the manifest, after the tables
    with pytest.raises(StorageError):
        step.snapshot()
    step.blobs.failing = ""
    sent = only(set(step.blobs.puts), ".sst")
    assert sent
    snapshots = step.snapshot()
    assert {f"{JOB}/{path}" for path in only(paths(snapshots), ".sst")} == sent
    step.start(2, snapshots)
    assert totals(step) == [1] * len(KEYS)
    step.stop()


def uploader(blobs: MemoryBlobs, run: str = "") -> SnapshotUploader:
    return SnapshotUploader(
        blobs=blobs,
        job=JOB,
        attempt=Attempt(1),
        subtask=SubtaskId(VertexId("v"), SubtaskIndex(0)),
        uid=UID,
        backend="rocksdb",
        key_groups=range(8),
        shared={},
        run=run,
    )


def upload(one: SnapshotUploader, folder: Path, counter: int, **files: str) -> KeyedSnapshot:
    directory = folder / str(counter)
    directory.mkdir()
    for name, content in files.items():
        (directory / name).write_text(content)
    listed = sorted(directory.iterdir())
    return one.upload(SimpleNamespace(files=lambda: listed), {}, {})


def test_two_runs_of_a_subtask_store_no_file_under_the_same_path(tmp_path: Path) -> None:
    """A copy of a task may upload after the other one is published."""
    blobs = MemoryBlobs()
    first = upload(uploader(blobs, run="a"), tmp_path, 1, **{"1.sst": "published"})
    second = upload(uploader(blobs, run="b"), tmp_path, 2, **{"1.sst": "of a zombie"})
    assert not paths([first]) & paths([second])
    (file,) = first.files
    assert blobs.get(f"{JOB}/{file.path}") == b"published"


def test_file_name_with_other_content_is_refused_and_overwrites_no_file(tmp_path: Path) -> None:
    blobs = MemoryBlobs()
    one = uploader(blobs)
    upload(one, tmp_path, 1, table="old")
    for counter, content in ((2, "new"), (3, "longer")):
        with pytest.raises(InternalError, match="used the name table again"):
            upload(one, tmp_path, counter, table=content)
    assert list(blobs.objects.values()) == [b"old"]


def test_copy_of_an_uploaded_file_is_not_uploaded_again(tmp_path: Path) -> None:
    blobs = MemoryBlobs()
    one = uploader(blobs)
    assert upload(one, tmp_path, 1, table="old") == upload(one, tmp_path, 2, table="old")
    assert len(blobs.puts) == 1


def test_uploaded_file_is_not_read_again_even_if_it_was_removed_locally(tmp_path: Path) -> None:
    """A file that was uploaded is not missed if it was removed locally: the storage has it."""
    blobs = MemoryBlobs()
    one = uploader(blobs)
    table = tmp_path / "table"
    table.write_text("old")
    first = one.upload(SimpleNamespace(files=lambda: [table]), {}, {})
    table.unlink()
    assert one.upload(SimpleNamespace(files=lambda: [table]), {}, {}) == first
    linked = upload(one, tmp_path, 1, table="old", other="x")
    for path in (tmp_path / "1").iterdir():
        path.unlink()
    again = one.upload(
        SimpleNamespace(files=lambda: [tmp_path / "1" / "other", tmp_path / "1" / "table"]), {}, {}
    )
    assert again == linked
    with pytest.raises(StorageError, match="cannot be read"):
        one.upload(SimpleNamespace(files=lambda: [tmp_path / "new"]), {}, {})


def test_uploader_remembers_only_files_of_the_last_checkpoint(tmp_path: Path) -> None:
    one = uploader(MemoryBlobs())
    for counter in range(1, 20):
        upload(one, tmp_path, counter, **{f"table-{counter}": "x", "always": "c"})
    assert set(one._shared) == {"always", "table-19"}


# --- restore ------------------------------------------------------------------------------------


@pytest.mark.parametrize("parallelism", [1, 2, 3, 8])
def test_restore_at_another_parallelism_has_each_key_once(step: Step, parallelism: int) -> None:
    step.start(3)
    add(step)
    step.start(parallelism, step.snapshot())
    assert totals(step) == [1] * len(KEYS)
    stored = [dict(one._store.scan(b"", b"\xff")) for one in step.subtasks]
    assert sum(map(len, stored)) == len(KEYS)
    for state, pairs in zip(step.subtasks, stored, strict=True):
        assert {int.from_bytes(key[:2], "big") for key in pairs} <= set(state._key_groups)


def test_restore_keeps_no_row_outside_its_key_groups(step: Step) -> None:
    """One old subtask with all groups, two new ones with half: nothing is there twice."""
    step.start(1)
    add(step)
    step.start(2, step.snapshot())
    for state in step.subtasks:
        first, end = groups_span(range(MAX_PARALLELISM))
        for store_key, _ in state._store.scan(first, end):
            assert int.from_bytes(store_key[:2], "big") in state._key_groups


def test_tables_are_shared_across_attempts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(changelog, "SEGMENTS_MAX", 0)
    step = rocksdb_step(tmp_path)
    step.start(2)
    add(step)
    before = step.snapshot()
    sent = len(only(set(step.blobs.puts), ".sst"))
    step.start(2, before)
    after = step.snapshot()
    assert only(paths(after), ".sst") == only(paths(before), ".sst")
    assert len(only(set(step.blobs.puts), ".sst")) == sent
    add(step)
    third = step.snapshot()
    new = only(paths(third), ".sst") - only(paths(before), ".sst")
    assert {path.split("/")[1] for path in new} == {"2"}
    step.start(3, third)
    assert totals(step) == [2] * len(KEYS)
    step.stop()


def test_tables_of_two_attempts_with_the_same_rocksdb_number_do_not_collide(tmp_path: Path) -> None:
    """Two attempts restore the same checkpoint and continue differently. RocksDB numbers their
    tables the same.
    """
    step = rocksdb_step(tmp_path)
    step.start(1)
    add(step)
    base = step.snapshot()
    ends = []
    for amount in (10, 200):
        step.start(1, base)
        add(step, amount)
        ends.append(step.snapshot())
    for amount, snapshots in zip((10, 200), ends, strict=True):
        step.start(1, snapshots)
        assert totals(step) == [1 + amount] * len(KEYS)
    step.stop()


def test_snapshot_of_another_backend_is_restored_by_copying(step: Step) -> None:
    step.start(2)
    add(step)
    snapshots = step.snapshot()
    step.backend = "rocksdb" if step.backend == "memory" else "memory"
    step.start(2, snapshots)
    assert totals(step) == [1] * len(KEYS)
    assert {one.backend for one in step.snapshot()} == {step.backend}


def test_files_downloaded_for_a_restore_are_removed(step: Step, tmp_path: Path) -> None:
    step.start(2)
    add(step)
    step.start(3, step.snapshot())
    assert not list(tmp_path.glob("*/restore-*"))


def restore_one(
    step: Step, snapshots: list[KeyedSnapshot], groups: range, at: Path
) -> RestoredStore:
    return restore(
        snapshots,
        uid=UID,
        key_groups=groups,
        backend=step.backend,
        job=JOB,
        blobs=step.blobs,
        local=LocalStateFiles(),
        directory=at,
        open_store=open_store,
    )


@pytest.mark.parametrize("groups", [range(8), range(2)])
def test_restore_refuses_and_names_an_altered_or_missing_file(
    step: Step, tmp_path: Path, groups: range
) -> None:
    step.start(1)
    add(step)
    (snapshot,) = step.snapshot()
    for number, file in enumerate(snapshot.files):
        path = f"{JOB}/{file.path}"
        kept = step.blobs.objects[path]
        step.blobs.objects[path] = kept[:-1] + bytes([kept[-1] ^ 1])
        with pytest.raises(CorruptCheckpointError, match=f"{file.path}.*fails its checksum"):
            restore_one(step, [snapshot], groups, tmp_path / f"altered-{number}")
        step.blobs.objects[path] = kept + b"!"
        with pytest.raises(CorruptCheckpointError, match=f"{file.path}.*bytes instead of"):
            restore_one(step, [snapshot], groups, tmp_path / f"longer-{number}")
        del step.blobs.objects[path]
        with pytest.raises(CorruptCheckpointError, match=f"{file.path}.*is missing"):
            restore_one(step, [snapshot], groups, tmp_path / f"missing-{number}")
        step.blobs.objects[path] = kept


def test_key_groups_without_an_owner_or_with_two_are_refused(step: Step, tmp_path: Path) -> None:
    step.start(2)
    add(step)
    low, high = step.snapshot()
    with pytest.raises(CorruptCheckpointError, match=r"groups \[4, 5, 6, 7\]"):
        restore_one(step, [low], range(8), tmp_path / "lost")
    with pytest.raises(CorruptCheckpointError, match=r"groups \[0, 1, 2, 3\]"):
        restore_one(step, [low, low, high], range(8), tmp_path / "doubled")
    restore_one(step, [high], range(4, 8), tmp_path / "one").store.close()


def test_subtasks_that_state_different_schemas_are_refused(step: Step, tmp_path: Path) -> None:
    step.start(2)
    low, high = step.snapshot()
    high = msgspec.structs.replace(high, schemas={"total": ['"string"']})
    with pytest.raises(CorruptCheckpointError, match="different schemas"):
        restore_one(step, [low, high], range(8), tmp_path / "r")


def test_restore_refuses_a_file_name_that_leaves_its_folder(step: Step, tmp_path: Path) -> None:
    step.blobs.objects[f"{JOB}/evil"] = b""
    evil = StateFile(name="../evil", path="evil", size=0, sha256="")
    snapshot = KeyedSnapshot(
        uid=UID, backend="memory", first_key_group=0, last_key_group=7, files=(evil,), schemas={}
    )
    with pytest.raises(InternalError, match="leaves its folder"):
        restore_one(step, [snapshot], range(8), tmp_path / "r")


def test_restore_without_snapshots_gives_an_empty_store(step: Step, tmp_path: Path) -> None:
    fresh = restore_one(step, [], range(8), tmp_path / "fresh")
    assert list(fresh.store.scan(b"", b"\xff")) == []
    assert not fresh.schemas
    assert not fresh.shared
    fresh.store.close()


def test_the_keys_of_these_tests_are_in_all_key_groups() -> None:
    assert {key_group(key.encode(), MAX_PARALLELISM) for key in KEYS} == set(range(8))
