"""Where the code of each step is, to find the step of a call from the stack of a thread.

A slot makes the places once, when it is deployed. A stack is a list of frames with file, line and
function. A thread of the slot takes it, or faulthandler if no thread of the slot can run.
The first frame that lies in a place of user code names the step. A line of a generated loop names
its step by itself, which is exact even if the function is written in C.

If several steps use one function, only a generated loop distinguishes its calls. Elsewhere the
report has the names of all of these steps.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

import msgspec

from tidegate.frames import is_own_file
from tidegate.masking import masked_text
from tidegate.ports.processes import StackFrame
from tidegate.protocol.slot_metrics import HangingCall
from tidegate.user_exceptions import encodable

FRAMES_MAX: Final = 30
"""The most frames of a stack that a report shows. A deep recursion has thousands."""

_THREAD: Final = re.compile(r"(?:Current thread|Thread) 0x([0-9a-f]+)")
_FRAME: Final = re.compile(r'  File "(.*)", line (\d+) in (.*)')


class CodePlace(msgspec.Struct, frozen=True, array_like=True):
    """The lines of one function of user code, or one line of a generated loop."""

    file: str
    first: int
    last: int
    function: str
    """The name of the function. Empty for a line of a generated loop."""
    step: str
    subtask: str

    def contains(self, frame: StackFrame) -> bool:
        """Return whether the frame runs this code."""
        return (
            self.file == frame.file
            and self.first <= frame.line <= self.last
            and self.function in ("", frame.function)
        )


class WatchedCode(msgspec.Struct, frozen=True, kw_only=True):
    """The code that one slot runs, and the thread that runs it."""

    ordinal: int
    thread: int
    """The identifier of the thread, as `threading.get_ident` returns it."""
    places: tuple[CodePlace, ...] = ()
    stalled_after_ms: int = 0
    """The time in ms for which no thread of the slot has run when its stacks are written."""

    def hanging_call(self, frames: Sequence[StackFrame], since_ms: int) -> HangingCall | None:
        """Return the call of user code on a stack, or None if the stack has no user code.

        `frames` begin with the oldest call.
        """
        for number, frame in enumerate(frames):
            found = [place for place in self.places if place.contains(frame)]
            if found:
                steps = dict.fromkeys(place.step for place in found)
                subtasks = dict.fromkeys(place.subtask for place in found)
                return _call(" or ".join(steps), " or ".join(subtasks), frames[number:], since_ms)
        return None

    def stalled_call(self, frames: Sequence[StackFrame], since_ms: int) -> HangingCall:
        """Return the call that a stack shows. Without user code the step is empty."""
        known = self.hanging_call(frames, since_ms)
        return known or _call("", str(self.ordinal), frames, since_ms)


def dumped_frames(dump: str, thread: int) -> list[StackFrame]:
    """Return the frames of one thread in a dump of faulthandler, the oldest call first."""
    frames: list[StackFrame] = []
    inside = False
    for line in dump.splitlines():
        head = _THREAD.match(line)
        if head is not None:
            inside = int(head[1], 16) == thread
            if inside:
                frames.clear()  # of an earlier dump
        elif inside and (frame := _FRAME.match(line)) is not None:
            frames.append(StackFrame(frame[1], int(frame[2]), frame[3]))
    return frames[::-1]


def _call(step: str, subtask: str, frames: Sequence[StackFrame], since_ms: int) -> HangingCall:
    users = (frame for frame in frames if not is_own_file(frame.file))
    at = next(users, frames[0] if frames else StackFrame("?", 0, "?"))
    left_out = len(frames) - FRAMES_MAX
    shown = list(frames[: FRAMES_MAX // 2]) + list(frames[-FRAMES_MAX // 2 :])
    lines = [_line(frame) for frame in (frames if left_out <= 0 else shown)]
    if left_out > 0:
        lines.insert(FRAMES_MAX // 2, f"  ... {left_out} more calls ...")
    return HangingCall(
        step=step,
        subtask=subtask,
        since_ms=since_ms,
        place=f"{at.file}:{at.line}, in {at.function}",
        stack=encodable(masked_text("\n".join(lines))),
    )


def _line(frame: StackFrame) -> str:
    source = f"\n    {frame.source}" if frame.source else ""
    return f'  File "{frame.file}", line {frame.line}, in {frame.function}{source}'
