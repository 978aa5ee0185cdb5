"""The contract of `ports/kv.py`: what every key-value store does.

A test class of a driver inherits it and says how a store is opened. No test of its own runs from
here.
"""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tidegate.errors import StorageError
from tidegate.ports.kv import KeyValueStore

Open = Callable[[Path], KeyValueStore]


def laid_out(files: Iterable[Path], directory: Path) -> Path:
    """The files of a checkpoint in a folder of their own, as a restore has them."""
    directory.mkdir()
    for file in files:
        shutil.copy(file, directory / file.name)
    return directory


class KeyValueStoreContract:
    """Inherit, and override the fixture `open_store`."""

    @pytest.fixture
    def open_store(self) -> Open:
        raise NotImplementedError

    @pytest.fixture
    def store(self, open_store: Open, tmp_path: Path) -> Iterator[KeyValueStore]:
        store = open_store(tmp_path / "store")
        yield store
        store.close()

    def test_get_many_returns_values_in_the_order_of_the_keys(self, store: KeyValueStore) -> None:
        store.write([(b"a", b"1"), (b"b", b"2"), (b"empty", b"")], [])
        assert store.get_many([b"b", b"none", b"a", b"empty", b"b"]) == [
            b"2",
            None,
            b"1",
            b"",
            b"2",
        ]
        assert store.get_many([]) == []

    def test_a_write_replaces_and_deletes(self, store: KeyValueStore) -> None:
        store.write([(b"a", b"1"), (b"b", b"2")], [])
        store.write([(b"a", b"3")], [b"b", b"never there"])
        assert store.get_many([b"a", b"b"]) == [b"3", None]

    def test_in_one_write_deletes_come_before_puts(self, store: KeyValueStore) -> None:
        store.write([(b"a", b"1")], [b"a"])
        assert store.get_many([b"a"]) == [b"1"]

    def test_a_write_takes_any_iterables(self, store: KeyValueStore) -> None:
        store.write(((bytes([n]), b"v") for n in range(3)), iter([b"x"]))
        assert len(list(store.scan(b"", b"\xff"))) == 3

    def test_a_scan_is_ordered_and_its_end_is_excluded(self, store: KeyValueStore) -> None:
        keys = [b"\x00\x01", b"\x00\x01\x00", b"\x00\x02", b"\x00\xff", b"\x01\x00", b"\x02"]
        store.write([(key, key[::-1]) for key in reversed(keys)], [])
        assert list(store.scan(b"\x00\x01\x00", b"\x01\x00")) == [
            (key, key[::-1]) for key in keys[1:4]
        ]
        assert list(store.scan(b"\x05", b"\x06")) == []
        store.write([(b"\x00\x01\x01", b"new")], [b"\x00\x02"])
        assert [key for key, _ in store.scan(b"\x00\x01\x00", b"\x01\x00")] == [
            b"\x00\x01\x00",
            b"\x00\x01\x01",
            b"\x00\xff",
        ]

    def test_scan_returns_the_merged_result_of_several_writes(self, store: KeyValueStore) -> None:
        expected = {}
        for round_number in range(3):
            pairs = {b"k%d" % n: b"%d" % round_number for n in range(round_number, 100, 2)}
            expected.update(pairs)
            store.write(pairs.items(), [])
            store.checkpoint().files()
        for _ in range(50):  # a bound that was freed too early showed now and then only
            assert dict(store.scan(b"k", b"l")) == expected
            assert [key for key, _ in store.scan(b"k5", b"k6")] == [
                key for key in sorted(expected) if b"k5" <= key < b"k6"
            ]

    def test_scan_ignores_writes_after_its_begin(self, store: KeyValueStore) -> None:
        store.write([(b"a", b"1"), (b"b", b"2"), (b"c", b"3")], [])
        pairs = store.scan(b"a", b"z")
        store.write([(b"d", b"4"), (b"b", b"changed")], [b"c"])
        assert list(pairs) == [(b"a", b"1"), (b"b", b"2"), (b"c", b"3")]

    def test_checkpoint_opens_as_a_store_with_the_content_of_checkpoint_time(
        self, store: KeyValueStore, open_store: Open, tmp_path: Path
    ) -> None:
        store.write([(b"a", b"1"), (b"b", b"2")], [])
        frozen = store.checkpoint()
        store.write([(b"a", b"later")], [b"b"])
        assert list(store.scan(b"", b"\xff")) == [(b"a", b"later")]
        files = frozen.files()
        assert frozen.files() == files
        assert all(tmp_path / "store" in file.parents for file in files)
        other = open_store(laid_out(files, tmp_path / "laid-out"))
        assert list(other.scan(b"", b"\xff")) == [(b"a", b"1"), (b"b", b"2")]
        other.write([(b"c", b"3")], [b"a"])
        second = laid_out(other.checkpoint().files(), tmp_path / "second")
        other.close()
        again = open_store(second)
        assert list(again.scan(b"", b"\xff")) == [(b"b", b"2"), (b"c", b"3")]
        again.close()
        assert store.get_many([b"a", b"b"]) == [b"later", None]

    def test_store_and_its_checkpoints_match_a_dict_after_random_operations(
        self, open_store: Open, tmp_path: Path
    ) -> None:
        """Writes, reads, scans, checkpoints and openings in any order, against a dict."""
        store = open_store(tmp_path / "store")
        rng = random.Random(1)
        expected: dict[bytes, bytes] = {}
        for step in range(400):
            puts = {b"k%d" % rng.randrange(60): b"%d" % step for _ in range(rng.randrange(9))}
            deletes = [b"k%d" % rng.randrange(60) for _ in range(rng.randrange(3))]
            store.write(puts.items(), deletes)
            for key in deletes:
                expected.pop(key, None)
            expected.update(puts)
            match rng.randrange(12):
                case 0:
                    assert list(store.scan(b"k", b"l")) == sorted(expected.items())
                case 1 | 2:
                    asked = [b"k%d" % n for n in range(60)]
                    assert store.get_many(asked) == list(map(expected.get, asked))
                case 3 | 4 | 5 | 6:
                    store.checkpoint()
                case 7:
                    folder = laid_out(store.checkpoint().files(), tmp_path / str(step))
                    store.close()
                    store = open_store(folder)
                case _:
                    pass
        assert list(store.scan(b"", b"\xff")) == sorted(expected.items())
        store.close()

    def test_checkpoints_keep_their_content_until_their_files_are_requested(
        self, store: KeyValueStore, open_store: Open, tmp_path: Path
    ) -> None:
        frozen = []
        for number in range(4):
            store.write([(b"n", b"%d" % number)], [])
            frozen.append(store.checkpoint())
        store.write([(b"n", b"later")], [])
        for number, each in enumerate(frozen):
            with ThreadPoolExecutor(1) as threads:
                files = threads.submit(each.files).result(30)
            other = open_store(laid_out(files, tmp_path / str(number)))
            assert list(other.scan(b"", b"\xff")) == [(b"n", b"%d" % number)]
            other.close()

    def test_an_empty_store_has_a_checkpoint_too(
        self, store: KeyValueStore, open_store: Open, tmp_path: Path
    ) -> None:
        files = store.checkpoint().files()
        assert files
        other = open_store(laid_out(files, tmp_path / "checkpoint"))
        assert list(other.scan(b"", b"\xff")) == []
        other.close()

    def test_checkpoint_files_of_the_same_name_have_equal_content(
        self, open_store: Open, tmp_path: Path
    ) -> None:
        """Also in a store that was opened with a checkpoint's files, as after a restart."""
        store = open_store(tmp_path / "store")
        seen: dict[str, bytes] = {}
        for round_number in range(80):  # enough for compactions, and for several changelogs
            pairs = [(bytes([n]), b"%d" % round_number * 50) for n in range(200)]
            store.write(pairs, [])
            files = store.checkpoint().files()
            for file in files:
                content = file.read_bytes()
                assert seen.setdefault(file.name, content) == content
            if round_number % 13 == 12:
                folder = laid_out(files, tmp_path / f"laid-out-{round_number}")
                store.close()
                store = open_store(folder)
                seen = {file.name: file.read_bytes() for file in files}
        store.close()

    def test_checkpoint_files_stay_until_the_files_of_a_later_checkpoint_are_requested(
        self, open_store: Open, tmp_path: Path
    ) -> None:
        """An upload reads the files while the store continues, and also after the store's end. No
        file takes up space for long.
        """
        store = open_store(tmp_path / "store")
        for round_number in range(50):  # several changelogs
            store.write([(b"n", b"%d" % round_number)], [])
            files = store.checkpoint().files()
            read = [file.read_bytes() for file in files]
            for later in range(5):
                store.write([(b"n", b"later %d" % later)], [])
                last = store.checkpoint()
                if later == 2:
                    list(store.scan(b"", b"\xff"))
            assert [file.read_bytes() for file in files] == read
            kept = set(last.files())
            gone = [file for file in files if not file.exists()]
            assert set(gone) == set(files) - kept
        read = [file.read_bytes() for file in sorted(kept)]
        store.close()
        assert [file.read_bytes() for file in sorted(kept)] == read

    def test_checkpoint_error_names_a_store_folder_that_is_gone(
        self, open_store: Open, tmp_path: Path
    ) -> None:
        store = open_store(tmp_path / "store")
        store.write([(b"a", b"1")], [])
        (tmp_path / "store").rename(tmp_path / "gone")
        with pytest.raises(StorageError, match=r"store could not checkpoint"):
            store.checkpoint().files()

    def test_open_error_names_a_store_folder_that_cannot_be_created(
        self, open_store: Open, tmp_path: Path
    ) -> None:
        (tmp_path / "file").write_text("no folder")
        with pytest.raises(StorageError, match=r"file/store could not open"):
            open_store(tmp_path / "file" / "store")
