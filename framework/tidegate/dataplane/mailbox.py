"""The mailbox of a slot: other threads post actions, and the slot's own thread runs them in order.

This is Flink's mailbox model. Everything that touches a subtask runs in one thread, between two
batches. The threads that serve control messages, uploads, flushes and connections only post
actions. `post` never blocks, and it wakes the mailbox thread if that thread waits.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from tidegate.ports.threads import Threads

Action = Callable[[], None]


class Mailbox:
    """The posted actions, in order. Any thread may post. One thread runs the actions."""

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
