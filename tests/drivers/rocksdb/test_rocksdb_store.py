"""The RocksDB key-value store: the contract, what a checkpoint shares, and its errors."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from tests.contracts.kv import KeyValueStoreContract, Open
from tidegate.drivers.rocksdb import RocksDBStore, changelog, store
from tidegate.errors import StorageError


class TestRocksDBStore(KeyValueStoreContract):
    @pytest.fixture
    def open_store(self) -> Open:
        return RocksDBStore

    def test_full_checkpoints_share_their_tables_by_hard_links(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(changelog, "SEGMENTS_MAX", 0)
        rocks = RocksDBStore(tmp_path / "store")
        rocks.write([(b"a", b"1")], [])
        first = {file.name: file.stat() for file in rocks.checkpoint().files()}
        rocks.write([(b"b", b"2")], [])
        second = {file.name: file.stat() for file in rocks.checkpoint().files()}
        (table,) = [name for name in first if name.endswith(".sst")]
        assert second[table].st_ino == first[table].st_ino
        rocks.close()

    def test_checkpoint_contains_no_log_or_options_file(self, tmp_path: Path) -> None:
        rocks = RocksDBStore(tmp_path / "store")
        rocks.write([(b"a", b"1")], [])
        files = rocks.checkpoint().files()
        names = {file.name.split("-")[0] for file in files}
        assert {name for name in names if not name.endswith(".sst")} == {
            "CURRENT.1",
            "MANIFEST",
            "rocksdict",
        }
        rocks.close()

    def test_writes_leave_the_write_ahead_log_empty(self, tmp_path: Path) -> None:
        rocks = RocksDBStore(tmp_path / "store")
        rocks.write([(bytes([n]), b"x" * 1000) for n in range(100)], [])
        assert all(log.stat().st_size == 0 for log in (tmp_path / "store").glob("*.log"))
        rocks.close()

    def test_closed_store_raises_storage_error(self, tmp_path: Path) -> None:
        rocks = RocksDBStore(tmp_path / "store")
        rocks.close()
        with pytest.raises(StorageError, match="could not read"):
            rocks.get_many([b"a"])
        with pytest.raises(StorageError, match="could not write"):
            rocks.write([(b"a", b"1")], [])
        with pytest.raises(StorageError, match="could not scan"):
            rocks.scan(b"a", b"b")

    def test_full_disk_error_contains_the_folder_and_the_remedy(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        class FullDisk:
            def __init__(self, db: object) -> None:
                pass

            def create_checkpoint(self, path: str) -> None:
                raise OSError(f"IO error: No space left on device: While appending: {path}")

        rocks = RocksDBStore(tmp_path / "store")
        monkeypatch.setattr(store, "Checkpoint", FullDisk)
        with pytest.raises(
            StorageError, match=r"store could not checkpoint: .*disk is full.*state"
        ):
            rocks.checkpoint().files()
        rocks.close()

    def test_failed_flush_is_reported_by_files_without_a_wait(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A full disk has the same effect: RocksDB's threads cannot make the table."""
        rocks = RocksDBStore(tmp_path / "store")
        rocks.write([(b"a", b"1")], [])
        (tmp_path / "store").rename(tmp_path / "gone")
        begun_s = time.monotonic()
        with pytest.raises(StorageError, match="could not checkpoint"):
            rocks.checkpoint().files()
        assert time.monotonic() - begun_s < store.FLUSH_WAIT_S_MAX / 2

    def test_checkpoint_files_are_refused_after_the_store_is_closed(self, tmp_path: Path) -> None:
        rocks = RocksDBStore(tmp_path / "store")
        rocks.write([(b"a", b"1")], [])
        frozen = rocks.checkpoint()
        rocks.close()
        with pytest.raises(StorageError, match="was closed before"):
            frozen.files()
        assert not list(tmp_path.rglob("CURRENT.1"))
