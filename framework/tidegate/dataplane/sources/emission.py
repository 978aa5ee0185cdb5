"""When a source emits its watermark: at most once in `job.watermark_interval`.

A watermark that changes after a longer silence follows at once. A barrier does not wait for the
interval, and the interval begins again with the watermark in front of it.

Invariant: nothing follows the end of time.
"""

from __future__ import annotations

import math

from tidegate.dataplane.sources.watermarks import SourceWatermarks
from tidegate.errors import check
from tidegate.stream_elements import MAX_MS, Watermark


class WatermarkEmission:
    """The watermark that a source has emitted last, and the time at which the next may follow."""

    def __init__(self, watermarks: SourceWatermarks | None, interval_ms: int) -> None:
        """Emit the combination of `watermarks`. If it is None, only the end of time is emitted."""
        self._watermarks, self._interval_s = watermarks, interval_ms / 1000
        self._next_s = -math.inf
        self._last: Watermark | None = None

    @property
    def has_drained(self) -> bool:
        """Whether the end of time was emitted."""
        return self._last is not None and self._last.timestamp_ms == MAX_MS

    def due_s(self) -> float:
        """Return the monotonic time in seconds at which the next watermark may follow. It is
        infinity as long as the watermark does not change.
        """
        if self._watermarks is None or self.has_drained or self._watermarks.current() == self._last:
            return math.inf
        return self._next_s

    def take(self, now_s: float) -> Watermark:
        """Return the watermark, which is emitted now."""
        check(self._watermarks is not None, "only a source with watermarks emits one")
        self._last = self._watermarks.current()  # type: ignore[union-attr]
        self._next_s = now_s + self._interval_s
        return self._last

    def take_end(self) -> Watermark:
        """Return the end of time, which is emitted now."""
        self._last = Watermark(MAX_MS)
        return self._last
