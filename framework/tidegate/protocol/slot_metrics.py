"""The metrics of a slot, and the call of user code that holds the slot up.

Both are for display, with two exceptions. A stop does not wait for a slot whose call does not
return. The counts of records decide how often an idle job takes checkpoints. The counts travel with
heartbeats and acknowledgements. A `HangingCall` is part of the disk format of reports.
"""

from __future__ import annotations

import msgspec


class HangingCall(msgspec.Struct, frozen=True, kw_only=True):
    """A call of user code that has not returned for `HANGING_AFTER_S` or longer."""

    step: str
    """The uid of the step, or its id if it has no uid. It is empty if the step is not known."""
    subtask: str
    """The subtask that runs the step, or the ordinal of the slot if the step is not known."""
    since_ms: int
    """The wall-clock time in ms at which the call was first seen. It began at that time or shortly
    before.
    """
    place: str
    """The file, the line and the function where the code is, without the rest of the stack."""
    stack: str
    """The Python stack of the slot's main thread. The last call is the last line, as in a
    traceback.
    """

    def describe(self, now_ms: int) -> str:
        """Return a clause that names the step, the subtask, the duration and the place."""
        seconds = max(0, now_ms - self.since_ms) // 1000
        step = (
            f"Step {self.step!r} of subtask {self.subtask}"
            if self.step
            else (f"The code of slot {self.subtask}")
        )
        return f"{step} has not returned for {seconds} s ({self.place})"


class SlotMetrics(msgspec.Struct, frozen=True, kw_only=True):
    """The metrics of a slot. The counts start at 0 when the slot starts."""

    records_in: int = 0
    records_out: int = 0
    skipped: int = 0
    dead_letters: int = 0
    lag: int | None = None
    """The number of records that the slot's sources have not read. It is None if it is unknown."""
    watermark_ms: int | None = None
    """The least watermark of its sources and steps, in ms. None without any, or if all are idle."""
    watermark_held_by: str = ""
    """The source and the partition, or the step and the subtask, that hold the watermark back."""
    backward_watermarks: int = 0
    """The number of watermarks that were behind the one before, and were ignored."""
    late: dict[str, int] = msgspec.field(default_factory=dict)  # as in JobReport
    busy: bool = msgspec.field(default=False, name="saturated")
    """True if the slot has lately waited for records for less than half of the time."""
    source_error: str = ""
    """The reason why sources of the slot cannot read. It is empty if they can."""
    restoring: str = ""
    """The storage call that the deployment waits for. It is empty if it does not wait."""
    restored_bytes: int = 0
    """The number of bytes that such calls have brought. The present call is included."""
    hanging: HangingCall | None = None
    """The call of user code that has not returned for a long time. It is None without one."""

    @property
    def progress(self) -> int:
        """A number that grows with each record that the slot reads, skips or writes."""
        return self.records_in + self.records_out + self.skipped + self.dead_letters
