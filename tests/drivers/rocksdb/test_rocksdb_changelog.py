"""The changelog of the RocksDB store: which files a checkpoint has, when a full one is due, what an
opening makes of the segments.
"""

from __future__ import annotations

import errno
import random
import shutil
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec
import pytest
from rocksdict import WriteBatch

from tests.contracts.kv import laid_out
from tidegate.drivers.rocksdb import RocksDBStore, changelog, store
from tidegate.errors import CorruptCheckpointError, StorageError

Names = set[str]


class Checkpoints:
    """A store, and the checkpoints that are taken of it."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.rocks = RocksDBStore(folder / "store")
        self._taken = 0

    def take(self, **pairs: str) -> Path:
        """Write, if there is anything, take a checkpoint, give its folder."""
        if pairs:
            self.rocks.write([(key.encode(), value.encode()) for key, value in pairs.items()], [])
        self._taken += 1
        directory = self._folder / str(self._taken)
        return laid_out(self.rocks.checkpoint().files(), directory)

    def opened(self, directory: Path) -> dict[bytes, bytes]:
        """The content of a checkpoint."""
        other = RocksDBStore(directory)
        try:
            return dict(other.scan(b"", b"\xff"))
        finally:
            other.close()


@pytest.fixture
def checkpoints(tmp_path: Path) -> Iterator[Checkpoints]:
    made = Checkpoints(tmp_path)
    yield made
    made.rocks.close()


def names(directory: Path) -> Names:
    return {path.name for path in directory.iterdir()}


def full(directory: Path) -> bool:
    return not any(name.startswith("segment") for name in names(directory))


def test_checkpoint_adds_one_segment_to_the_files_of_the_previous_checkpoint(
    checkpoints: Checkpoints,
) -> None:
    first = checkpoints.take(a="1")
    before = names(first)
    second, third = checkpoints.take(b="2"), checkpoints.take(a="3")
    assert names(second) == before | {"segment-0001.1"}
    assert names(third) == before | {"segment-0001.1", "segment-0002.1"}
    assert checkpoints.opened(third) == {b"a": b"3", b"b": b"2"}
    assert checkpoints.opened(second) == {b"a": b"1", b"b": b"2"}


def test_segment_format_stays_compatible_with_old_checkpoints(checkpoints: Checkpoints) -> None:
    checkpoints.take(a="1")
    checkpoints.rocks.write([(b"b", b"2")], [b"a"])
    directory = checkpoints.take(c="3")
    assert (directory / "segment-0001.1").read_bytes() == bytes.fromhex(
        "92 01 92  92 91c40161 91 92c40162c40132  92 90 91 92c40163c40133"
    )


def test_key_deleted_in_a_segment_is_absent_after_opening_the_checkpoint(
    checkpoints: Checkpoints,
) -> None:
    checkpoints.take(a="1", b="2")
    checkpoints.rocks.write([], [b"a"])
    directory = checkpoints.take()
    assert checkpoints.rocks.get_many([b"a", b"b"]) == [None, b"2"]
    assert checkpoints.opened(directory) == {b"b": b"2"}


def test_idle_store_reuses_the_files_of_the_previous_checkpoint(
    checkpoints: Checkpoints, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(changelog, "SEGMENTS_MAX", 2)
    checkpoints.take(a="1")
    changed = checkpoints.take(a="2")
    for _ in range(5):
        assert names(checkpoints.take()) == names(changed)
    assert not full(checkpoints.take(a="3"))


def test_full_checkpoint_is_due_after_the_maximum_number_of_segments(
    checkpoints: Checkpoints, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(changelog, "SEGMENTS_MAX", 2)
    taken = [checkpoints.take(**{f"k{n}": "v"}) for n in range(7)]
    assert [full(directory) for directory in taken] == [
        True,
        False,
        False,
        True,
        False,
        False,
        True,
    ]
    assert len(checkpoints.opened(taken[-1])) == len(taken)
    assert "CURRENT.2" in names(taken[3])


def test_full_checkpoint_is_due_after_the_maximum_changelog_bytes(
    checkpoints: Checkpoints, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(changelog, "LOG_BYTES_MAX", 10)
    taken = [checkpoints.take(k1="1234"), checkpoints.take(k2="1234"), checkpoints.take(k3="1234")]
    assert [full(directory) for directory in taken] == [True, False, True]
    assert len(checkpoints.opened(taken[-1])) == len(taken)


def test_write_beyond_the_changelog_limit_makes_the_next_checkpoint_full(
    checkpoints: Checkpoints, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoints.take(a="1")
    monkeypatch.setattr(changelog, "LOG_BYTES_MAX", 10)
    directory = checkpoints.take(a="a value of many bytes")
    assert full(directory)
    assert checkpoints.opened(directory) == {b"a": b"a value of many bytes"}


def test_first_checkpoint_after_a_scan_is_full(checkpoints: Checkpoints) -> None:
    """The next scan finds the tables in order, flushed in parallel with the processing."""
    checkpoints.take(a="1")
    checkpoints.rocks.scan(b"", b"\xff")
    assert full(checkpoints.take(b="2"))
    assert not full(checkpoints.take(c="3"))


def test_buffered_rows_are_written_to_rocksdb_beyond_the_memory_limit(
    checkpoints: Checkpoints, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store, "BUFFER_BYTES_MAX", 1000)
    checkpoints.take()
    pairs = {f"k{n}": "v" for n in range(20)}
    directory = checkpoints.take(**pairs)
    assert checkpoints.rocks._buffer == {}
    assert checkpoints.rocks.get_many([b"k0", b"k20"]) == [b"v", None]
    assert not full(directory)
    assert len(checkpoints.opened(directory)) == len(pairs)


def test_one_large_row_does_not_flush_the_buffered_rows(
    checkpoints: Checkpoints, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A snapshot saves its rows in pieces, some of a few pairs. The size of the last piece
    therefore does not show the size of everything that is held.
    """
    monkeypatch.setattr(store, "BUFFER_BYTES_MAX", 100_000)
    checkpoints.take()
    for number in range(100):
        checkpoints.rocks.write([(b"k%d" % number, b"v")], [])
    checkpoints.rocks.write([(b"large", b"v" * 2000)], [])
    assert len(checkpoints.rocks._buffer) == 101
    for number in range(30):
        checkpoints.rocks.write([(b"l%d" % number, b"v" * 3000)], [])
    assert len(checkpoints.rocks._buffer) < 30, "but many of them are"


@pytest.mark.parametrize("place", [0, 1, 999])
def test_large_value_makes_the_checkpoint_full_at_any_position_of_the_write(
    checkpoints: Checkpoints, monkeypatch: pytest.MonkeyPatch, place: int
) -> None:
    """The bytes that an opening must apply stay within their limit, and the bytes held in memory
    too.
    """
    monkeypatch.setattr(changelog, "LOG_BYTES_MAX", 1 << 16)
    checkpoints.take(a="1")
    values = ["v"] * 1000
    values[place] = "v" * (1 << 16)
    directory = checkpoints.take(**{f"k{n}": value for n, value in enumerate(values)})
    assert full(directory)
    assert len(checkpoints.opened(directory)) == len(values) + 1


def test_buffered_rows_stay_readable_if_rocksdb_refuses_the_write(
    checkpoints: Checkpoints, monkeypatch: pytest.MonkeyPatch
) -> None:
    class FullDisk:
        def __init__(self, *, raw_mode: bool) -> None:
            assert raw_mode

        def delete(self, key: bytes) -> None:
            pass

        def put(self, *_: object) -> None:
            raise OSError(errno.ENOSPC, "No space left on device")

    checkpoints.take(a="1")
    checkpoints.rocks.write([(b"b", b"2")], [b"a"])
    with monkeypatch.context() as disk:
        disk.setattr(store, "WriteBatch", FullDisk)
        with pytest.raises(StorageError, match="could not scan"):
            checkpoints.rocks.scan(b"", b"\xff")
    assert checkpoints.rocks.get_many([b"a", b"b"]) == [None, b"2"]
    assert dict(checkpoints.rocks.scan(b"", b"\xff")) == {b"b": b"2"}


def test_store_folder_keeps_only_the_newest_changelog(
    checkpoints: Checkpoints, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(changelog, "SEGMENTS_MAX", 1)
    for number in range(6):
        checkpoints.take(a=str(number))
    assert names(tmp_path / "store" / "changelog") == {"3"}


def test_reopened_store_continues_the_file_numbers_of_its_checkpoint(
    checkpoints: Checkpoints, tmp_path: Path
) -> None:
    checkpoints.take(a="1")
    directory = checkpoints.take(b="2")
    before = names(directory)
    other = RocksDBStore(directory)
    laid_out(other.checkpoint().files(), tmp_path / "other")
    other.close()
    assert {
        name for name in names(tmp_path / "other") & before if not name.endswith(".sst")
    } == set()
    assert "CURRENT.2" in names(tmp_path / "other")


def test_checkpoint_of_a_version_without_changelogs_can_be_opened(checkpoints: Checkpoints) -> None:
    directory = checkpoints.take(a="1")
    changelog.restore_file_names(directory)
    assert "CURRENT" in names(directory)
    assert checkpoints.opened(directory) == {b"a": b"1"}


def test_checkpoint_call_writes_no_rows_to_rocksdb_until_an_unbuffered_key_is_read(
    checkpoints: Checkpoints, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The checkpoint is written in pieces. The mailbox thread waits for none of them, and not for
    reads of buffered rows either.
    """
    rocks, batches = checkpoints.rocks, list[WriteBatch]()

    def counted(*, raw_mode: bool) -> WriteBatch:
        batches.append(WriteBatch(raw_mode=raw_mode))
        return batches[-1]

    monkeypatch.setattr(store, "PIECE", 4)
    monkeypatch.setattr(store, "WriteBatch", counted)
    rocks.write([(b"%d" % n, b"1") for n in range(9)], [b"gone-%d" % n for n in range(6)])
    frozen = rocks.checkpoint()
    rocks.write([(b"1", b"2"), (b"new", b"2")], [b"2"])
    asked = [b"0", b"1", b"2", b"new", b"gone-0"]
    assert rocks.get_many(asked) == [b"1", b"2", None, b"2", None]
    assert not batches
    assert rocks.get_many([b"never", *asked]) == [None, b"1", b"2", None, b"2", None]
    assert len(batches) == 5, "who asks for something else has it done: 4 + 2 gone, 4 + 4 + 1 put"
    frozen.files()
    assert rocks.get_many([b"never", *asked]) == [None, b"1", b"2", None, b"2", None]
    assert len(batches) == 5
    assert not rocks._detached_buffer, "it would take memory until the next one, and be put again"


def test_close_does_not_wait_for_a_running_full_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rocks, begun, pieces = RocksDBStore(tmp_path), threading.Event(), list[float]()
    monkeypatch.setattr(store, "PIECE", 1)
    rocks.write([(b"%d" % n, b"1") for n in range(100)], [])
    frozen = rocks.checkpoint()

    def until_closing(pause_s: float) -> None:
        pieces.append(pause_s)
        begun.set()
        while not rocks._closed:
            threading.Event().wait(0.001)

    monkeypatch.setattr(time, "sleep", until_closing)
    with ThreadPoolExecutor(1) as upload:
        files = upload.submit(frozen.files)
        assert begun.wait(10)
        rocks.close()
        with pytest.raises(StorageError, match="could not checkpoint: The state store is closed"):
            files.result(10)
    assert len(pieces) == 1


def test_closed_store_does_not_return_rows_of_a_pending_checkpoint(tmp_path: Path) -> None:
    rocks = RocksDBStore(tmp_path)
    rocks.write([(b"a", b"1")], [])
    rocks.checkpoint()
    rocks.close()
    with pytest.raises(StorageError, match="could not read"):
        rocks.get_many([b"a"])


def test_empty_full_checkpoint_does_not_contain_later_writes(
    checkpoints: Checkpoints, tmp_path: Path
) -> None:
    """No rows were buffered for the checkpoint, but its files are still to be linked."""
    frozen = checkpoints.rocks.checkpoint()
    checkpoints.rocks.write([(b"a", b"1")], [])
    assert dict(checkpoints.rocks.scan(b"", b"\xff")) == {b"a": b"1"}
    assert checkpoints.opened(laid_out(frozen.files(), tmp_path / "of-nothing")) == {}


def test_rows_that_rocksdb_refused_are_in_the_next_checkpoint(
    checkpoints: Checkpoints, monkeypatch: pytest.MonkeyPatch
) -> None:
    rocks = checkpoints.rocks
    rocks.write([(b"a", b"1"), (b"b", b"1"), (b"c", b"1")], [])
    frozen = rocks.checkpoint()
    rocks.write([(b"b", b"2")], [b"c"])

    def full_disk(_pairs: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as disk:
        disk.setattr(rocks, "_put", full_disk)
        with pytest.raises(StorageError, match=r"could not checkpoint: .*disk is full"):
            frozen.files()
    assert rocks.get_many([b"a", b"b", b"c", b"d"]) == [b"1", b"2", None, None]
    assert dict(rocks.scan(b"", b"\xff")) == {b"a": b"1", b"b": b"2"}
    assert checkpoints.opened(checkpoints.take()) == {b"a": b"1", b"b": b"2"}


@pytest.mark.parametrize("again", ["checkpoint", "scan"])
def test_refused_rows_do_not_overwrite_later_writes(
    checkpoints: Checkpoints, monkeypatch: pytest.MonkeyPatch, again: str
) -> None:
    rocks = checkpoints.rocks
    rocks.write([(b"a", b"1"), (b"b", b"1"), (b"c", b"1")], [])
    with monkeypatch.context() as disk:
        disk.setattr(rocks, "_put", None)
        with pytest.raises(StorageError):
            rocks.checkpoint().files()
    rocks.write([(b"b", b"2")], [b"c"])
    if again == "scan":
        assert dict(rocks.scan(b"", b"\xff")) == {b"a": b"1", b"b": b"2"}
    assert checkpoints.opened(checkpoints.take()) == {b"a": b"1", b"b": b"2"}


def test_reads_and_writes_during_full_checkpoints_match_a_dict(
    checkpoints: Checkpoints, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever the mailbox thread does while another puts and links, against a dict."""
    monkeypatch.setattr(changelog, "SEGMENTS_MAX", 1)
    monkeypatch.setattr(store, "PIECE", 20)
    rng, rocks = random.Random(2), checkpoints.rocks
    model: dict[bytes, bytes] = {}
    keys = [b"k%d" % number for number in range(300)]
    with ThreadPoolExecutor(1) as upload:
        for number in range(60):
            frozen, at_barrier = rocks.checkpoint(), dict(model)
            files = upload.submit(frozen.files)
            for step in range(10):
                puts = dict.fromkeys(rng.sample(keys, 30), b"%d-%d" % (number, step))
                deletes = set(rng.sample(keys, 5)) - puts.keys()
                rocks.write(puts.items(), deletes)
                model.update(puts)
                for key in deletes:
                    model.pop(key, None)
                if rng.random() < 0.2:
                    asked = rng.sample(keys, 20)
                    assert rocks.get_many(asked) == list(map(model.get, asked))
                if rng.random() < 0.02:
                    assert dict(rocks.scan(b"", b"\xff")) == model
            directory = laid_out(files.result(30), tmp_path / str(number))
            assert checkpoints.opened(directory) == at_barrier


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "holds no changes of state"),
        (msgspec.msgpack.encode([1, [[[b"a"]]]]), "holds no changes of state"),
        (msgspec.msgpack.encode([2, []]), "in format 2; this version of tidegate reads format 1"),
    ],
)
def test_invalid_segment_file_is_refused(
    checkpoints: Checkpoints, data: bytes, message: str
) -> None:
    checkpoints.take(a="1")
    directory = checkpoints.take(a="2")
    (directory / "segment-0001.1").write_bytes(data)
    with pytest.raises(CorruptCheckpointError, match=message):
        RocksDBStore(directory)


def test_checkpoint_after_a_failed_segment_write_is_full_and_complete(
    checkpoints: Checkpoints, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoints.take(a="1")

    def full_disk(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as disk:
        disk.setattr(changelog, "write_private", full_disk)
        with pytest.raises(StorageError, match=r"could not checkpoint: .*disk is full"):
            checkpoints.take(b="2")
    directory = checkpoints.take(c="3")
    assert full(directory)
    assert checkpoints.opened(directory) == {b"a": b"1", b"b": b"2", b"c": b"3"}


def test_checkpoint_after_a_failed_full_checkpoint_is_full_again(
    checkpoints: Checkpoints, tmp_path: Path
) -> None:
    taken = tmp_path / "store" / "changelog" / "1"
    taken.mkdir(parents=True)
    with pytest.raises(StorageError, match="could not checkpoint"):
        checkpoints.take(a="v")
    directory = checkpoints.take(b="v")
    assert full(directory)
    assert checkpoints.opened(directory) == {b"a": b"v", b"b": b"v"}
    assert not taken.exists()


def test_removed_changelog_folder_raises_storage_error(
    checkpoints: Checkpoints, tmp_path: Path
) -> None:
    checkpoints.take(a="1")
    shutil.rmtree(tmp_path / "store" / "changelog")
    with pytest.raises(StorageError, match="No such file"):
        checkpoints.take(b="2")


def test_checkpoint_still_lists_a_changelog_file_that_was_removed(
    checkpoints: Checkpoints, tmp_path: Path
) -> None:
    """RocksDB opens a folder without its tables as an empty store: a published checkpoint would
    have lost everything before its segments, and no restore would say so.
    """
    before = names(checkpoints.take(a="1"))
    for path in (tmp_path / "store" / "changelog" / "1").iterdir():
        path.unlink()
    checkpoints.rocks.write([(b"b", b"2")], [])
    files = checkpoints.rocks.checkpoint().files()
    assert {file.name for file in files} == before | {"segment-0001.1"}


def test_checkpoint_files_are_not_deleted_while_rocksdb_makes_the_next_changelog(
    checkpoints: Checkpoints, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """RocksDB makes the folder under another name first, in addition to the folders that are
    deleted.
    """
    monkeypatch.setattr(changelog, "SEGMENTS_MAX", 0)
    checkpoints.take(a="1")
    checkpoints.rocks.write([(b"b", b"2")], [])
    second = checkpoints.rocks.checkpoint()
    second.end()
    made = tmp_path / "store" / "changelog" / "3.tmp"
    made.mkdir()
    assert all(file.exists() for file in second.files())
    assert names(tmp_path / "store" / "changelog") == {"2", "3.tmp"}
