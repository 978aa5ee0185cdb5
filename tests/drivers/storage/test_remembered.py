"""A host remembers which checkpoint storage lies at a path."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from tidegate.drivers.storage.remembered import RememberedStorage
from tidegate.errors import CorruptCheckpointError

ONE, TWO, THREE = (digit * 16 for digit in "123")


def test_host_remembers_the_last_storage_id_of_each_path(tmp_path: Path) -> None:
    here, there = RememberedStorage(tmp_path, "/a"), RememberedStorage(tmp_path, "/b")
    assert (here.read(), there.read()) == ("", "")
    here.write(ONE)
    there.write(TWO)
    here.write(THREE)
    assert (RememberedStorage(tmp_path, "/a").read(), there.read()) == (THREE, TWO)
    assert stat.S_IMODE(here.file.stat().st_mode) == 0o600


def test_an_object_store_is_not_remembered(tmp_path: Path) -> None:
    store = RememberedStorage(tmp_path, "s3://bucket/folder")
    store.write(ONE)
    assert store.read() == ""
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("damaged", [b"", b"\0" * 16, b"\xff"], ids=repr)
def test_damaged_remembered_storage_id_raises_corrupt_checkpoint_error(
    tmp_path: Path, damaged: bytes
) -> None:
    """The host would take an unmounted folder for a new storage."""
    store = RememberedStorage(tmp_path, "/a")
    store.write(ONE)
    store.file.write_bytes(damaged)
    with pytest.raises(
        CorruptCheckpointError, match=r"at /a, is damaged.*delete the file"
    ) as failed:
        store.read()
    assert str(store.file) in str(failed.value)
