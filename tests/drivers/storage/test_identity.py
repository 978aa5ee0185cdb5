"""A local storage that vanishes or is replaced: nothing is written, nothing counts as missing."""

from __future__ import annotations

import errno
import io
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from tidegate.drivers.storage import open_store
from tidegate.drivers.storage.identity import IDENTITY
from tidegate.drivers.storage.local import LocalStore
from tidegate.errors import CorruptCheckpointError, StorageError, StorageGoneError
from tidegate.ports.blobs import BlobStore, CreateResult

ENTRY = "job/journal/1"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "store"


@pytest.fixture
def store(root: Path) -> LocalStore:
    made = LocalStore(root)
    made.identify()
    made.create(ENTRY, b"entry")
    return made


CALLS: dict[str, Callable[[LocalStore, Path], object]] = {
    "create": lambda store, _: store.create("job/journal/2", b"2"),
    "put": lambda store, _: store.put("job/manifests/1", b"1"),
    "put_file": lambda store, file: store.put_file("job/files/1", file),
    "get": lambda store, _: store.get(ENTRY),
    "get_file": lambda store, file: store.get_file(ENTRY, file.with_name("fetched")),
    "list": lambda store, _: store.list("job/journal"),
    "delete": lambda store, _: store.delete(ENTRY),
    "confirm": lambda store, _: store.confirm(),
}


@pytest.fixture(params=CALLS)
def call(request: pytest.FixtureRequest, store: LocalStore, tmp_path: Path) -> Callable[[], object]:
    """One call of the storage."""
    (tmp_path / "file").write_bytes(b"1")
    return lambda: CALLS[request.param](store, tmp_path / "file")


@pytest.fixture
def unmounted(root: Path, call: object) -> Path:
    """Where the storage is now; nothing is at its path."""
    return root.rename(root.with_name("unmounted"))


def test_call_on_a_missing_storage_raises_storage_gone_and_does_not_create_it(
    root: Path, call: Callable[[], object], unmounted: Path
) -> None:
    with pytest.raises(StorageGoneError, match=f"The checkpoint storage {root} is gone"):
        call()
    assert not root.exists()
    unmounted.rename(root)
    call()


@pytest.mark.usefixtures("unmounted")
def test_call_writes_nothing_below_an_empty_mount_point(
    root: Path, call: Callable[[], object]
) -> None:
    root.mkdir()
    with pytest.raises(StorageGoneError, match="does not exist"):
        call()
    assert list(root.iterdir()) == []


@pytest.mark.usefixtures("unmounted")
def test_a_second_storage_behind_the_same_path_is_refused(
    root: Path, call: Callable[[], object]
) -> None:
    second = LocalStore(root)
    second.identify()
    second.create(ENTRY, b"another entry")
    before = sorted(root.rglob("*"))
    with pytest.raises(StorageGoneError, match="another storage is there"):
        call()
    assert sorted(root.rglob("*")) == before


LOST = [errno.ESTALE, errno.ENODEV, errno.ENXIO, errno.ENOTCONN, errno.EIO]
"""Errors of a mounted file system whose server, device or program has gone."""


@pytest.mark.parametrize("number", LOST, ids=errno.errorcode.get)
def test_file_system_that_lost_its_server_or_device_raises_storage_gone(
    root: Path, monkeypatch: pytest.MonkeyPatch, call: Callable[[], object], number: int
) -> None:
    break_reads_of(root, number, monkeypatch)
    with pytest.raises(StorageGoneError, match=rf"{root} is gone.*{os.strerror(number)}"):
        call()
    monkeypatch.undo()
    call()


@pytest.mark.parametrize("call", ["get", "get_file", "list"], indirect=True)
def test_one_object_that_cannot_be_read_does_not_make_the_storage_gone(
    root: Path, monkeypatch: pytest.MonkeyPatch, call: Callable[[], object]
) -> None:
    """A bad sector, say: the identity can be read."""
    break_reads_of(root / "job", errno.EIO, monkeypatch)
    with pytest.raises(StorageError, match=os.strerror(errno.EIO)) as failed:
        call()
    assert type(failed.value) is StorageError


def break_reads_of(folder: Path, number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the system fail to open or to list what lies below a folder."""

    def failing(call: Callable[..., object]) -> Callable[..., object]:
        def fail(path: object, *args: object, **options: object) -> object:
            if isinstance(path, str | Path) and Path(path).is_relative_to(folder):
                raise OSError(number, os.strerror(number), str(path))
            return call(path, *args, **options)

        return fail

    monkeypatch.setattr(io, "open", failing(io.open))  # as pathlib calls it
    monkeypatch.setattr(os, "scandir", failing(os.scandir))


def test_create_returns_unknown_if_the_storage_vanishes_meanwhile(
    store: LocalStore, root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    link = os.link

    def vanish(source: Path, target: Path) -> None:
        link(source, target)
        root.rename(tmp_path / "unmounted")
        (root / "job" / "journal").mkdir(parents=True)

    monkeypatch.setattr(os, "link", vanish)
    assert store.create("job/journal/2", b"2") is CreateResult.UNKNOWN


def test_two_stores_of_one_folder_have_the_same_identity(root: Path) -> None:
    first, second = LocalStore(root), LocalStore(root)
    assert first.identify() == second.identify()
    assert (root / "_storage" / "id").read_text() == first.identify()


DAMAGED = [b"", b"\n", b"\0" * 16, b"\xff\xfe", b"0123456789", b"0123456789abcdef" * 20]
"""Contents of an id that a crash, a full disk or an editor may leave."""


@pytest.fixture(params=["folder", "object store"])
def any_store(request: pytest.FixtureRequest, root: Path) -> BlobStore:
    return open_store(str(root) if request.param == "folder" else "memory:///")


@pytest.mark.parametrize("damaged", DAMAGED, ids=lambda data: repr(data)[:20])
def test_damaged_identity_file_is_refused_and_not_overwritten(
    any_store: BlobStore, damaged: bytes
) -> None:
    """An empty id would mean that any storage is the right one."""
    any_store.put(IDENTITY, damaged)
    with pytest.raises(CorruptCheckpointError, match=f"{IDENTITY} in it is damaged") as failed:
        any_store.identify()
    assert repr(damaged[:40]) in str(failed.value)
    assert "Restore this file from a backup" in str(failed.value)
    assert any_store.get(IDENTITY) == damaged, "nobody has written over it"


@pytest.mark.parametrize("damaged", DAMAGED, ids=lambda data: repr(data)[:20])
def test_storage_counts_as_gone_until_a_damaged_identity_file_is_repaired(
    any_store: BlobStore, damaged: bytes
) -> None:
    identity = any_store.identify()
    any_store.bind("")
    any_store.put(IDENTITY, damaged)
    any_store.bind(identity)
    remedy = f"write its id, {identity}, into that file"
    with pytest.raises(StorageGoneError, match=f"{IDENTITY} in it is damaged.*{remedy}"):
        any_store.confirm()
    any_store.bind("")
    any_store.put(IDENTITY, f"{identity}\n".encode())
    any_store.bind(identity)
    any_store.confirm()
    assert any_store.identify() == identity


def test_call_writes_nothing_while_the_identity_file_is_damaged(
    root: Path, call: Callable[[], object]
) -> None:
    (root / IDENTITY).write_bytes(b"\xff")
    before = sorted(root.rglob("*"))
    with pytest.raises(StorageGoneError, match="is damaged"):
        call()
    assert sorted(root.rglob("*")) == before
