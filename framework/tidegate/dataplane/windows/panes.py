"""Panes: the parts that the sliding windows of a key have in common.

A window of size S every E is a sequence of panes of length gcd(S, E) (J. Li et al., "No pane, no
gain", SIGMOD Record 34(1), 2005). The combination of the panes of a window is not computed again
for each window. `TwoStacks` keeps running combinations, so each pane is combined about three times,
however many windows it is in (K. Tangwongsan, M. Hirzel, S. Schneider, "Low-latency sliding-window
aggregation in worst-case constant time", DEBS 2017, where it is the algorithm "Two-Stacks"). It
needs no inverse of the combination, so it is right for a minimum, too.

Pure. `PaneTimes` has the arithmetic of windows and panes.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from tidegate.dataplane.windows.accumulators import Parts

Combine = Callable[[Parts, Parts], Parts]


@dataclass(frozen=True, slots=True, kw_only=True)
class PaneTimes:
    """The windows of one size and step, as ends of windows and begins of panes."""

    size_ms: int
    every_ms: int
    offset_ms: int
    pane_ms: int

    def first_end(self, pane_ms: int) -> int:
        """Return the end of the first window that has the pane beginning at `pane_ms`."""
        return self.next_end(pane_ms)

    def last_end(self, pane_ms: int) -> int:
        """Return the end of the last window that has this pane."""
        start = pane_ms - (pane_ms - self.offset_ms) % self.every_ms
        return start + self.size_ms

    def next_end(self, time_ms: int) -> int:
        """Return the first end of a window after a time."""
        base = self.offset_ms + self.size_ms
        return base + ((time_ms - base) // self.every_ms + 1) * self.every_ms


class PaneSequence(Protocol):
    """The panes of a window that slides forward."""

    def push(self, start_ms: int, parts: Parts) -> None:
        """Add a pane behind all others."""
        ...

    def evict(self, before_ms: int) -> None:
        """Remove the panes that begin before a time."""
        ...

    def query(self) -> Parts | None:
        """Return the combination of all panes; None without panes."""
        ...


class TwoStacks:
    """Panes with running combinations.

    The panes at the front are a stack with the oldest one on top, and each entry has the
    combination of its pane with those that are younger. For the panes at the back, there is one
    combination of all. When the front is empty, the back becomes the front.
    """

    __slots__ = ("_back", "_combine", "_front", "_total")

    def __init__(self, combine: Combine) -> None:
        self._combine = combine
        self._front: list[tuple[int, Parts]] = []
        self._back: list[tuple[int, Parts]] = []
        self._total: Parts | None = None

    def push(self, start_ms: int, parts: Parts) -> None:
        """Add a pane behind all others."""
        self._back.append((start_ms, parts))
        self._total = parts if self._total is None else self._combine(self._total, parts)

    def evict(self, before_ms: int) -> None:
        """Remove the panes that begin before a time."""
        front = self._front
        while front and front[-1][0] < before_ms:
            front.pop()
        if not front and self._back and self._back[0][0] < before_ms:
            self._flip(before_ms)

    def query(self) -> Parts | None:
        """Return the combination of all panes; None without panes."""
        if not self._front:
            return self._total
        oldest = self._front[-1][1]
        return oldest if self._total is None else self._combine(oldest, self._total)

    def _flip(self, before_ms: int) -> None:
        combined: Parts | None = None
        for start_ms, parts in reversed(self._back):
            if start_ms < before_ms:
                break
            combined = parts if combined is None else self._combine(parts, combined)
            self._front.append((start_ms, combined))
        self._back, self._total = [], None


class AllPanes:
    """Panes whose only part is a list of records, for functions that take all records anyway."""

    __slots__ = ("_panes",)

    def __init__(self) -> None:
        self._panes: deque[tuple[int, Parts]] = deque()

    def push(self, start_ms: int, parts: Parts) -> None:
        """Add a pane behind all others."""
        self._panes.append((start_ms, parts))

    def evict(self, before_ms: int) -> None:
        """Remove the panes that begin before a time."""
        while self._panes and self._panes[0][0] < before_ms:
            self._panes.popleft()

    def query(self) -> Parts | None:
        """Return the records of all panes; None without panes."""
        if not self._panes:
            return None
        return ([pair for _, (pairs,) in self._panes for pair in pairs],)
