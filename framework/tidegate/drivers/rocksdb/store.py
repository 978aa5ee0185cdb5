"""`RocksDBStore`: the key-value store of one keyed step, in a folder, by RocksDB.

What was written last is *held* in memory, where reads find it, and goes into RocksDB at the next
full checkpoint, for a scan, or when it becomes much. Between full checkpoints a checkpoint is a
file with what was written since the one before (`changelog.py`), so that a key which changes in
each of them is put, sorted and compressed once for many.

RocksDB keeps no write-ahead log: what is not in a checkpoint does not survive the process, and is
not meant to. A full checkpoint flushes the memtable and links the table files into a new folder,
where they stay while the changelog goes on; table files never change and their numbers are never
used twice by one store, so that only new ones need uploading. The write-ahead log and the option
files that RocksDB adds to a checkpoint are left out: the first is empty, the second are restated at
each opening.

To freeze takes the mailbox thread no time. For a full checkpoint it sets what is held *aside*,
where reads find it still. The upload puts that into RocksDB (up to a microsecond a pair), in pieces
with Python's lock given away in between, RocksDB's own threads flush the memtable (rocksdict's
checkpoint would do it with the lock held, 0.2 s for 100,000 pairs), and the files are linked. A
read of what is neither held nor set aside waits for all that, or does it if nobody has begun.
Nothing else is put into RocksDB meanwhile, or it would be in the checkpoint: who wants to, freezes
it first. Files of earlier changelogs go when the upload asks for later ones, and not before, for
whoever freezes a checkpoint does not know what is still being read.

Called by the mailbox thread only, but for a checkpoint's `files`. rocksdict raises plain
`Exception` for whatever RocksDB reports; all of it becomes `StorageError` with the folder's name, a
full disk with the remedy.
"""

from __future__ import annotations

import functools
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import chain, islice, repeat, starmap
from pathlib import Path
from typing import Any, Final, cast

from rocksdict import (
    BlockBasedOptions,
    Cache,
    Checkpoint,
    DBCompressionType,
    MemtableFactory,
    Options,
    Rdict,
    WriteBatch,
    WriteOptions,
)

from tidegate.drivers.rocksdb.changelog import Changelog, lay_out, take_segments
from tidegate.drivers.rocksdb.frozen import RocksDBCheckpoint
from tidegate.errors import CorruptCheckpointError, StorageError
from tidegate.private_files import make_private_folder

HELD_BYTES_MAX: Final = 32 << 20
"""Of what is held, by the mean of what was written: some 130,000 small pairs. Beyond it all goes
into RocksDB. What is set aside for a full checkpoint comes on top, for as long as that takes.
"""

PAIR_BYTES: Final = 200
"""What a held pair takes beside its key and value: two objects and a place in a dict."""

BLOCK_CACHE_BYTES: Final = 32 << 20
"""Shared by all stores of a process: the write-back cache above holds the hot keys already, so this
serves index and filter look-ups of cold ones within a slot's 200 MB."""

WRITE_BUFFER_BYTES: Final = 32 << 20
"""A memtable: what is held is seldom more at once, so it is flushed whole, and not by size."""

BLOOM_BITS_PER_KEY: Final = 10
"""1 % false positives: a key that was never seen is answered without reading a block."""

BACKGROUND_JOBS: Final = 2
"""One flush and one compaction at a time; a slot is meant to use one core."""

LEVEL_ZERO_FILES: Final = 8
"""Checkpoints whose tables are merged in one compaction. RocksDB's own 4 would compact twice as
often for nothing: reads are few, and the Bloom filters answer most.
"""

PIECE: Final = 2_000
"""Pairs that are put between two chances for the mailbox thread to go on: one or two
milliseconds.
"""

FLUSH_POLL_S: Final = 0.002
FLUSH_WAIT_S_MAX: Final = 30.0
"""After this the flush is asked for again, and waited for where its error is told."""

_CHANGELOG: Final = "changelog"
"""A folder in the store's, which RocksDB leaves alone."""

_UNFLUSHED: Final = "rocksdb.num-immutable-mem-table"
_FAILED: Final = "rocksdb.background-errors"
_NOT_HELD: Final = object()
_NO_SPACE: Final = ("No space left", "Disk quota exceeded", "out of space")


class RocksDBStore:
    """An empty or existing store in a local folder, which is made where it is missing."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._write_options = WriteOptions()
        # A property, which rocksdict's stub takes for a method.
        self._write_options.disable_wal = True  # type: ignore[method-assign, assignment]
        self._held: dict[bytes, bytes | None] = {}
        """Written and not yet in RocksDB; None for what was deleted."""
        self._aside: dict[bytes, bytes | None] = {}
        """What was held at a full checkpoint, until its files are there."""
        self._written = self._written_bytes = 0
        """Keys, and bytes of keys and values, of the writes of what is held."""
        self._log: Changelog | None = None
        """Since the newest full checkpoint."""
        self._scanned = False
        """Whether there was a scan since the last checkpoint: then the next ones are likely to
        come, and RocksDB is to have it all by then.
        """
        self._flushing = False
        """Whether RocksDB was or will be told to flush, and nobody has waited for it since."""
        self._freezing: RocksDBCheckpoint | None = None
        """The newest checkpoint, until its files are there."""
        self._closed = False
        with self._translated("open"):
            make_private_folder(directory)
            self._logs = lay_out(directory)
            self._db = Rdict(str(directory), _options())
            for deletes, puts in take_segments(directory):
                self.write(puts, deletes)

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        aside = self._aside  # before RocksDB is asked: what is gone from here is there
        if not self._held and not aside:
            return self._stored(keys)
        held = self._held.get
        found: list[Any] = [held(key, _NOT_HELD) for key in keys]
        if aside:
            found = [
                aside.get(key, _NOT_HELD) if value is _NOT_HELD else value
                for key, value in zip(keys, found, strict=True)
            ]
        asked = [key for key, value in zip(keys, found, strict=True) if value is _NOT_HELD]
        if asked:
            stored = iter(self._stored(asked))
            found = [next(stored) if value is _NOT_HELD else value for value in found]
        return found

    def write(self, puts: Iterable[tuple[bytes, bytes]], deletes: Iterable[bytes]) -> None:
        with self._translated("write"):
            self._check_open()
            pairs, gone = list(puts), list(deletes)
            self._held.update(dict.fromkeys(gone))
            self._held.update(pairs)
            size = sum(map(len, chain.from_iterable(pairs))) + sum(map(len, gone))
            if self._log is not None:
                self._log.add((gone, pairs), size)
            self._written += len(pairs) + len(gone)
            self._written_bytes += size
            pair_bytes = PAIR_BYTES + self._written_bytes // max(1, self._written)
            if len(self._held) * pair_bytes > HELD_BYTES_MAX:
                self._put_held()

    def scan(self, first: bytes, end: bytes) -> Iterator[tuple[bytes, bytes]]:
        with self._translated("scan"):
            self._scanned = True
            self._put_held()
            self._settle()
            pairs: Iterator[Any] = self._db.items(from_key=first)
        return self._read(pairs, end)

    def checkpoint(self) -> RocksDBCheckpoint:
        self._freeze()
        with self._translated("checkpoint"):
            log = self._log
            if log is not None and log.can_append() and not self._scanned:
                write = log.roll_segment()
            else:
                log = self._log = self._begin_log()
                write = partial(self._fill, log)
                self._detach_buffer()
        self._scanned = False
        self._freezing = RocksDBCheckpoint(
            freeze=partial(self._frozen, log, write), drop=partial(self._drop, log)
        )
        return self._freezing

    def close(self) -> None:
        self._closed = True
        self._held.clear()
        if self._freezing is not None:
            self._freezing.abandon()
        self._aside = {}
        with self._translated("close"):
            self._db.close()

    def _check_open(self) -> None:
        if self._closed:
            raise StorageError("it is closed")

    def _stored(self, keys: Sequence[bytes]) -> list[bytes | None]:
        with self._translated("read"):
            self._settle()
            found = self._db.get(list(keys))
        return cast("list[bytes | None]", found)

    def _put_held(self) -> None:
        """Write what is held into RocksDB, and have it flushed: the memtable is a list, which each
        reader would sort as a whole.
        """
        if self._aside:
            self._freeze()
            self._take_back()
        if not self._held:
            return
        self._freeze()
        deque(self._put(self._held), maxlen=0)
        self._db.flush(wait=False)
        self._flushing = True
        self._held = {}
        self._written = self._written_bytes = 0

    def _detach_buffer(self) -> None:
        """What is held, for the full checkpoint that begins."""
        self._take_back()
        self._aside, self._held = self._held, {}
        self._written = self._written_bytes = 0
        self._flushing = True

    def _take_back(self) -> None:
        """What was set aside and RocksDB has refused is held as before."""
        if self._aside:
            self._held = self._aside | self._held
            self._aside = {}

    def _put(self, pairs: Mapping[bytes, bytes | None]) -> Iterator[None]:
        """Write them into RocksDB, piece by piece."""
        gone: list[bytes] = []
        if None in pairs.values():
            gone = [key for key, value in pairs.items() if value is None]
            pairs = {key: value for key, value in pairs.items() if value is not None}
        deletes, puts = zip(gone, strict=True), iter(pairs.items())
        for method, calls, count in (("delete", deletes, len(gone)), ("put", puts, len(pairs))):
            for _ in range(0, count, PIECE):
                batch = WriteBatch(raw_mode=True)
                some = islice(calls, PIECE)
                deque(starmap(getattr(batch, method), some), maxlen=0)  # a loop in C
                self._db.write(batch, self._write_options)
                yield

    def _freeze(self) -> None:
        """Bring the newest checkpoint to its end; what became of it is told by its `files`."""
        if self._freezing is not None:
            self._freezing.end()
            self._freezing = None

    def _begin_log(self) -> Changelog:
        """The changelog that begins with a full checkpoint."""
        self._logs += 1
        return Changelog(self._directory / _CHANGELOG / str(self._logs), self._logs)

    def _fill(self, log: Changelog) -> None:
        """With a full checkpoint: what was set aside is put into RocksDB, and nothing else."""
        for _ in self._put(self._aside):
            self._check_open()  # who closes the store waits for what is under way
            time.sleep(0)  # what is done in C asks nobody whether another thread waits
        self._db.flush(wait=False)
        self._await_flush()
        log.materialize(self._make)
        done, self._aside = self._aside, {}
        while done:  # to free objects takes the lock as well
            deque(starmap(done.popitem, repeat((), min(PIECE, len(done)))), maxlen=0)
            time.sleep(0)

    def _make(self, directory: Path) -> None:
        Checkpoint(self._db).create_checkpoint(str(directory))
        for path in directory.iterdir():
            if path.suffix == ".log" or path.name.startswith("OPTIONS-"):
                path.unlink()

    def _frozen(self, log: Changelog, write: Callable[[], None]) -> list[Path]:
        """The files of a checkpoint once `write` has added its own to those of the changelog."""
        with self._translated("checkpoint"):
            write()
            return log.files()

    def _drop(self, log: Changelog) -> None:
        with self._translated("checkpoint"):
            log.delete_previous()

    def _await_flush(self) -> None:
        """Until RocksDB has flushed what it was told to, or says that it can not: then linking the
        files, which flushes, raises its error, and so does the next write.
        """
        end_s = time.monotonic() + FLUSH_WAIT_S_MAX
        asked = self._db.property_int_value
        while asked(_UNFLUSHED) and not asked(_FAILED) and time.monotonic() < end_s:
            time.sleep(FLUSH_POLL_S)

    def _settle(self) -> None:
        """Wait for the flush that is under way, or have it done: nobody reads a memtable."""
        if self._flushing:
            self._freeze()
            self._await_flush()
            self._flushing = False

    def _read(
        self, pairs: Iterator[tuple[bytes, bytes]], end: bytes
    ) -> Iterator[tuple[bytes, bytes]]:
        """Apart from `scan`, so that what is read is the content at its call and not at first
        use.
        """
        with self._translated("scan"):
            # Not by RocksDB's upper bound: rocksdict frees its bytes while the iterator uses them.
            for pair in pairs:
                if pair[0] >= end:
                    return
                yield pair

    @contextmanager
    def _translated(self, doing: str) -> Iterator[None]:
        """The door: whatever RocksDB says becomes a StorageError that names the folder."""
        try:
            yield
        except CorruptCheckpointError:
            raise
        except Exception as error:  # rocksdict has no class of its own for what RocksDB reports
            reason = str(error)
            remedy = "the job is restored from its last checkpoint"
            if any(sign in reason for sign in _NO_SPACE):
                remedy = (
                    "the disk is full: free space there, or set state.directory to a larger disk"
                )
            raise StorageError(
                f"the state store in {self._directory} could not {doing}: {reason}; {remedy}"
            ) from error


@functools.cache
def _block_cache() -> Cache:
    """Made at the first opening and not at import, which may be before a fork."""
    return Cache(BLOCK_CACHE_BYTES)


def _options() -> Options:
    table = BlockBasedOptions()
    table.set_block_cache(_block_cache())
    table.set_bloom_filter(BLOOM_BITS_PER_KEY, block_based=False)
    table.set_cache_index_and_filter_blocks(v=True)
    table.set_pin_l0_filter_and_index_blocks_in_cache(v=True)
    options = Options(raw_mode=True)
    options.create_if_missing(create_if_missing=True)
    options.set_block_based_table_factory(table)
    # A write is one large batch in no order, and is flushed before it is read: filling a list costs
    # a tenth of filling a skip list, and one sort at the flush is cheaper than many insertions.
    options.set_memtable_factory(MemtableFactory.vector())
    options.set_allow_concurrent_memtable_write(allow=False)  # a list takes one writer
    options.set_write_buffer_size(WRITE_BUFFER_BYTES)
    options.set_level_zero_file_num_compaction_trigger(LEVEL_ZERO_FILES)
    options.set_max_background_jobs(BACKGROUND_JOBS)
    options.set_compression_type(DBCompressionType.lz4())
    options.set_keep_log_file_num(1)  # RocksDB's own report: the last one only
    options.set_stats_dump_period_sec(0)
    return options
