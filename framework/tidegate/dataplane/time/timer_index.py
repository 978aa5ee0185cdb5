"""`TimerIndex`: the keys that have something to do at a time, in order of time.

A timer's time is a cell of its key's row (`dataplane/state`), and a window's end follows from its
row. The row is the truth, and it is what a checkpoint stores. The index only says which rows to
look at when time advances. It is in memory, and a restore builds it again from the rows.

Invariant: for each time in a row, the index has the row's key at this time or at an earlier one. So
an entry may be stale: the row's time has moved to later, or was removed. The owner looks at the
row, and adds the key again if its time is still to come. A time that moves to later therefore costs
nothing until its first entry is reached.

A key may be in the index twice. The owner finds nothing due at the second look.

A key may be in the index twice. The owner finds nothing due at the second look.

The module is pure. There are entries by distinct time, and a heap of these times. A time with one
key has no list, which saves half of the memory if most times are distinct.
"""

from __future__ import annotations

import heapq
from collections.abc import Hashable
from typing import Any, Final

NEVER: Final = 1 << 63
"""The next time of an empty index. It is after every time."""


class TimerIndex:
    """Keys by time in milliseconds since the Unix epoch."""

    __slots__ = ("_keys", "_times", "next_ms")

    def __init__(self) -> None:
        self.next_ms = NEVER
        """The earliest time that has a key; NEVER if no time has one."""
        self._times: list[int] = []
        self._keys: dict[int, Any] = {}
        """The key of each time, or the list of its keys if they are several. No key is a list."""

    def __len__(self) -> int:
        """Return the number of distinct times."""
        return len(self._times)

    def add(self, at_ms: int, key: Hashable) -> None:
        """Look at the row of a key when the time reaches `at_ms`."""
        keys = self._keys.get(at_ms)
        if at_ms not in self._keys:
            self._keys[at_ms] = key
            heapq.heappush(self._times, at_ms)
            self.next_ms = min(self.next_ms, at_ms)
        elif type(keys) is list:
            keys.append(key)
        elif keys != key:
            self._keys[at_ms] = [keys, key]

    def pop_due(self, until_ms: int, limit: int) -> list[tuple[int, list[Any]]]:
        """Remove and return the keys whose time is `until_ms` or earlier, but at most `limit` keys.

        The result has one pair for each time, in order of time.
        """
        due: list[tuple[int, list[Any]]] = []
        while limit > 0 and self._times and self._times[0] <= until_ms:
            at_ms = self._times[0]
            keys = self._keys[at_ms]
            if type(keys) is list and len(keys) > limit:
                due.append((at_ms, keys[:limit]))
                del keys[:limit]
                return due
            heapq.heappop(self._times)
            del self._keys[at_ms]
            due.append((at_ms, keys if type(keys) is list else [keys]))
            limit -= len(due[-1][1])
        self.next_ms = self._times[0] if self._times else NEVER
        return due
