"""`SubtaskKeyedState`: the keyed state that a task drives. It joins the cache, its store and the
uploader.

`open_step_state` restores and opens the state when the subtask is made. After that, the operator's
loop uses `rows`, and the task uses `snapshot` at each barrier. From a barrier on, the changes are
saved between batches, and then the store is frozen. An I/O thread waits for the frozen files and
uploads them. The mailbox thread gets the outcome.

Invariant: the uploads of one step run one after the other, in the order of their barriers. A file
is therefore either known to be in the storage, or sent once. The next upload begins when the
mailbox thread gets the outcome of the previous one. No upload waits in an I/O thread, because sinks
and other steps need these threads.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

import msgspec

from tidegate.api.state.state import State
from tidegate.dataplane.state.backend import KeyedStateBackend
from tidegate.dataplane.state.pending_rows import Row
from tidegate.dataplane.state.snapshots import SnapshotUploader, restore
from tidegate.dataplane.state.window_tables import WindowTables
from tidegate.dataplane.subtask_context import Action, SubtaskContext
from tidegate.dataplane.time.timer_index import TimerIndex
from tidegate.errors import StorageError
from tidegate.graph.key_groups import key_group_range
from tidegate.ids import Uid
from tidegate.ports.clock import Clock
from tidegate.ports.kv import StoreCheckpoint
from tidegate.protocol.subtask_snapshot import KeyedSnapshot
from tidegate.stream_elements import MIN_MS

Done = Callable[[KeyedSnapshot], None]
Failed = Callable[[str], None]

TURN_S: Final = 0.025
"""Seconds of a turn of the mailbox thread for which the next turn saves one more piece. A piece
takes two or three milliseconds (see `pending_rows.ROWS`), so saving takes a tenth of the time. With
slow user code, a snapshot therefore does not take as many turns as it has pieces.
"""


def open_step_state(
    context: SubtaskContext,
    uid: Uid,
    states: Mapping[str, State],
    key_type: object,
    snapshots: Sequence[KeyedSnapshot],
    dropped_states: Collection[str] = (),
    group_bytes: Callable[[Any], bytes] | None = None,
) -> SubtaskKeyedState:
    """Restore the state of a step in `context`'s subtask from its snapshots, and open it.

    `group_bytes` is as in `KeyedStateBackend`.

    The snapshots may come from any subtasks of the checkpoint. A fresh start has none. The function
    reads the checkpoint storage, except for files that earlier attempts left on this host, so it
    may take long.

    Raise CorruptCheckpointError, StorageError, and PipelineError if the declared states cannot read
    the stored data.
    """
    settings, subtask, mode = context.config.state, context.subtask, context.config.checkpoint.mode
    key_groups = key_group_range(subtask.index, context.parallelism, context.max_parallelism)
    directory = context.local / uid
    restored = restore(
        [one for one in snapshots if one.uid == uid],
        uid=uid,
        key_groups=key_groups,
        backend=settings.backend,
        job=context.job,
        blobs=context.blobs,
        local=context.earlier,
        counters=context.counters,
        directory=directory,
        open_store=context.drivers.kv_store,
    )
    state = KeyedStateBackend(
        uid,
        states,
        key_type,
        context.max_parallelism,
        key_groups,
        restored.store,
        cache_entries=settings.cache_entries,
        schemas=restored.schemas,
        stored_names=restored.stored_names,
        dropped_states=dropped_states,
        group_bytes=group_bytes,
    )
    uploader = SnapshotUploader(
        blobs=context.blobs,
        job=context.job,
        attempt=context.attempt,
        subtask=subtask,
        uid=uid,
        backend=settings.backend,
        key_groups=key_groups,
        shared=restored.shared,
        run=context.run,
        counters=context.counters,
        notes=directory if context.run else None,
    )
    return SubtaskKeyedState(
        state,
        uploader,
        watermark_ms=restored_watermark(snapshots, aligned=mode == "exactly_once"),
        clock=context.drivers.clock,
        post=context.post,
        run_io=context.run_io,
    )


def restored_watermark(snapshots: Iterable[KeyedSnapshot], *, aligned: bool) -> int:
    """Return the watermark with which a subtask of a step continues: the highest of the snapshots
    that it restores.

    With aligned barriers, the subtasks differ only by what full outputs have held back. Without
    them, a subtask may be ahead of records that are read again, so the lowest watermark counts.
    """
    found = [MIN_MS if one.watermark_ms is None else one.watermark_ms for one in snapshots]
    return (max if aligned else min)(found, default=MIN_MS)


class _Saving(NamedTuple):
    """A checkpoint of the step, and the callbacks for its outcome."""

    done: Done
    failed: Failed
    watermark_ms: int


class SubtaskKeyedState:
    """The keyed state of one step in one subtask. The mailbox thread calls it."""

    def __init__(
        self,
        state: KeyedStateBackend,
        uploader: SnapshotUploader,
        *,
        watermark_ms: int = MIN_MS,
        clock: Clock,
        post: Callable[[Action], None],
        run_io: Callable[[Action], None],
    ) -> None:
        self._state, self._uploader = state, uploader
        self.watermark_ms = watermark_ms
        """The watermark of the step: at first that of the restored checkpoint. The operator moves
        it, and each snapshot holds it. With aligned barriers, no restore takes it back.
        """
        self._clock, self._post, self._run_io = clock, post, run_io
        self._saving: _Saving | None = None
        """The newest checkpoint, until all of it is saved."""
        self._saved_s = 0.0
        """Monotonic time in seconds at which the last pieces were saved."""
        self._pending_uploads: deque[tuple[_Saving, StoreCheckpoint]] = deque()
        """Checkpoints that wait for their upload, oldest first."""
        self._uploading = False
        """Whether an upload is running. Only the mailbox thread uses this."""

    @property
    def timers(self) -> Mapping[str, TimerIndex]:
        """The keys of the timers that are set, by name of their declaration."""
        return self._state.timers

    @property
    def tables(self) -> WindowTables | None:
        """The state that lies in tables, if the step declares some."""
        return self._state.tables

    def scan(self, name: str) -> Iterator[Any]:
        """Return all stored values of a state that is a value. Call it before the first record."""
        return self._state.scan(name)

    def rows(self, keys: Sequence[Any]) -> list[Row]:
        """Return the row of each of a batch's keys. The rows are valid until the next call."""
        return self._state.rows(keys)

    def why_not(self, row: Row, images: Sequence[object]) -> str:
        """Return why a checkpoint could not store the changes in a row since the images of its
        cells were taken; empty if it could.
        """
        return self._state.why_not(row, images)

    def flush(self) -> None:
        """Write the changes to the store. A pipeline test does so after each push, so that a value
        that cannot be stored fails there. Raise StateValueError for such a value.
        """
        self._state.flush()

    def snapshot(self, done: Done, failed: Failed) -> None:
        """Take the present content as a snapshot, and save and store it from now on.

        The mailbox thread calls `done`, or `failed` if the storage does not accept the snapshot.

        Raise StorageError if the state cannot be frozen. The error may come from this call, between
        two batches, or in the I/O thread. It ends the attempt.
        """
        while self._saving is not None:
            self._advance()  # first finish the previous snapshot
        self._state.begin_snapshot()
        self._saving = _Saving(done, failed, self.watermark_ms)
        self._saved_s = self._clock.monotonic()
        self._go_on(self._saving)

    def close(self) -> None:
        """Drop the uploads that have not begun, and release the store."""
        self._saving = None
        self._pending_uploads.clear()
        self._state.close()

    def _go_on(self, saving: _Saving) -> None:
        """Save some more pieces, once per turn of the mailbox thread, until all are saved."""
        now_s = self._clock.monotonic()
        pieces = 1 + int((now_s - self._saved_s) / TURN_S)
        while self._saving is saving and pieces:
            self._advance()
            pieces -= 1
        self._saved_s = self._clock.monotonic()
        if self._saving is saving:
            self._post(lambda: self._go_on(saving))

    def _advance(self) -> None:
        store_checkpoint = self._state.save_next()
        if store_checkpoint is not None and self._saving is not None:
            self._pending_uploads.append((self._saving, store_checkpoint))
            self._saving = None
            self._begin_upload()

    def _begin_upload(self) -> None:
        if self._pending_uploads and not self._uploading:
            self._uploading = True
            self._run_io(self._upload_oldest)

    def _upload_oldest(self) -> None:
        """Upload the oldest frozen checkpoint, in an I/O thread."""
        try:
            saving, store_checkpoint = self._pending_uploads.popleft()
        except IndexError:  # the state was closed meanwhile
            return
        store_checkpoint.files()  # an error ends the attempt: the state may be wrong
        try:
            state = self._state
            snapshot = self._uploader.upload(store_checkpoint, state.schemas, state.stored_names)
        except StorageError as error:
            reason = str(error)  # declined: the settings limit the number of failures
            self._post(lambda: self._uploaded(lambda: saving.failed(reason)))
            return
        if saving.watermark_ms > MIN_MS:
            snapshot = msgspec.structs.replace(snapshot, watermark_ms=saving.watermark_ms)
        self._post(lambda: self._uploaded(lambda: saving.done(snapshot)))

    def _uploaded(self, report: Action) -> None:
        self._uploading = False
        self._begin_upload()
        report()
