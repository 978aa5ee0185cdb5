"""`Engine`: the mailbox and the I/O threads of subtasks, and the reporting of their failures.

Every owner of subtasks has an engine: a slot process has one for an attempt, and a backfill task
has one for a wave. The engine has no loop of its own. The owner calls `mailbox.run_posted` and the
subtasks in turn, in one thread, the mailbox thread. Every blocking call runs in an I/O thread and
posts its outcome.

Invariant: an exception of a posted action or of an I/O action is never lost. The engine passes the
exception and its subtask to the owner's `fail`, in the mailbox thread.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final

from tidegate.ids import SubtaskId
from tidegate.ports.threads import Threads, WorkerPool
from tidegate.user_exceptions import process_ends

Action = Callable[[], None]


class Mailbox:
    """The posted actions, in order. Any thread may post. One thread runs the actions.

    This is Flink's mailbox model. Everything that touches a subtask runs in one thread, between two
    batches. The threads that serve control messages, uploads, flushes and connections only post
    actions. `post` never blocks, and it wakes the mailbox thread if that thread waits.
    """

    def __init__(self, threads: Threads) -> None:
        self._actions: deque[Action] = deque()
        self._posted = threads.event()

    def post(self, action: Action) -> None:
        """Run `action` soon, in the mailbox thread."""
        self._actions.append(action)
        self._posted.set()

    def run_posted(self) -> None:
        """Run the actions posted before this call. Actions that these post wait for the next."""
        if not self._actions:
            return
        self._posted.clear()
        for _ in range(len(self._actions)):
            self._actions.popleft()()

    def has_posts(self) -> bool:
        """Return whether a posted action has not run yet."""
        return bool(self._actions)

    def wait(self, timeout_s: float) -> None:
        """Return when an action is posted, or after `timeout_s` seconds."""
        if not self._actions:
            self._posted.wait(timeout_s)
            self._posted.clear()


IO_THREADS: Final = 8
"""Number of flushes, describes and uploads that one slot runs at the same time. A slot has few
sinks and states, and each has one such call at a time.
"""

Fail = Callable[[BaseException, SubtaskId | None], None]


class Engine:
    """The mailbox and the I/O threads of one owner of subtasks. Any thread may call `post`,
    `run_io` and `post_failure`. Only the mailbox thread may call the other methods.
    """

    def __init__(self, threads: Threads, fail: Fail, io: WorkerPool | None = None) -> None:
        """Create the engine. `io` is a pool that outlives the engine; if it is None, the engine
        makes its own pool.
        """
        self.mailbox = Mailbox(threads)
        self._fail = fail
        self._io = io or threads.pool(IO_THREADS, name="io")

    def post(self, action: Action, subtask: SubtaskId | None) -> None:
        """Run `action` in the mailbox thread, between two batches."""
        self.mailbox.post(lambda: self.run_guarded(action, subtask))

    def run_io(self, action: Action, subtask: SubtaskId | None) -> None:
        """Run `action` in an I/O thread."""

        def run_guarded() -> None:
            try:
                action()
            except process_ends():
                raise
            except BaseException as error:  # noqa: BLE001 - whatever it is ends the attempt
                self.post_failure(error, subtask)

        self._io.submit(run_guarded)

    def post_failure(self, error: BaseException, subtask: SubtaskId | None) -> None:
        """Report a failure in the mailbox thread. Any thread may call this method."""
        self.mailbox.post(lambda: self._fail(error, subtask))

    def run_guarded(self, action: Action, subtask: SubtaskId | None) -> None:
        """Run `action` now and report the exception if it raises."""
        try:
            action()
        except process_ends():
            raise
        except BaseException as error:  # noqa: BLE001 - whatever it is ends the attempt
            self._fail(error, subtask)
