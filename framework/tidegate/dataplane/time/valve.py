"""`WatermarkValve`: combines the watermarks of several inputs into one that never goes back.

An input is a channel of a subtask, or a partition of a source. The combined watermark is the least
watermark of the active inputs. The module is pure: it knows no clock and no channel.

- An idle input does not hold back the others. One that returns from idleness behind the combined
  watermark stays out until it has caught up. Its records may be late, and the others do not wait.
- If all inputs are idle, the combined watermark is the highest watermark of any of them, and the
  subtask is idle too. All inputs have then said how far they are.
- The subtasks of a step behind an exchange get the same watermarks from their inputs, one after the
  other. So their channels are one group: while one of them is active, an idle one that is not
  behind counts too, because it becomes active next. Otherwise the watermark of the first would
  overtake the results that the same watermark makes due in the others.
- The end of time (MAX_MS) is combined only when every input has it or has ended. An idle input may
  still have records in front of it.
- An input that has not said anything yet is active, with the watermark MIN_MS. So every partition
  must be registered before the first record (FLINK-26018).
- An input whose sources declare no watermarks takes no part, whatever it says.

The combined watermark never goes back, because an input counts only while it is not behind it.
The algorithm is that of Flink's `StatusWatermarkValve`. The groups and the rule for the end of time
are not in Flink.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tidegate.stream_elements import MAX_MS, MIN_MS, Watermark


@dataclass(slots=True)
class _Input:
    watermark_ms: int
    idle: bool
    aligned: bool
    """Whether the watermark counts: it has not returned from idleness behind the combined one."""
    group: int | None
    """The channels with one number are of one step behind an exchange."""
    may_come: bool
    """Whether a watermark may still come: the input takes part and has not ended."""


class WatermarkValve:
    """The watermarks of some inputs, by index, and the combined watermark."""

    def __init__(
        self, restored: Sequence[Watermark | None], groups: Sequence[int | None] = ()
    ) -> None:
        """Register the inputs, each with its last watermark: `Watermark(MIN_MS)` for a new one, and
        None for one that takes no part. `groups` has the group of each input, or None for an input
        on its own. Without `groups`, all are on their own.
        """
        known = [Watermark(MIN_MS, idle=True) if each is None else each for each in restored]
        self._inputs = [
            _Input(each.timestamp_ms, each.idle, not each.idle, group, given is not None)
            for each, given, group in zip(
                known, restored, groups or [None] * len(known), strict=True
            )
        ]
        self._absent = frozenset(n for n, each in enumerate(restored) if each is None)
        self.combined = Watermark(MIN_MS)
        """The combined watermark, and whether all inputs are idle."""
        self._combine()

    def offer(self, index: int, watermark: Watermark) -> Watermark | None:
        """Note the watermark of an input. Return the combined watermark if it has changed.

        A watermark that goes back changes only whether the input is idle.
        """
        if index in self._absent:
            return None
        each = self._inputs[index]
        was_first = each.aligned and each.watermark_ms <= self.combined.timestamp_ms
        each.watermark_ms = max(each.watermark_ms, watermark.timestamp_ms)
        if watermark.idle == each.idle and not was_first and each.aligned:
            return None  # another input holds the combined watermark back
        each.idle = watermark.idle
        each.aligned = not each.idle and (
            each.aligned or each.watermark_ms >= self.combined.timestamp_ms
        )
        return self._combine()

    def end(self, index: int) -> Watermark | None:
        """Note that an input has ended. It keeps its watermark, because a later run may continue
        behind the end. Return the combined watermark if it has changed.
        """
        self._inputs[index].may_come = False
        return self._combine()

    def slowest(self) -> int | None:
        """Return the index of the input that holds the combined watermark back; None if all inputs
        are idle. If all active inputs are behind, it is the one that is furthest behind.
        """
        active = [number for number, each in enumerate(self._inputs) if each.aligned]
        active = active or [number for number, each in enumerate(self._inputs) if not each.idle]
        return min(active, key=lambda n: self._inputs[n].watermark_ms, default=None)

    def of(self, index: int) -> Watermark:
        """Return the watermark of one input."""
        each = self._inputs[index]
        return Watermark(each.watermark_ms, idle=each.idle)

    def _combine(self) -> Watermark | None:
        before = self.combined
        aligned = [each.watermark_ms for each in self._inputs if each.aligned]
        active = {each.group for each in self._inputs if not each.idle and each.group is not None}
        aligned += [
            each.watermark_ms
            for each in self._inputs
            if each.idle and each.group in active and each.watermark_ms >= before.timestamp_ms
        ]
        idle = all(each.idle for each in self._inputs)
        if aligned:
            found = min(aligned)
        elif idle:
            found = max((each.watermark_ms for each in self._inputs), default=MIN_MS)
        else:
            found = before.timestamp_ms  # all active inputs are still behind
        if found == MAX_MS and any(
            each.may_come and each.watermark_ms < MAX_MS for each in self._inputs
        ):
            found = before.timestamp_ms
        self.combined = Watermark(found, idle=idle)
        return None if self.combined == before else self.combined
