"""`Engine`: the mailbox and the I/O threads that subtasks run with, and where their failures go.

Whoever runs subtasks has one: a slot process for an attempt, a task of a backfill for one wave. It
owns no loop. The owner calls `run_posted` and the subtasks in turn, in one thread, the mailbox
thread. Whatever blocks runs in an I/O thread and posts its outcome.

Invariant: an exception of a posted action or of an I/O action is never lost. It comes to the
owner's `fail`, in the mailbox thread, with the subtask whose failure it is.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from tidegate.dataplane.mailbox import Action, Mailbox
from tidegate.ids import SubtaskId
from tidegate.ports.threads import Threads, WorkerPool

IO_THREADS: Final = 8
"""Flushes, describes and uploads of one slot at once: a few sinks and states, each with one."""

Fail = Callable[[BaseException, SubtaskId | None], None]


class Engine:
    """Runs actions for subtasks. `post`, `run_io` and `fail_from_anywhere` may be called in any
    thread, the rest in the mailbox thread.
    """

    def __init__(self, threads: Threads, fail: Fail, io: WorkerPool | None = None) -> None:
        """`io` is a pool that outlives this engine; without one the engine makes its own."""
        self.mailbox = Mailbox(threads)
        self._fail = fail
        self._io = io or threads.pool(IO_THREADS, name="io")

    def post(self, action: Action, subtask: SubtaskId | None) -> None:
        """Run `action` in the mailbox thread, between two batches."""
        self.mailbox.post(lambda: self.guarded(action, subtask))

    def run_io(self, action: Action, subtask: SubtaskId | None) -> None:
        """Run `action` in an I/O thread."""

        def guarded() -> None:
            try:
                action()
            except Exception as error:  # noqa: BLE001 - whatever it is ends the attempt
                self.fail_from_anywhere(error, subtask)

        self._io.submit(guarded)

    def fail_from_anywhere(self, error: BaseException, subtask: SubtaskId | None) -> None:
        """Report a failure, in the mailbox thread."""
        self.mailbox.post(lambda: self._fail(error, subtask))

    def guarded(self, action: Action, subtask: SubtaskId | None) -> None:
        """Run `action` now; report what it raises."""
        try:
            action()
        except Exception as error:  # noqa: BLE001 - whatever it is ends the attempt and is reported
            self._fail(error, subtask)
