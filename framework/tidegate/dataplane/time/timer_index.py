"""`TimerIndex`: the keys that have something to do at a time, in order of time.

A timer's time is a cell of its key's row (`dataplane/state`), and a window's end follows from its
row. The row is the truth, and it is what a checkpoint stores. The index only says which rows to
look at when time advances. It is in memory, and a restore builds it again from the rows.

Invariant: for each time in a row, the index has the row's key at this time or at an earlier one. So
an entry may be stale: the row's time has moved to later, or was removed. The owner looks at the
row, and adds the key again if its time is still to come. A time that moves to later therefore costs
nothing until its first entry is reached. The owner discards the entry of a timer that is cancelled,
so that timers that rarely fire, such as a timeout of a month, leave nothing behind.

For sessions in a table, the row itself is the entry in place of its key.

The module is pure. There are entries by distinct time, and a heap of these times. A time with one
key has no container, which saves half of the memory if most times are distinct. The heap may have
times without entries, but not more than it has times with entries.
"""

from __future__ import annotations

import heapq
from collections.abc import Hashable
from itertools import islice
from typing import Any, Final

from tidegate.stream_elements import NEVER

EMPTY_TIMES_MAX: Final = 1_000
"""The number of times without entries from which on the heap may be made again."""


class TimerIndex:
    """Keys by time in milliseconds since the Unix epoch."""

    __slots__ = ("_keys", "_times", "next_ms")

    def __init__(self) -> None:
        self.next_ms = NEVER
        """The earliest time that has a key; NEVER if no time has one."""
        self._times: list[int] = []
        """A heap of times. Each time of `_keys` is in it, and perhaps others, or one twice."""
        self._keys: dict[int, Any] = {}
        """The key of each time, or a dict of its keys if they are several. No key is a dict."""

    def __len__(self) -> int:
        """Return the number of distinct times."""
        return len(self._keys)

    def add(self, at_ms: int, key: Hashable) -> None:
        """Look at the row of a key when the time reaches `at_ms`."""
        keys = self._keys.get(at_ms)
        if type(keys) is dict:
            keys[key] = None
        elif at_ms not in self._keys:
            self._keys[at_ms] = key
            heapq.heappush(self._times, at_ms)
            self.next_ms = min(self.next_ms, at_ms)
        elif keys != key:
            self._keys[at_ms] = {keys: None, key: None}

    def discard(self, at_ms: int, key: Hashable) -> None:
        """Remove the entry of a key at a time, if there is one."""
        if at_ms not in self._keys:
            return
        keys = self._keys[at_ms]
        if type(keys) is dict:
            keys.pop(key, None)
            if keys:
                return
        elif keys != key:
            return
        del self._keys[at_ms]
        if len(self._times) > 2 * len(self._keys) + EMPTY_TIMES_MAX:
            self._times = list(self._keys)
            heapq.heapify(self._times)
        if at_ms == self.next_ms:
            self._find_next()

    def pop_due(self, until_ms: int, limit: int) -> list[tuple[int, list[Any]]]:
        """Remove and return the keys whose time is `until_ms` or earlier, but at most `limit` keys.

        The result has one pair for each time, in order of time.
        """
        due: list[tuple[int, list[Any]]] = []
        while limit > 0 and self._keys and self.next_ms <= until_ms:
            at_ms = self.next_ms
            keys = self._keys[at_ms]
            if type(keys) is dict and len(keys) > limit:
                some = list(islice(keys, limit))
                for key in some:
                    del keys[key]
                due.append((at_ms, some))
                return due
            del self._keys[at_ms]
            self._find_next()
            due.append((at_ms, list(keys) if type(keys) is dict else [keys]))
            limit -= len(due[-1][1])
        return due

    def clear(self) -> None:
        """Remove all entries."""
        self.next_ms, self._times, self._keys = NEVER, [], {}

    def _find_next(self) -> None:
        times, keys = self._times, self._keys
        while times and times[0] not in keys:
            heapq.heappop(times)
        self.next_ms = times[0] if times else NEVER
