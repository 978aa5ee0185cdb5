"""The watch over the thread of a slot that calls user code.

A thread samples the stack of the watched thread once a second, but only if a turn of the loop lasts
for long. The same call in two samples has not returned. It is the same if the frame of the user's
function is the same object, so a long batch of short calls is not taken for a call that hangs. If
no Python frame of the user exists, because the function is written in C, the whole stack must be
the same. The variables of its last frame must be the same too: a loop over records changes them.

Code in C that does not release Python's global lock stops this thread too. So the thread also sets
an alarm of faulthandler, again and again. If it cannot, a thread in C writes the stacks of all
threads to the parent process. That thread needs no lock.

The watch covers Python code, and calls of C code with and without the lock. It does not cover a
process that the operating system has stopped (SIGSTOP), because none of its threads runs.
"""

from __future__ import annotations

import contextlib
import faulthandler
import linecache
import math
import os
import sys
import threading
import time
from collections.abc import Callable
from types import FrameType
from typing import TYPE_CHECKING, Final

from tidegate.frames import is_own_file
from tidegate.ports.processes import CallWatch, LongCall, StackFrame

SAMPLE_INTERVAL_S: Final = 1.0
LONG_TURN_S: Final = 2.0
"""The time after which a turn of the loop is sampled, in seconds. A usual turn takes milliseconds.
"""

HANGING_AFTER_S: Final = 10.0
"""The time in seconds after which a call that has not returned is reported."""


class OsCallWatch:
    """The watch over the thread that makes it. `output` is a file descriptor for the parent."""

    def __init__(self, output: int, stalled_after_s: float) -> None:
        self.turn_s = math.inf
        self._output, self._stalled_after_s = output, stalled_after_s
        self._thread = threading.get_ident()
        self._identity: object = None
        """The frame or the stack that identifies the present call."""
        self._since_s = 0.0
        self._call: LongCall | None = None
        threading.Thread(target=self._watch, name="call-watch", daemon=True).start()

    @property
    def thread(self) -> int:
        return self._thread

    def describe(self, code: bytes) -> None:
        view = memoryview(code + b"\n")
        while view:
            view = view[os.write(self._output, view) :]

    def long_call(self) -> LongCall | None:
        return self._call

    def _watch(self) -> None:
        while True:
            # Each call replaces the alarm before it. The system may refuse its thread.
            with contextlib.suppress(RuntimeError):
                faulthandler.dump_traceback_later(self._stalled_after_s, file=self._output)
            time.sleep(SAMPLE_INTERVAL_S)
            self._sample(time.monotonic())

    def _sample(self, now_s: float) -> None:
        frame = sys._current_frames().get(self._thread)
        if now_s - self.turn_s < LONG_TURN_S or frame is None:
            self._identity = self._call = None
            return
        stack = _stack(frame)
        identity = _identity(stack)
        if not _is_same(self._identity, identity):
            self._identity, self._since_s, self._call = identity, now_s, None
        elif self._call is None and now_s - self._since_s >= HANGING_AFTER_S:
            # This stack is kept, because a new one in each report would be news each time.
            since_ms = int((time.time() - (now_s - self._since_s)) * 1000)
            frames = tuple(_described(each) for each in stack)
            self._call = LongCall(since_ms=since_ms, frames=frames)


def _stack(frame: FrameType | None) -> list[FrameType]:
    """Return the frames of a thread that tidegate and code below it runs, the oldest first."""
    stack: list[FrameType] = []
    while frame is not None:
        stack.append(frame)
        frame = frame.f_back
    stack.reverse()
    own = (n for n, each in enumerate(stack) if is_own_file(each.f_code.co_filename))
    return stack[next(own, 0) :]


def _identity(stack: list[FrameType]) -> object:
    """Return what identifies the call of user code: its frame, or the position of every frame with
    the variables of the last one.
    """
    for frame in stack:
        if not is_own_file(frame.f_code.co_filename):
            return frame
    positions = tuple((frame.f_code, frame.f_lasti) for frame in stack)
    variables = tuple(map(id, stack[-1].f_locals.values())) if stack else ()
    return positions, variables


def _is_same(before: object, now: object) -> bool:
    return before is now or (isinstance(before, tuple) and before == now)


def _described(frame: FrameType) -> StackFrame:
    code, line = frame.f_code, frame.f_lineno or 0
    source = linecache.getline(code.co_filename, line).strip()
    return StackFrame(code.co_filename, line, code.co_name, source)


if TYPE_CHECKING:
    _: Callable[[int, float], CallWatch] = OsCallWatch
