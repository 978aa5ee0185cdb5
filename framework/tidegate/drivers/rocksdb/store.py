"""`RocksDBStore`: the key-value store of one keyed step, in a folder, with RocksDB.

The latest writes are *held* in a buffer in memory, where reads find them. They go into RocksDB at
the next full checkpoint, for a scan, or when the buffer becomes large. Between two full
checkpoints, a checkpoint only adds a file with the writes since the previous checkpoint
(`changelog.py`). So RocksDB receives, sorts and compresses a key that changes before every
checkpoint only once for many checkpoints.

RocksDB keeps no write-ahead log: writes that are in no checkpoint do not survive the process, and
need not. A full checkpoint flushes the memtable and links the table files into a new folder, where
they stay as long as the changelog continues. Table files never change, and one store never uses a
table number twice, so only new table files must be uploaded. The write-ahead log and the option
files that RocksDB adds to a checkpoint are deleted: the log is empty, and each opening sets the
options again.

A checkpoint takes almost no time of the mailbox thread. For a full checkpoint the thread moves the
buffer *aside*, where reads still find it. The upload thread then freezes the checkpoint in three
steps:

- It puts the detached buffer into RocksDB (up to a microsecond per pair), in pieces, and lets other
  threads run after each piece.
- RocksDB's own threads flush the memtable. rocksdict's checkpoint call would flush while it holds
  Python's lock, which takes 0.2 s for 100,000 pairs.
- It links the files.

A read of a key that is in neither buffer waits for these steps, or runs them if no thread has begun
them. No other writes may go into RocksDB meanwhile, because they would become part of the
checkpoint: a method that needs to put writes into RocksDB first completes the freeze. The files of
earlier changelogs are deleted when the upload asks for the files of a later one, and not during the
freeze. The thread that freezes a checkpoint does not know which files are still being read.

Only the mailbox thread calls the store, except for the `files` of a checkpoint. rocksdict raises a
plain `Exception` for every error of RocksDB. The store raises it as `StorageError` with the
folder's name and a remedy, which differs for a full disk.
"""

from __future__ import annotations

import functools
import threading
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

from tidegate.drivers.process.user_forks import end_if_forked
from tidegate.drivers.rocksdb.changelog import Changelog, restore_file_names, take_segments
from tidegate.errors import CorruptCheckpointError, StorageError
from tidegate.message_text import clause
from tidegate.private_files import make_private_folder


class RocksDBCheckpoint:
    """A `ports.kv.StoreCheckpoint`. The first thread that needs the files makes them with
    `make_files`. `files` also calls `drop`, which deletes the files of earlier changelogs.

    The mailbox thread takes the checkpoint, and an upload thread asks for its files. Usually the
    upload thread makes the files. The mailbox thread makes them if it cannot wait for the upload.
    The files are made once, or never if the store is closed earlier.

    The store and `changelog.py` decide which files are made.
    """

    def __init__(self, *, make_files: Callable[[], list[Path]], drop: Callable[[], None]) -> None:
        self._make_files: Callable[[], list[Path]] | None = make_files
        self._delete_previous = drop
        self._lock = threading.Lock()
        self._files: list[Path] = []
        self._failure: StorageError | None = None

    def files(self) -> list[Path]:
        self.end()
        if self._failure is not None:
            raise self._failure
        self._delete_previous()
        return self._files

    def end(self) -> None:
        """Make the files, or keep the error for `files` to raise. Do nothing if this was done
        before.
        """
        with self._lock:
            if self._make_files is None:
                return
            try:
                self._files = self._make_files()
            except StorageError as error:
                self._failure = error
            self._make_files = None

    def abandon(self) -> None:
        """Do not make the files if they are not made yet, because the store is being closed.
        `files` then raises StorageError.
        """
        with self._lock:
            if self._make_files is not None:
                self._make_files = None
                self._failure = StorageError("The state store was closed before its checkpoint.")


BUFFER_BYTES_MAX: Final = 32 << 20
"""The maximum size of the buffer in bytes, estimated from the mean size of the writes: some 130,000
small pairs. A larger buffer goes into RocksDB. The detached buffer of a full checkpoint needs
memory in addition, until the checkpoint is frozen.
"""

PAIR_BYTES: Final = 200
"""The memory of a buffered pair in bytes, in addition to its key and value: two objects and a dict
entry.
"""

BLOCK_CACHE_BYTES: Final = 32 << 20
"""The size of the block cache in bytes, shared by all stores of a process. The write-back cache
above the store already has the hot keys. So the block cache only serves index and filter look-ups
of cold keys, and its size fits into the 200 MB of a slot.
"""

WRITE_BUFFER_BYTES: Final = 32 << 20
"""The size of a memtable in bytes. The buffer is rarely larger than this, so it is flushed as a
whole, and a flush because of the size is rare.
"""

BLOOM_BITS_PER_KEY: Final = 10
"""The size of the Bloom filters, which gives 1 % false positives: a look-up of a new key usually
reads no block.
"""

BACKGROUND_JOBS: Final = 2
"""The number of RocksDB's background jobs: one flush and one compaction at a time. A slot is meant
to use one core.
"""

LEVEL_ZERO_FILES: Final = 8
"""The number of full checkpoints whose tables one compaction merges. RocksDB's default of 4 would
compact twice as often without a benefit: reads are few, and the Bloom filters answer most of them.
"""

PIECE: Final = 2_000
"""The number of pairs that are put before the mailbox thread may run again: one or two milliseconds
of work.
"""

FLUSH_POLL_S: Final = 0.002
FLUSH_WAIT_S_MAX: Final = 30.0
"""The maximum time to wait for a flush, in seconds. After that, the creation of the checkpoint
flushes again, waits for the flush and raises its error.
"""

_CHANGELOG: Final = "changelog"
"""The folder of the changelogs, inside the store's folder. RocksDB ignores it."""

_UNFLUSHED: Final = "rocksdb.num-immutable-mem-table"
_FAILED: Final = "rocksdb.background-errors"
_NOT_BUFFERED: Final = object()
_NO_SPACE: Final = ("No space left", "Disk quota exceeded", "out of space")


class RocksDBStore:
    """A new or existing store in a local folder. The folder is made if it is missing."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._write_options = WriteOptions()
        # The stub of rocksdict declares this property as a method.
        self._write_options.disable_wal = True  # type: ignore[method-assign, assignment]
        self._buffer: dict[bytes, bytes | None] = {}
        """The buffer: writes that are not yet in RocksDB, with None for a deleted key."""
        self._detached_buffer: dict[bytes, bytes | None] = {}
        """The detached buffer of a full checkpoint, until the checkpoint's files exist."""
        self._written = self._written_bytes = 0
        """The number of keys written to the buffer, and the bytes of those keys and their values.
        Repeated writes of one key count each time.
        """
        self._changelog: Changelog | None = None
        """The changelog since the newest full checkpoint; None before the first one."""
        self._scanned = False
        """Whether a scan ran since the last checkpoint. Further scans are then likely, so the next
        checkpoint is a full one: a scan needs all writes in RocksDB.
        """
        self._flushing = False
        """Whether a flush was or will be requested, and `_complete_flush` has not waited for it
        since.
        """
        self._incomplete_checkpoint: RocksDBCheckpoint | None = None
        """The newest checkpoint, until `_complete_checkpoint` has completed it."""
        self._closed = False
        with self._translated("open"):
            make_private_folder(directory)
            self._changelog_number = restore_file_names(directory)
            self._db = Rdict(str(directory), _options())
            for deletes, puts in take_segments(directory):
                self.write(puts, deletes)

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        detached = (
            self._detached_buffer
        )  # taken before RocksDB is read: a pair that is gone here is there
        if not self._buffer and not detached:
            return self._stored(keys)
        buffered = self._buffer.get
        found: list[Any] = [buffered(key, _NOT_BUFFERED) for key in keys]
        if detached:
            found = [
                detached.get(key, _NOT_BUFFERED) if value is _NOT_BUFFERED else value
                for key, value in zip(keys, found, strict=True)
            ]
        asked = [key for key, value in zip(keys, found, strict=True) if value is _NOT_BUFFERED]
        if asked:
            stored = iter(self._stored(asked))
            found = [next(stored) if value is _NOT_BUFFERED else value for value in found]
        return found

    def write(self, puts: Iterable[tuple[bytes, bytes]], deletes: Iterable[bytes]) -> None:
        with self._translated("write"):
            self._check_open()
            pairs, deleted = list(puts), list(deletes)
            self._buffer.update(dict.fromkeys(deleted))
            self._buffer.update(pairs)
            size = sum(map(len, chain.from_iterable(pairs))) + sum(map(len, deleted))
            if self._changelog is not None:
                self._changelog.add((deleted, pairs), size)
            self._written += len(pairs) + len(deleted)
            self._written_bytes += size
            pair_bytes = PAIR_BYTES + self._written_bytes // max(1, self._written)
            if len(self._buffer) * pair_bytes > BUFFER_BYTES_MAX:
                self._flush_buffer()

    def scan(self, first: bytes, end: bytes) -> Iterator[tuple[bytes, bytes]]:
        with self._translated("scan"):
            self._scanned = True
            self._flush_buffer()
            self._complete_flush()
            pairs: Iterator[Any] = self._db.items(from_key=first)
        return self._read(pairs, end)

    def checkpoint(self) -> RocksDBCheckpoint:
        self._complete_checkpoint()
        with self._translated("checkpoint"):
            log = self._changelog
            if log is not None and log.can_append() and not self._scanned:
                write = log.roll_segment()
            else:
                log = self._changelog = self._begin_changelog()
                write = partial(self._materialize, log)
                self._detach_buffer()
        self._scanned = False
        self._incomplete_checkpoint = RocksDBCheckpoint(
            make_files=partial(self._checkpoint_files, log, write),
            drop=partial(self._delete_previous, log),
        )
        return self._incomplete_checkpoint

    def close(self) -> None:
        self._closed = True
        self._buffer.clear()
        if self._incomplete_checkpoint is not None:
            self._incomplete_checkpoint.abandon()
        self._detached_buffer = {}
        with self._translated("close"):
            self._db.close()

    def _check_open(self) -> None:
        if self._closed:
            raise StorageError("The state store is closed.")

    def _stored(self, keys: Sequence[bytes]) -> list[bytes | None]:
        with self._translated("read"):
            self._complete_flush()
            found = self._db.get(list(keys))
        return cast("list[bytes | None]", found)

    def _flush_buffer(self) -> None:
        """Write the buffer into RocksDB and request a flush, because the memtable is a list, which
        each reader would sort as a whole.
        """
        if self._detached_buffer:
            self._complete_checkpoint()
            self._merge_detached_buffer()
        if not self._buffer:
            return
        self._complete_checkpoint()
        deque(self._put(self._buffer), maxlen=0)
        self._db.flush(wait=False)
        self._flushing = True
        self._buffer = {}
        self._written = self._written_bytes = 0

    def _detach_buffer(self) -> None:
        """Move the buffer aside for the full checkpoint that begins."""
        self._merge_detached_buffer()
        self._detached_buffer, self._buffer = self._buffer, {}
        self._written = self._written_bytes = 0
        self._flushing = True

    def _merge_detached_buffer(self) -> None:
        """Merge a detached buffer that RocksDB has refused into the buffer. Newer writes win."""
        if self._detached_buffer:
            self._buffer = self._detached_buffer | self._buffer
            self._detached_buffer = {}

    def _put(self, pairs: Mapping[bytes, bytes | None]) -> Iterator[None]:
        """Write pairs into RocksDB, and yield after each piece."""
        deleted: list[bytes] = []
        if None in pairs.values():
            deleted = [key for key, value in pairs.items() if value is None]
            pairs = {key: value for key, value in pairs.items() if value is not None}
        deletes, puts = zip(deleted, strict=True), iter(pairs.items())
        for method, calls, count in (("delete", deletes, len(deleted)), ("put", puts, len(pairs))):
            for _ in range(0, count, PIECE):
                batch = WriteBatch(raw_mode=True)
                some = islice(calls, PIECE)
                deque(starmap(getattr(batch, method), some), maxlen=0)  # a loop in C
                self._db.write(batch, self._write_options)
                yield

    def _complete_checkpoint(self) -> None:
        """Complete the newest checkpoint. Its `files` method returns the files or raises the
        error.
        """
        if self._incomplete_checkpoint is not None:
            self._incomplete_checkpoint.end()
            self._incomplete_checkpoint = None

    def _begin_changelog(self) -> Changelog:
        """Return a new changelog, which begins with a full checkpoint."""
        self._changelog_number += 1
        return Changelog(
            self._directory / _CHANGELOG / str(self._changelog_number), self._changelog_number
        )

    def _materialize(self, log: Changelog) -> None:
        """Start the changelog with a full checkpoint: put the detached buffer into RocksDB, and no
        other writes.
        """
        for _ in self._put(self._detached_buffer):
            self._check_open()  # `close` waits for this freeze, so it must end early
            time.sleep(0)  # code in C does not check whether another thread waits for the lock
        self._db.flush(wait=False)
        self._await_flush()
        log.materialize(self._make)
        done, self._detached_buffer = self._detached_buffer, {}
        while done:  # freeing the objects holds the lock too
            deque(starmap(done.popitem, repeat((), min(PIECE, len(done)))), maxlen=0)
            time.sleep(0)

    def _make(self, directory: Path) -> None:
        Checkpoint(self._db).create_checkpoint(str(directory))
        for path in directory.iterdir():
            if path.suffix == ".log" or path.name.startswith("OPTIONS-"):
                path.unlink()

    def _checkpoint_files(self, log: Changelog, write: Callable[[], None]) -> list[Path]:
        """Return the files of a checkpoint after `write` has added its files to the changelog."""
        with self._translated("checkpoint"):
            write()
            return log.files()

    def _delete_previous(self, log: Changelog) -> None:
        with self._translated("checkpoint"):
            log.delete_previous()

    def _await_flush(self) -> None:
        """Wait until RocksDB has done the requested flush, reports an error, or the time is over.
        If the flush failed, the creation of a checkpoint, which flushes again, raises the error,
        and so does the next write.
        """
        end_s = time.monotonic() + FLUSH_WAIT_S_MAX
        asked = self._db.property_int_value
        while asked(_UNFLUSHED) and not asked(_FAILED) and time.monotonic() < end_s:
            time.sleep(FLUSH_POLL_S)

    def _complete_flush(self) -> None:
        """Complete a checkpoint that is not frozen yet and wait for its flush, because reads must
        not read a memtable.
        """
        if self._flushing:
            self._complete_checkpoint()
            self._await_flush()
            self._flushing = False

    def _read(
        self, pairs: Iterator[tuple[bytes, bytes]], end: bytes
    ) -> Iterator[tuple[bytes, bytes]]:
        """Yield the pairs below `end`. This is a separate generator, so that `scan` opens the
        iterator at its call and not at the first use, and the content is that of the call.
        """
        with self._translated("scan"):
            # Not with RocksDB's upper bound: rocksdict frees its bytes while the iterator uses them
            for pair in pairs:
                if pair[0] >= end:
                    return
                yield pair

    @contextmanager
    def _translated(self, doing: str) -> Iterator[None]:
        """Raise every error of RocksDB as a StorageError with the folder, `doing` and a remedy."""
        end_if_forked()  # two processes would write the same files
        try:
            yield
        except CorruptCheckpointError:
            raise
        except Exception as error:  # rocksdict has no exception class for the errors of RocksDB
            reason = clause(error)
            remedy = "The job is restored from its last checkpoint."
            if any(sign in reason for sign in _NO_SPACE):
                remedy = (
                    "The disk is full: free space there, or set state.local_dir to a larger disk."
                )
            raise StorageError(
                f"The state store in {self._directory} could not {doing}: {reason}. {remedy}"
            ) from error


@functools.cache
def _block_cache() -> Cache:
    """Return the shared block cache. It is made at the first opening and not at import, because the
    import may happen before a fork.
    """
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
    # A write is one large unordered batch, and it is flushed before it is read. Filling a list
    # costs a tenth of filling a skip list, and one sort at the flush is cheaper than many
    # insertions.
    options.set_memtable_factory(MemtableFactory.vector())
    options.set_allow_concurrent_memtable_write(allow=False)  # a list allows only one writer
    options.set_write_buffer_size(WRITE_BUFFER_BYTES)
    options.set_level_zero_file_num_compaction_trigger(LEVEL_ZERO_FILES)
    options.set_max_background_jobs(BACKGROUND_JOBS)
    options.set_compression_type(DBCompressionType.lz4())
    options.set_keep_log_file_num(1)  # keep only the last of RocksDB's own log files
    options.set_stats_dump_period_sec(0)
    return options
