"""The operator of a function of two keyed streams (`CoProcess`).

Both inputs have one set of states and timers. Only the key function and the method that is called
differ, so the operator switches them for each batch. Which input a batch comes from follows from
its channel. The watermark of the step is the least of both inputs, as the valve of the task
combines them; an input without watermarks takes no part.
"""

from __future__ import annotations

from tidegate.dataplane.operators.timed import TimedKeyedOperator
from tidegate.stream_elements import RecordBatch


class CoOperator(TimedKeyedOperator):
    """One `CoProcess` function of one subtask, with its state and its timers."""

    methods = ("process_left", "process_right")

    def process_side(self, side: int, batch: RecordBatch) -> None:
        """Process a batch of one input: 0 is the left one, 1 the right one."""
        self._keys, self._process = self._sides[side]
        self.process(batch)
