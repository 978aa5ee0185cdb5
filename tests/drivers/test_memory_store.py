"""The in-memory key-value store: the contract, and its file."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from tests.contracts.kv import KeyValueStoreContract, Open
from tidegate.drivers.memory import store as memory_store
from tidegate.drivers.memory.store import MemoryStore
from tidegate.drivers.system import SystemDrivers
from tidegate.errors import ConfigError, CorruptCheckpointError, StorageError


class TestMemoryStore(KeyValueStoreContract):
    @pytest.fixture
    def open_store(self) -> Open:
        return MemoryStore

    def test_checkpoint_file_format_stays_compatible_with_old_checkpoints(
        self, tmp_path: Path
    ) -> None:
        store = MemoryStore(tmp_path / "store")
        store.write([(b"b", b"2"), (b"a", b"1")], [])
        (file,) = store.checkpoint().files()
        assert file.name == "memory-1.kv"
        assert file.read_bytes() == bytes.fromhex("93 01 92 c40161 c40162 92 c40131 c40132")

    def test_checkpoint_file_without_a_number_of_an_older_version_is_read(
        self, tmp_path: Path
    ) -> None:
        (tmp_path / "memory.kv").write_bytes(bytes.fromhex("93 01 91 c40161 91 c40131"))
        store = MemoryStore(tmp_path)
        assert store.get_many([b"a"]) == [b"1"]
        (file,) = store.checkpoint().files()
        assert file.name == "memory-1.kv"

    def test_checkpoint_file_torn_by_a_full_disk_is_written_again(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        store = MemoryStore(tmp_path / "store")
        store.write([(b"a", b"1")], [])
        frozen = store.checkpoint()

        def full_disk(path: Path, _data: bytes) -> None:
            path.touch()
            raise OSError(28, "No space left on device")

        with monkeypatch.context() as disk:
            disk.setattr(memory_store, "write_private", full_disk)
            with pytest.raises(StorageError, match=r"could not checkpoint: .*No space"):
                frozen.files()
        (file,) = frozen.files()
        assert file.read_bytes() == bytes.fromhex("93 01 91 c40161 91 c40131")

    @pytest.mark.parametrize("data", [b"", b"\xc1", msgspec.msgpack.encode([2, [], []])])
    def test_invalid_checkpoint_file_is_refused(self, tmp_path: Path, data: bytes) -> None:
        (tmp_path / "memory-7.kv").write_bytes(data)
        with pytest.raises(CorruptCheckpointError, match=r"memory-7\.kv holds"):
            MemoryStore(tmp_path)


def test_unknown_state_backend_is_refused(tmp_path: Path) -> None:
    assert isinstance(SystemDrivers().kv_store("memory", tmp_path), MemoryStore)
    with pytest.raises(ConfigError, match=r"'disk' is unknown: choose 'rocksdb' or 'memory'"):
        SystemDrivers().kv_store("disk", tmp_path)
