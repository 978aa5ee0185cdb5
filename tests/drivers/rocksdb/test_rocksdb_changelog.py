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


def test_a_checkpoint_adds_a_segment_to_the_files_of_the_one_before(
    checkpoints: Checkpoints,
) -> None:
    first = checkpoints.take(a="1")
    before = names(first)
    second, third = checkpoints.take(b="2"), checkpoints.take(a="3")
    assert names(second) == before | {"segment-0001.1"}
    assert names(third) == before | {"segment-0001.1", "segment-0002.1"}
    assert checkpoints.opened(third) == {b"a": b"3", b"b": b"2"}
    assert checkpoints.opened(second) == {b"a": b"1", b"b": b"2"}


def test_a_segment_is_what_old_checkpoints_hold(checkpoints: Checkpoints) -> None:
    checkpoints.take(a="1")
    checkpoints.rocks.write([(b"b", b"2")], [b"a"])
    directory = checkpoints.take(c="3")
    assert (directory / "segment-0001.1").read_bytes() == bytes.fromhex(
        "92 01 92  92 91c40161 91 92c40162c40132  92 90 91 92c40163c40133"
    )


def test_what_is_deleted_in_a_segment_is_gone(checkpoints: Checkpoints) -> None:
    checkpoints.take(a="1", b="2")
    checkpoints.rocks.write([], [b"a"])
    directory = checkpoints.take()
    assert checkpoints.rocks.get_many([b"a", b"b"]) == [None, b"2"]
    assert checkpoints.opened(directory) == {b"b": b"2"}


def test_an_idle_store_has_the_files_of_the_checkpoint_before(
    checkpoints: Checkpoints, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(changelog, "SEGMENTS_MAX", 2)
    checkpoints.take(a="1")
    changed = checkpoints.take(a="2")
    for _ in range(5):
        assert names(checkpoints.take()) == names(changed)
    assert not full(checkpoints.take(a="3"))


def test_a_full_checkpoint_is_due_after_so_many_segments(
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


def test_a_full_checkpoint_is_due_after_so_many_bytes(
    checkpoints: Checkpoints, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(changelog, "LOG_BYTES_MAX", 10)
    taken = [checkpoints.take(k1="1234"), checkpoints.take(k2="1234"), checkpoints.take(k3="1234")]
    assert [full(directory) for directory in taken] == [True, False, True]
    assert len(checkpoints.opened(taken[-1])) == len(taken)


def test_one_write_beyond_the_limit_is_not_kept_for_a_segment(
    checkpoints: Checkpoints, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoints.take(a="1")
    monkeypatch.setattr(changelog, "LOG_BYTES_MAX", 10)
    directory = checkpoints.take(a="a value of many bytes")
    assert full(directory)
    assert checkpoints.opened(directory) == {b"a": b"a value of many bytes"}


def test_who_scans_has_its_next_checkpoint_in_full(checkpoints: Checkpoints) -> None:
    """The next scan finds the tables in order, flushed in parallel with the processing."""
    checkpoints.take(a="1")
    checkpoints.rocks.scan(b"", b"\xff")
    assert full(checkpoints.take(b="2"))
    assert not full(checkpoints.take(c="3"))


def test_what_is_held_goes_into_rocksdb_when_it_becomes_much(
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


def test_one_large_pair_among_many_small_writes_is_no_reason_to_write_them(
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
def test_one_large_value_among_small_ones_counts_wherever_it_stands(
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


def test_what_rocksdb_refuses_is_held_as_before(
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


def test_only_the_newest_changelog_takes_room(
    checkpoints: Checkpoints, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(changelog, "SEGMENTS_MAX", 1)
    for number in range(6):
        checkpoints.take(a=str(number))
    assert names(tmp_path / "store" / "changelog") == {"3"}


def test_an_opened_store_goes_on_with_the_numbers(checkpoints: Checkpoints, tmp_path: Path) -> None:
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


def test_a_checkpoint_of_before_there_were_changelogs_opens(checkpoints: Checkpoints) -> None:
    directory = checkpoints.take(a="1")
    changelog.restore_file_names(directory)
    assert "CURRENT" in names(directory)
    assert checkpoints.opened(directory) == {b"a": b"1"}


def test_a_full_checkpoint_is_put_into_rocksdb_by_who_asks_for_its_files(
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


def test_who_closes_a_store_does_not_wait_for_a_whole_checkpoint(
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
        with pytest.raises(StorageError, match="could not checkpoint: it is closed"):
            files.result(10)
    assert len(pieces) == 1


def test_what_is_set_aside_is_not_to_be_had_of_a_closed_store(tmp_path: Path) -> None:
    rocks = RocksDBStore(tmp_path)
    rocks.write([(b"a", b"1")], [])
    rocks.checkpoint()
    rocks.close()
    with pytest.raises(StorageError, match="could not read"):
        rocks.get_many([b"a"])


def test_a_full_checkpoint_of_nothing_has_nothing_of_what_came_behind_it(
    checkpoints: Checkpoints, tmp_path: Path
) -> None:
    """No rows were buffered for the checkpoint, but its files are still to be linked."""
    frozen = checkpoints.rocks.checkpoint()
    checkpoints.rocks.write([(b"a", b"1")], [])
    assert dict(checkpoints.rocks.scan(b"", b"\xff")) == {b"a": b"1"}
    assert checkpoints.opened(laid_out(frozen.files(), tmp_path / "of-nothing")) == {}


def test_what_rocksdb_refuses_of_a_checkpoint_is_in_the_next(
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
def test_what_was_refused_goes_below_what_was_written_since(
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


def test_reads_and_writes_beside_a_full_checkpoint(
    checkpoints: Checkpoints, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever the mailbox thread does while another puts and links, against a dict."""
    monkeypatch.setattr(changelog, "SEGMENTS_MAX", 1)
    monkeypatch.setattr(store, "PIECE", 20)
    chance, rocks = random.Random(2), checkpoints.rocks
    model: dict[bytes, bytes] = {}
    keys = [b"k%d" % number for number in range(300)]
    with ThreadPoolExecutor(1) as upload:
        for number in range(60):
            frozen, at_barrier = rocks.checkpoint(), dict(model)
            files = upload.submit(frozen.files)
            for step in range(10):
                puts = dict.fromkeys(chance.sample(keys, 30), b"%d-%d" % (number, step))
                deletes = set(chance.sample(keys, 5)) - puts.keys()
                rocks.write(puts.items(), deletes)
                model.update(puts)
                for key in deletes:
                    model.pop(key, None)
                if chance.random() < 0.2:
                    asked = chance.sample(keys, 20)
                    assert rocks.get_many(asked) == list(map(model.get, asked))
                if chance.random() < 0.02:
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
def test_a_file_that_is_no_segment_is_refused(
    checkpoints: Checkpoints, data: bytes, message: str
) -> None:
    checkpoints.take(a="1")
    directory = checkpoints.take(a="2")
    (directory / "segment-0001.1").write_bytes(data)
    with pytest.raises(CorruptCheckpointError, match=message):
        RocksDBStore(directory)


def test_after_a_segment_that_could_not_be_written_a_full_checkpoint_has_everything(
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


def test_after_a_full_checkpoint_that_failed_the_next_is_full_again(
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


def test_a_folder_that_somebody_has_removed_is_an_error(
    checkpoints: Checkpoints, tmp_path: Path
) -> None:
    checkpoints.take(a="1")
    shutil.rmtree(tmp_path / "store" / "changelog")
    with pytest.raises(StorageError, match="No such file"):
        checkpoints.take(b="2")


def test_a_file_that_somebody_has_removed_is_still_of_the_checkpoint(
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


def test_files_stay_while_a_later_changelog_is_made(
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
