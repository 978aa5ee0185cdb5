"""`GeneratedWatermark`: the watermark that a user's strategy gives for one sequence of records.

The sequence is a partition of a source, or what one subtask of `with_timestamps` gets. The rules
for a strategy that misbehaves are here. One that raises, or that returns no time in range, ends the
attempt, and the error names it. A watermark that goes back is ignored and counted.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tidegate.api.time.watermarks import WatermarkGenerator, WatermarkStrategy, watermark_ms
from tidegate.dataplane.counters import Counters
from tidegate.errors import UserCodeError, passes_through
from tidegate.message_text import clause
from tidegate.stream_elements import MIN_MS
from tidegate.user_exceptions import described


class GeneratedWatermark:
    """A generator of the strategy, and the highest watermark that it has given."""

    def __init__(
        self,
        strategy: WatermarkStrategy[Any],
        owner: str,
        counters: Counters,
        restored_ms: int = MIN_MS,
    ) -> None:
        """Continue from a restored watermark; MIN_MS for a new sequence. `owner` names the source
        or the step in errors.
        """
        self._strategy, self._owner, self._counters = strategy, owner, counters
        self._generator = strategy.generator()
        self.watermark_ms = MIN_MS
        """The watermark. It never goes back."""
        if restored_ms > MIN_MS:
            self.resume(restored_ms)

    def resume(self, restored_ms: int) -> None:
        """Continue from a watermark. UserCodeError if the user's strategy raises."""
        self._call(_resume, self._generator, restored_ms)
        self.watermark_ms = restored_ms

    def observe(self, records: Sequence[Any], times_ms: Sequence[int]) -> None:
        """Note records that are emitted now. UserCodeError if the user's strategy raises."""
        found = self._call(self._generator.observe, records, times_ms)
        if found is None:
            return
        if found < self.watermark_ms:
            self._counters.backward_watermarks += 1
        else:
            self.watermark_ms = found

    def _call(self, method: Callable[..., Any], *arguments: Any) -> int | None:
        """Call a method of the user's strategy, and check the watermark that it returns."""
        strategy = self._strategy
        name = f"{self._owner}: the watermark strategy {type(strategy).__name__}"
        try:
            found: Any = method(*arguments)
            return None if found is None else watermark_ms(found)
        except passes_through():
            raise
        except BaseException as error:
            raise UserCodeError(
                f"{name} ({strategy.location}) raised {clause(described(error))}. "
                "Correct it; the job restarts from its last checkpoint as the restart strategy "
                "says."
            ) from error


def _resume(generator: WatermarkGenerator, restored_ms: int) -> None:
    """Let a generator continue. What its method returns does not matter."""
    generator.resume(restored_ms)
