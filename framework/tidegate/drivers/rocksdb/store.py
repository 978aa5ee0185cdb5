"""`RocksDBStore`: the key-value store of one keyed step, in a folder, by RocksDB.

It keeps no write-ahead log: what is not in a checkpoint does not survive the process, and is not
meant to. A checkpoint flushes the memtable and links the table files into a new folder; table files
never change and their numbers are never used twice by one store, so that only new ones need
uploading. The write-ahead log and the option files that RocksDB adds to a checkpoint are left out:
the first is empty, the second are restated at each opening.

Called by the mailbox thread only. rocksdict raises plain `Exception` for whatever RocksDB reports;
all of it becomes `StorageError` with the folder's name, a full disk with the remedy.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
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

from tidegate.errors import StorageError

BLOCK_CACHE_BYTES: Final = 32 << 20
"""Shared by all stores of a process: the write-back cache above holds the hot keys already, so this
serves index and filter look-ups of cold ones within a slot's 200 MB."""

WRITE_BUFFER_BYTES: Final = 32 << 20
"""A memtable: an interval of 100,000 changed keys is about 10 MB, so checkpoints flush and not
size.
"""

BLOOM_BITS_PER_KEY: Final = 10
"""1 % false positives: a key that was never seen is answered without reading a block."""

BACKGROUND_JOBS: Final = 2
"""One flush and one compaction at a time; a slot is meant to use one core."""

LEVEL_ZERO_FILES: Final = 8
"""Checkpoints whose tables are merged in one compaction. RocksDB's own 4 would compact twice as
often for nothing: reads are few, and the Bloom filters answer most.
"""

_NO_SPACE: Final = ("No space left", "Disk quota exceeded", "out of space")


class RocksDBStore:
    """An empty or existing store in a local folder, which is made where it is missing."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._write_options = WriteOptions()
        # A property, which rocksdict's stub takes for a method.
        self._write_options.disable_wal = True  # type: ignore[method-assign, assignment]
        with self._translated("open"):
            directory.mkdir(parents=True, exist_ok=True)
            self._db = Rdict(str(directory), _options())
        self._unsettled = False
        """Whether the memtable has content."""

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        with self._translated("read"):
            self._settle()
            found = self._db.get(list(keys))
        return cast("list[bytes | None]", found)

    def write(self, puts: Iterable[tuple[bytes, bytes]], deletes: Iterable[bytes]) -> None:
        batch = WriteBatch(raw_mode=True)
        with self._translated("write"):
            delete, put = batch.delete, batch.put
            for key in deletes:
                delete(key)
            for key, value in puts:
                put(key, value)
            self._db.write(batch, self._write_options)
            self._unsettled = True

    def scan(self, first: bytes, end: bytes) -> Iterator[tuple[bytes, bytes]]:
        with self._translated("scan"):
            self._settle()
            pairs: Iterator[Any] = self._db.items(from_key=first)
        return self._read(pairs, end)

    def checkpoint(self, directory: Path) -> list[Path]:
        with self._translated("checkpoint"):
            directory.parent.mkdir(parents=True, exist_ok=True)
            Checkpoint(self._db).create_checkpoint(str(directory))
            self._unsettled = False
            files = []
            for path in sorted(directory.iterdir()):
                if path.suffix == ".log" or path.name.startswith("OPTIONS-"):
                    path.unlink()
                else:
                    files.append(path)
        return files

    def volatile_names(self) -> frozenset[str]:
        return frozenset({"CURRENT", "MANIFEST-*"})

    def close(self) -> None:
        with self._translated("close"):
            self._db.close()

    def _settle(self) -> None:
        """Empty the memtable before a read: it is a list, which each reader would sort as a whole.

        Seldom: writes are followed by a checkpoint, but for those of an overflowing cache.
        """
        if self._unsettled:
            self._db.flush()
            self._unsettled = False

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
