"""`SubtaskKeyedState` as a task drives it: restored from a runtime, frozen now, stored in
background.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import msgspec
import pytest

from tests.dataplane.state.blobs import MemoryBlobs
from tests.dataplane.state.job import JOB, UID, declare, open_store
from tidegate.api.state.state import ValueState
from tidegate.config import Config
from tidegate.dataplane.state import pending_rows
from tidegate.dataplane.state.local_files import LocalStateFiles
from tidegate.dataplane.state.step import SubtaskKeyedState, open_step_state, restored_watermark
from tidegate.dataplane.subtask_context import SubtaskContext
from tidegate.drivers.threads import SystemThreads
from tidegate.errors import StorageError
from tidegate.ids import Attempt, SubtaskId, SubtaskIndex, VertexId
from tidegate.ports.drivers import Drivers
from tidegate.protocol.subtask_snapshot import KeyedSnapshot
from tidegate.stream_elements import MIN_MS


class Surroundings:
    """A runtime whose I/O and mailbox are queues that the test runs."""

    def __init__(self, folder: Path, blobs: MemoryBlobs) -> None:
        self.io: deque[Callable[[], None]] = deque()
        self.mailbox: deque[Callable[[], None]] = deque()
        self.done: list[KeyedSnapshot] = []
        self.failed: list[str] = []
        self.folder, self.blobs = folder, blobs
        self.now_s = 0.0

    def monotonic(self) -> float:
        return self.now_s

    def open(self, snapshots: Any = (), attempt: int = 1, **subtask: int) -> SubtaskKeyedState:
        class OnlyStores:
            kv_store = staticmethod(open_store)
            threads = SystemThreads()
            clock = self

        context = SubtaskContext(
            job=JOB,
            journal_id="j",
            attempt=Attempt(attempt),
            subtask=SubtaskId(VertexId("v"), SubtaskIndex(subtask.get("index", 0))),
            parallelism=subtask.get("parallelism", 1),
            max_parallelism=8,
            config=Config(),
            drivers=cast("Drivers", OnlyStores()),
            blobs=self.blobs,
            local=self.folder / str(attempt),
            transactions=cast("Any", None),
            transaction_timeout_ms=1,
            producer_pool_size=1,
            transactional_id_indexes=range(1),
            post=self.mailbox.append,
            run_io=self.io.append,
            fail=lambda error: None,
            earlier=LocalStateFiles(),
        )
        states = declare(total=ValueState(int, default=0))
        return open_step_state(context, UID, states, str, snapshots)

    def add(self, state: SubtaskKeyedState, amount: int) -> int:
        (cell,) = state.rows(["ann"])
        cell.value += amount
        return int(cell.value)


@pytest.fixture
def around(tmp_path: Path) -> Surroundings:
    return Surroundings(tmp_path, MemoryBlobs())


def test_snapshot_is_frozen_at_the_barrier_and_uploaded_later(around: Surroundings) -> None:
    state = around.open()
    around.add(state, 1)
    state.snapshot(around.done.append, around.failed.append)
    around.add(state, 10)
    assert not around.blobs.objects
    around.io.popleft()()
    assert not around.done  # the mailbox thread has not run
    around.mailbox.popleft()()
    state.close()
    again = around.open(around.done, attempt=2)
    assert around.add(again, 0) == 1
    again.close()


def test_uploads_keep_the_order_of_their_barriers(around: Surroundings) -> None:
    """Uploads take one I/O thread for each step, however many wait. Sinks and other steps need I/O
    threads too, and a storage that hangs would soon occupy all of them.
    """
    state = around.open()
    for _ in range(3):
        around.add(state, 1)
        state.snapshot(around.done.append, around.failed.append)
    for _ in range(3):
        (action,) = around.io
        around.io.clear()
        action()
        assert not around.io, "the next one begins in the mailbox thread"
        around.mailbox.popleft()()
    assert not around.io
    assert not around.mailbox
    assert [len(snapshot.files) for snapshot in around.done] == [4, 5, 6]  # one adds to the other
    for snapshot, expected in zip(around.done, (1, 2, 3), strict=True):
        again = around.open([snapshot], attempt=10 + expected)
        assert around.add(again, 0) == expected
        again.close()
    state.close()


def test_slow_turns_save_more_rows_of_a_snapshot_per_turn(
    around: Surroundings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A batch that takes seconds must not make a snapshot take minutes."""
    monkeypatch.setattr(pending_rows, "ROWS", 1)
    state = around.open()
    state.rows([str(number) for number in range(200)])
    state.snapshot(around.done.append, around.failed.append)
    for turn_s, turns in ((0.01, 20), (1.0, 5)):
        for _ in range(turns):
            assert not around.io
            around.now_s += turn_s
            around.mailbox.popleft()()
    assert len(around.io) == 1
    state.close()


def test_a_snapshot_is_saved_between_batches(
    around: Surroundings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One piece a turn, and never two barriers at once; one that a close overtakes is dropped."""
    monkeypatch.setattr(pending_rows, "ROWS", 1)
    state = around.open()
    for key in ("ann", "bob", "cid"):
        state.rows([key])[0].value += 1
    state.snapshot(around.done.append, around.failed.append)
    assert not around.io
    (go_on,) = around.mailbox
    around.add(state, 10)
    state.snapshot(around.done.append, around.failed.append)
    assert len(around.io) == 1, "the first is saved to its end before the second begins"
    go_on()
    assert len(around.mailbox) == 2, "and what was to go on with it does nothing"
    while around.mailbox or around.io:
        (around.mailbox or around.io).popleft()()
    for snapshot, total in zip(around.done, (1, 11), strict=True):
        again = around.open([snapshot], attempt=10 + total)
        assert around.add(again, 0) == total
        again.close()
    around.add(state, 1)
    state.rows(["bob"])[0].value += 1
    state.snapshot(around.done.append, around.failed.append)
    state.close()
    while around.mailbox or around.io:
        (around.mailbox or around.io).popleft()()
    assert len(around.done) == 2


def test_failed_upload_is_reported_and_the_next_upload_succeeds(around: Surroundings) -> None:
    state = around.open()
    around.add(state, 3)
    around.blobs.failing = "CURRENT.1"
    for _ in range(2):
        state.snapshot(around.done.append, around.failed.append)
        around.io.popleft()()
        around.mailbox.popleft()()
        around.blobs.failing = ""
    assert len(around.done) == 1
    assert "refused by the test" in around.failed[0]
    state.close()
    again = around.open(around.done, attempt=2)
    assert around.add(again, 0) == 3
    again.close()


def test_store_that_cannot_make_a_snapshot_ends_the_attempt(around: Surroundings) -> None:
    """Out of the I/O thread's action, and not as a declined checkpoint."""
    state = around.open()
    around.add(state, 3)
    (around.folder / "1" / UID / "store" / "changelog").touch()
    state.snapshot(around.done.append, around.failed.append)
    with pytest.raises(StorageError, match="could not checkpoint"):
        around.io.popleft()()
    assert not around.mailbox
    state.close()


def test_closing_drops_uploads_that_have_not_begun(around: Surroundings) -> None:
    state = around.open()
    state.snapshot(around.done.append, around.failed.append)
    state.close()
    around.io.popleft()()
    assert not around.blobs.objects
    assert not around.mailbox


def test_subtask_restores_its_key_groups_from_the_snapshot_of_another_subtask(
    around: Surroundings,
) -> None:
    state = around.open()
    around.add(state, 7)
    state.snapshot(around.done.append, around.failed.append)
    around.io.popleft()()
    around.mailbox.popleft()()
    state.close()
    owner = around.open(around.done, attempt=2, index=1, parallelism=2)  # "ann" is of group 6
    assert around.add(owner, 0) == 7
    owner.close()


def test_watermark_of_the_step_is_stored_at_the_barrier_and_restored(around: Surroundings) -> None:
    state = around.open()
    assert state.watermark_ms == MIN_MS
    state.watermark_ms = 7
    state.snapshot(around.done.append, around.failed.append)
    state.watermark_ms = 9  # it moves on before the upload
    around.io.popleft()()
    around.mailbox.popleft()()
    state.close()
    [snapshot] = around.done
    assert snapshot.watermark_ms == 7
    again = around.open([snapshot], attempt=2)
    assert again.watermark_ms == 7
    again.close()


def test_step_continues_with_the_highest_watermark_of_aligned_subtasks(
    around: Surroundings,
) -> None:
    state = around.open()
    state.snapshot(around.done.append, around.failed.append)
    around.io.popleft()()
    around.mailbox.popleft()()
    state.close()
    parts = [
        msgspec.structs.replace(around.done[0], watermark_ms=watermark_ms)
        for watermark_ms in (7, None, 9)
    ]
    assert restored_watermark(parts, aligned=True) == 9
    assert restored_watermark(parts, aligned=False) == MIN_MS, "all records may come again"
    assert restored_watermark(parts[::2], aligned=False) == 7, "records up to 9 may come again"
    assert restored_watermark([], aligned=True) == MIN_MS
