"""The local checkpoint storage: the contract, and what only a file system can do to it."""

from __future__ import annotations

import errno
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.contracts.blobs import BlobStoreContract
from tidegate.drivers.storage import local, open_store
from tidegate.drivers.storage.local import LocalStore
from tidegate.errors import InternalError, RefusedError, StorageError
from tidegate.ports.blobs import BlobStore, CreateResult


class TestContract(BlobStoreContract):
    @pytest.fixture
    def store(self, tmp_path: Path) -> BlobStore:
        return open_store(str(tmp_path / "made" / "by" / "the" / "store"))


@pytest.fixture
def store(tmp_path: Path) -> LocalStore:
    return LocalStore(tmp_path / "store")


def _create_all(root: str, mine: bytes, rounds: int) -> list[str]:
    store = LocalStore(Path(root))
    return [store.create(f"race/{number}", mine).value for number in range(rounds)]


def test_of_eight_processes_exactly_one_creates_a_name(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    with context.Pool(8) as pool:
        jobs = [
            pool.apply_async(_create_all, (str(tmp_path / "store"), b"%d" % number, 50))
            for number in range(8)
        ]
        outcomes = [job.get(timeout=60) for job in jobs]
    for number in range(50):
        of_one = sorted(process[number] for process in outcomes)
        assert of_one == ["created"] + ["exists"] * 7


_WRITER = """
import sys, itertools
from pathlib import Path
from tidegate.drivers.storage.local import LocalStore
store = LocalStore(Path(sys.argv[1]))
print("ready", flush=True)
for n in itertools.count():
    data = bytes([65 + n % 26]) * 500_000
    store.put("hot", data)
    store.create(f"journal/{n}", data)
"""


def until_it_holds(folder: Path, files: int) -> None:
    until = time.monotonic() + 60.0
    while not folder.is_dir() or len(list(folder.iterdir())) < files:
        assert time.monotonic() < until
        time.sleep(0.001)


def test_a_kill_in_the_middle_of_writing_leaves_whole_files(tmp_path: Path) -> None:
    seen = 0
    for round_ in range(8):
        root = tmp_path / str(round_)
        writer = subprocess.Popen(
            [sys.executable, "-c", _WRITER, str(root)],
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        )
        assert writer.stdout is not None
        writer.stdout.readline()
        until_it_holds(root / "journal", round_ + 1)
        time.sleep(0.011 * round_)
        writer.send_signal(signal.SIGKILL)
        writer.wait()
        writer.stdout.close()
        store = LocalStore(root)
        for path in [*store.list("journal"), "hot"]:
            data = store.get(path)
            if data is None:
                assert path == "hot"
                continue
            seen += 1
            assert len(data) == 500_000
            assert len(set(data)) == 1
    assert seen > 8


def test_every_name_is_synced_after_its_content_and_folders_into_their_parents(
    store: LocalStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[str] = []
    fsync = os.fsync

    def record(descriptor: int) -> None:
        path = Path(f"/proc/self/fd/{descriptor}").resolve()
        synced.append("content" if path.is_file() else path.relative_to(tmp_path).as_posix())
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", record)
    store.create("job/journal/1", b"data")
    assert synced == [".", "store", "content", "store", "store/job", "store/job/journal"]
    synced.clear()
    store.create("job/journal/1", b"data")
    assert synced == ["content", "store/job/journal"], "what exists is on disk before it is told"
    synced.clear()
    store.put("job/journal/1", b"data")
    assert synced == ["content", "store/job/journal"]


def _failing(number: int, *, after: bool = False) -> object:
    link = os.link

    def fail(source: Path, target: Path) -> None:
        if after:
            link(source, target)
        raise OSError(number, os.strerror(number))

    return fail


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EACCES, errno.EPERM, errno.EROFS])
def test_create_that_certainly_failed_raises_storage_error_with_its_path(
    store: LocalStore, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    monkeypatch.setattr(os, "link", _failing(number))
    with pytest.raises(StorageError, match="store/job/journal/1"):
        store.create("job/journal/1", b"data")
    monkeypatch.undo()
    assert store.get("job/journal/1") is None


def test_a_create_of_uncertain_outcome_is_unknown(
    store: LocalStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "link", _failing(errno.EIO, after=True))
    assert store.create("a", b"data") is CreateResult.UNKNOWN
    monkeypatch.undo()
    assert store.create("a", b"data") is CreateResult.EXISTS


def test_create_returns_unknown_if_the_folder_sync_fails(
    store: LocalStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.put("x", b"")

    def fail(folder: Path) -> None:
        raise OSError(errno.EIO, f"no sync of {folder}")

    monkeypatch.setattr(local, "_sync_folder", fail)
    assert store.create("a", b"data") is CreateResult.UNKNOWN


def test_full_disk_error_contains_the_remedy_and_leaves_no_temporary_file(
    store: LocalStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(local, "_sync", full)
    (tmp_path / "store" / ".temporary").mkdir(parents=True)
    with pytest.raises(StorageError, match="disk is full: make room"):
        store.put("a", b"data")
    assert list((tmp_path / "store").rglob("*")) == [tmp_path / "store" / ".temporary"]


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_folder_without_write_permission_raises_storage_error(tmp_path: Path) -> None:
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o500)
    with pytest.raises(StorageError, match="permission denied"):
        LocalStore(closed / "store").probe()


def test_file_at_the_path_of_the_store_raises_storage_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    store = LocalStore(tmp_path / "file")
    with pytest.raises(StorageError, match="file"):
        store.put("a", b"")
    with pytest.raises(StorageError, match="file"):
        store.get("a")


def test_path_that_leaves_the_root_or_is_malformed_raises_internal_error(store: LocalStore) -> None:
    for path in ("../x", "a/../x", "/x", "a//b", "", ".", "a/.", ".temporary/x", "a b", "ä"):
        with pytest.raises(InternalError):
            store.get(path)


def test_the_probe_refuses_a_store_that_creates_a_name_twice(
    store: LocalStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    def overwrite(source: Path, target: Path) -> None:
        Path(target).write_bytes(Path(source).read_bytes())

    monkeypatch.setattr(os, "link", overwrite)
    with pytest.raises(RefusedError, match="cannot hold a job's journal"):
        store.probe()


def test_the_probe_removes_temporary_files_of_killed_processes(
    store: LocalStore, tmp_path: Path
) -> None:
    store.put("a", b"")
    old, young = (tmp_path / "store" / ".temporary" / name for name in ("old", "young"))
    for file in (old, young):
        file.write_bytes(b"half")
    os.utime(old, (time.time() - 90_000,) * 2)
    store.probe()
    assert not old.exists()
    assert young.exists()
    assert store.list("") == ["a"]


@pytest.fixture
def open_umask() -> Iterator[None]:
    before = os.umask(0)
    yield
    os.umask(before)


@pytest.mark.usefixtures("open_umask")
def test_everything_that_is_stored_is_for_its_owner_only(store: LocalStore, tmp_path: Path) -> None:
    (tmp_path / "table").write_bytes(b"rows")
    store.create("job/journal/1", b"entry")
    store.put("job/manifests/1", b"manifest")
    store.put_file("job/files/1", tmp_path / "table")
    store.get_file("job/files/1", tmp_path / "fetched")
    made = [tmp_path / "store", *(tmp_path / "store").rglob("*"), tmp_path / "fetched"]
    modes = {path: path.stat().st_mode & 0o777 for path in made}
    assert modes == {path: 0o700 if path.is_dir() else 0o600 for path in made}
    assert len(made) == 10


JOB_FOLDERS = [
    "job/journal/00000000000000000007.json",
    "claimed/journal/00000000000000000007.hint",
    "saved/manifests/1-7.json",
    "submitted/submissions/00000000000000000001/submission.json",
]
OUR_FOLDERS = ["_cluster/main/jobs/job", "_storage/id", ".temporary/1-abc"]
FOREIGN_FOLDERS = [
    "public_html/index.html",
    "notes/journal/2024-05-01.md",
    "ships/manifests/cargo.json",
    "course/submissions/exercise-1/answer.txt",
    "_static/id",
    "probe/sample",
]


def opened(root: Path, *files: str) -> list[Path]:
    """Files in folders that others may read: the folders directly below the root."""
    made = []
    for file in (root / each for each in files):
        file.parent.mkdir(parents=True, mode=0o755)
        file.write_bytes(b"1")
        made.append(root / file.relative_to(root).parts[0])
        made[-1].chmod(0o755)
    return made


def mode(path: Path) -> int:
    return path.stat().st_mode & 0o777


@pytest.mark.usefixtures("open_umask")
def test_probe_makes_the_folders_of_an_older_version_private(
    store: LocalStore, tmp_path: Path
) -> None:
    root = tmp_path / "store"
    root.mkdir(mode=0o755)
    ours = opened(root, *JOB_FOLDERS, *OUR_FOLDERS)
    store.probe()
    assert {path.name: mode(path) for path in ours} == {path.name: 0o700 for path in ours}
    assert mode(root) == 0o755, "the root may be shared on purpose"


@pytest.mark.usefixtures("open_umask")
def test_probe_does_not_change_the_mode_of_foreign_folders(
    store: LocalStore, tmp_path: Path
) -> None:
    """A home folder or a folder of data may be the storage: what others share there stays open."""
    root = tmp_path / "store"
    foreign = opened(root, *FOREIGN_FOLDERS)
    (root / "linked").symlink_to(opened(tmp_path / "outside", JOB_FOLDERS[0])[0])
    (root / "file").write_bytes(b"1")
    store.probe()
    assert {path.name: mode(path) for path in foreign} == {path.name: 0o755 for path in foreign}
    assert mode(root / "linked") == 0o755, "a link leads to a folder that lies elsewhere"
