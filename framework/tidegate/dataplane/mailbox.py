"""The mailbox of a slot: actions from other threads, run one by one in the slot's own thread.

Flink's mailbox model: everything that touches a subtask runs in one thread, between two batches;
threads that serve control messages, uploads, flushes and connections only post. `post` never blocks
and wakes the thread if it waits.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from tidegate.ports.threads import Threads

Action = Callable[[], None]


class Mailbox:
    """Posted actions, in order. One thread runs them; any thread posts."""

    def __init__(self, threads: Threads) -> None:
        self._actions: deque[Action] = deque()
        self._posted = threads.event()

    def post(self, action: Action) -> None:
        """Run `action` in the mailbox thread, soon."""
        self._actions.append(action)
        self._posted.set()

    def run_posted(self) -> None:
        """Run what was posted before this call; what an action posts waits for the next call."""
        if not self._actions:
            return
        self._posted.clear()
        for _ in range(len(self._actions)):
            self._actions.popleft()()

    def has_posts(self) -> bool:
        """Whether something was posted that has not run."""
        return bool(self._actions)

    def wait(self, timeout_s: float) -> None:
        """Return when something is posted, or after `timeout_s`."""
        if not self._actions:
            self._posted.wait(timeout_s)
            self._posted.clear()
