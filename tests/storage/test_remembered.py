"""A host remembers which checkpoint storage lies at a path."""

from __future__ import annotations

import stat
from pathlib import Path

from tidegate.drivers.storage.remembered import RememberedStorage


def test_each_path_has_an_id_of_its_own_and_the_last_one_counts(tmp_path: Path) -> None:
    here, there = RememberedStorage(tmp_path, "/a"), RememberedStorage(tmp_path, "/b")
    assert (here.read(), there.read()) == ("", "")
    here.write("one")
    there.write("two")
    here.write("three")
    assert (RememberedStorage(tmp_path, "/a").read(), there.read()) == ("three", "two")
    assert stat.S_IMODE(here.file.stat().st_mode) == 0o600


def test_an_object_store_is_not_remembered(tmp_path: Path) -> None:
    store = RememberedStorage(tmp_path, "s3://bucket/folder")
    store.write("one")
    assert store.read() == ""
    assert list(tmp_path.iterdir()) == []
