"""Measures the cost of keyed state in CPU nanoseconds per read-modify-write, without Kafka.

The pattern is that of a running total with 100,000 keys. Batches of random keys are as large as
those of a source for one subtask. A loop like that of the operator runs `total.value += amount` for
each record. A flush and a checkpoint come every 100,000 records. The same is measured with a plain
dict, which a crash loses.

The module also measures how long a full checkpoint of all these keys delays the mailbox thread, in
milliseconds. It measures the time to take the checkpoint, and the longest turn while another thread
makes its files.

    python -m integration.bench.state_micro
"""

from __future__ import annotations

import random
import shutil
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from decimal import Decimal
from pathlib import Path
from typing import Any

from tidegate.api.state.state import ValueState
from tidegate.dataplane.sources.kafka import BATCH_RECORDS
from tidegate.dataplane.state.backend import KeyedStateBackend
from tidegate.drivers.memory.store import MemoryStore
from tidegate.drivers.process.current import tune_gc
from tidegate.drivers.rocksdb import RocksDBStore
from tidegate.ids import Uid

KEYS = 100_000
BATCH = BATCH_RECORDS
INTERVAL = 100_000
"""Records between two checkpoints: 63 % of the keys are touched, most of them once."""
INTERVALS = 11
"""Number of intervals. The first one fills the cache and is reported separately."""
ROUNDS = 3
TURN = 30_000
"""Steps of a loop in C. They take a third of a millisecond, and some batches take longer."""


def main() -> None:
    """Print a table with the parts of the cost of a record, by type of state and store."""
    tune_gc()
    print("                    loop  look up    flush checkpoint     total  CPU ns a record")
    for of, amount in ((Decimal, Decimal("1.25")), (int, 3)):
        batches = _batches()
        _report(f"{of.__name__} dict", *_plain(of, amount, batches))
        for store in (RocksDBStore, MemoryStore):
            name = f"{of.__name__} {store.__name__.removesuffix('Store')}"
            _report(name, *_stored(of, amount, store, batches))
    print("\nfull checkpoint, ms:     taken  longest turn  files made after")
    for _ in range(ROUNDS):
        print(f"{'RocksDB':16}" + "".join(f"{ms:14.1f}" for ms in _beside_a_full_checkpoint()))


def _beside_a_full_checkpoint() -> tuple[float, float, float]:
    folder = Path(tempfile.mkdtemp(prefix="tidegate-state-"))
    store = RocksDBStore(folder)  # its first checkpoint is a full one
    keys = [b"customer-%d" % number for number in range(KEYS)]
    random.Random(7).shuffle(keys)
    store.write([(key, b"%030d" % number) for number, key in enumerate(keys)], [])
    clock = time.perf_counter
    with ThreadPoolExecutor(1) as upload:
        began = clock()
        files = upload.submit(store.checkpoint().files)
        taken = last = clock()
        longest = 0.0
        while not files.done():
            sum(range(TURN))
            time.sleep(0)  # a fetch releases the lock of the interpreter
            now = clock()
            longest, last = max(longest, now - last), now
    store.close()
    shutil.rmtree(folder)
    return (taken - began) * 1e3, longest * 1e3, (last - began) * 1e3


def _batches() -> list[list[str]]:
    rng = random.Random(7)
    return [
        [f"customer-{rng.randrange(KEYS)}" for _ in range(BATCH)]
        for _ in range(INTERVAL * INTERVALS // BATCH)
    ]


def _plain(of: Any, amount: Any, batches: list[list[str]]) -> tuple[float, ...]:
    totals: dict[str, Any] = {}
    for keys in batches[: INTERVAL // BATCH]:
        for key in keys:
            totals[key] = totals.get(key, of()) + amount
    began = time.process_time()
    for keys in batches[INTERVAL // BATCH :]:
        for key in keys:
            totals[key] = totals.get(key, of()) + amount
    return (time.process_time() - began, 0.0, 0.0, 0.0)


class _Function:
    """A stand-in for the function of a user. The loop sets the state cell on it."""

    def process(self, amount: Any) -> None:
        self.total.value += amount  # type: ignore[attr-defined]


def _stored(
    of: Any, amount: Any, open_store: Callable[[Path], Any], batches: list[list[str]]
) -> tuple[float, ...]:
    folder = Path(tempfile.mkdtemp())
    declared: ValueState[Any] = ValueState(of, default=of())
    declared.__set_name__(_Function, "total")
    store = open_store(folder / "store")
    state = KeyedStateBackend(
        Uid("bench"), {"total": declared}, str, 128, range(128), store, 200_000
    )
    function = _Function()
    hang, process, rows = function.__dict__, function.process, state.rows
    loop = loading = flush = checkpoint = 0.0
    clock = time.process_time
    for number, keys in enumerate(batches, 1):
        at = clock()
        found = rows(keys)
        loaded = clock()
        for hang["total"] in found:
            process(amount)
        done = clock()
        loading += loaded - at
        loop += done - loaded
        if number * BATCH % INTERVAL == 0:
            state.flush()
            flushed = clock()
            state.begin_snapshot()
            while state.save_next() is None:
                pass
            flush += flushed - done
            checkpoint += clock() - flushed
            if number * BATCH == INTERVAL:
                first = (loop + loading + flush + checkpoint) / INTERVAL * 1e9
                print(f"                the first interval, which loads every key: {first:.0f}")
                loop = loading = flush = checkpoint = 0.0
    state.close()
    shutil.rmtree(folder)
    return loop, loading, flush, checkpoint


def _report(name: str, *seconds: float) -> None:
    records = INTERVAL * (INTERVALS - 1)
    costs = [part / records * 1e9 for part in (*seconds, sum(seconds))]
    print(f"{name:16}" + "".join(f"{cost:10.0f}" for cost in costs))


if __name__ == "__main__":
    main()
