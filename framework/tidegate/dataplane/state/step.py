"""`StepState`: keyed state as a task drives it, joined from the cache, its store and the uploader.

`open_step_state` restores and opens it when the subtask is made. From then on the operator's loop
uses `rows`, the task `snapshot` at each barrier: the cache is flushed and the store frozen at once;
its files are awaited and uploaded in an I/O thread, whose outcome comes back to the mailbox thread.

Invariant: uploads of one step go one after the other, in the order of their barriers, so that a
file is either known to be in the storage or sent once. The next one begins when the mailbox thread
hears of the end of the one before: none waits in an I/O thread, which sinks and other steps need.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from tidegate.api.state import State
from tidegate.dataplane.runtime import Action, Runtime
from tidegate.dataplane.state.backend import KeyedState, Row
from tidegate.dataplane.state.snapshots import SnapshotUploader, restore
from tidegate.errors import StorageError
from tidegate.graph.key_groups import key_group_range
from tidegate.ids import CheckpointId, Uid
from tidegate.ports.kv import Frozen
from tidegate.protocol.snapshots import KeyedSnapshot

Done = Callable[[KeyedSnapshot], None]
Failed = Callable[[str], None]


def open_step_state(
    runtime: Runtime,
    uid: Uid,
    states: Mapping[str, State],
    key_type: object,
    snapshots: Sequence[KeyedSnapshot],
) -> StepState:
    """Restore the state of a step in `runtime`'s subtask from its snapshots (of any subtasks of the
    checkpoint; none for a fresh start) and open it. Reads the checkpoint storage: may take long.

    Raises CorruptCheckpointError, StorageError, and PipelineError where the declared states cannot
    read what is stored.
    """
    settings, subtask = runtime.config.state, runtime.subtask
    key_groups = key_group_range(subtask.index, runtime.parallelism, runtime.max_parallelism)
    directory = runtime.local / uid
    restored = restore(
        [one for one in snapshots if one.uid == uid],
        uid=uid,
        key_groups=key_groups,
        backend=settings.backend,
        job=runtime.job,
        blobs=runtime.blobs,
        directory=directory,
        open_store=runtime.drivers.kv_store,
    )
    state = KeyedState(
        uid,
        states,
        key_type,
        runtime.max_parallelism,
        key_groups,
        restored.store,
        cache_entries=settings.cache_entries,
        schemas=restored.schemas,
    )
    uploader = SnapshotUploader(
        blobs=runtime.blobs,
        job=runtime.job,
        attempt=runtime.attempt,
        subtask=subtask,
        uid=uid,
        backend=settings.backend,
        key_groups=key_groups,
        shared=restored.shared,
    )
    return StepState(
        state,
        uploader,
        directory / "checkpoints",
        post=runtime.post,
        run_io=runtime.run_io,
    )


class StepState:
    """The keyed state of one step in one subtask. Called by the mailbox thread."""

    def __init__(
        self,
        state: KeyedState,
        uploader: SnapshotUploader,
        directory: Path,
        *,
        post: Callable[[Action], None],
        run_io: Callable[[Action], None],
    ) -> None:
        self._state, self._uploader, self._directory = state, uploader, directory
        self._post, self._run_io = post, run_io
        self._frozen: deque[tuple[Path, Frozen, Done, Failed]] = deque()
        """Checkpoints that wait for their upload, oldest first."""
        self._uploading = False
        """Whether one is under way; known to the mailbox thread alone."""

    def rows(self, keys: Sequence[Any]) -> list[Row]:
        """The row of each of a batch's keys; valid until the next call."""
        return self._state.rows(keys)

    def snapshot(self, checkpoint: CheckpointId, done: Done, failed: Failed) -> None:
        """Freeze now; store in the background; `done`, or `failed` where the storage does not take
        it, is called in the mailbox thread.

        Raises StorageError if the state cannot be frozen, here or in the I/O thread: that ends the
        attempt.
        """
        directory = self._directory / str(checkpoint)
        frozen = self._state.snapshot_sync(directory)
        self._frozen.append((directory, frozen, done, failed))
        self._begin_upload()

    def completed(self, checkpoint: CheckpointId) -> None:
        """The checkpoint is published: nothing to do, files are deleted by who keeps the
        manifests.
        """

    def close(self) -> None:
        """Drop the uploads that have not begun, and release the store."""
        self._frozen.clear()
        self._state.close()

    def _begin_upload(self) -> None:
        if self._frozen and not self._uploading:
            self._uploading = True
            self._run_io(self._upload_oldest)

    def _upload_oldest(self) -> None:
        """In an I/O thread."""
        try:
            directory, frozen, done, failed = self._frozen.popleft()
        except IndexError:  # closed meanwhile
            return
        frozen.files()  # what cannot be frozen ends the attempt: the state itself is in doubt
        try:
            snapshot = self._uploader.upload(directory, frozen, self._state.schemas)
        except StorageError as error:
            reason = str(error)  # declined: how many failures are tolerable is configured
            self._post(lambda: self._uploaded(lambda: failed(reason)))
            return
        self._post(lambda: self._uploaded(lambda: done(snapshot)))

    def _uploaded(self, report: Action) -> None:
        self._uploading = False
        self._begin_upload()
        report()
