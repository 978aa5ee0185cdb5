"""The pipes through which slots send their stacks to the fork server if no thread can run.

A slot writes one line when it is deployed: the description of its user code. If no thread of the
slot can run, the C library writes the stacks of its threads behind that line, in many small pieces
and without an end mark. So a dump counts as complete when nothing has followed for `QUIET_S`.
The import of user code may hold up all threads too. Then a dump comes before the description.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from typing import Final

QUIET_S: Final = 0.2
DUMP_BYTES_MAX: Final = 1 << 20
"""The most bytes of a dump that are kept. faulthandler writes at most 100 frames of 100 threads."""

CODE_BYTES_MAX: Final = 4 << 20
"""The most bytes of a description. A slot with a longer one is reported without its steps."""


@dataclass(slots=True)
class _Pipe:
    index: int
    pid: int
    code: bytes | None = None
    """The description of the code. None until the first line is complete, and while the line of
    the description is not. Empty if there is a dump and no description yet.
    """
    pending: bytes = b""
    """The bytes of a dump, or the beginning of the description."""
    changed_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Dump:
    """The complete dump of a slot."""

    index: int
    pid: int
    code: str
    text: str


class StackPipes:
    """The read ends of the pipes of all slots."""

    def __init__(self) -> None:
        self._pipes: dict[int, _Pipe] = {}

    def add(self, read_end: int, index: int, pid: int) -> None:
        """Read from the pipe of a slot. The slot's process has the only write end."""
        os.set_blocking(read_end, False)
        self._pipes[read_end] = _Pipe(index, pid)

    def descriptors(self) -> list[int]:
        """Return the descriptors to wait for."""
        return list(self._pipes)

    def wait_s(self) -> float | None:
        """Return the time until a dump may be complete. None if no dump has begun."""
        begun = any(pipe.code is not None and pipe.pending for pipe in self._pipes.values())
        return QUIET_S if begun else None

    def read(self, read_end: int) -> None:
        """Take what a slot has written. Close the pipe if the slot has ended."""
        pipe = self._pipes[read_end]
        data = os.read(read_end, 1 << 16)
        if not data:
            del self._pipes[read_end]
            os.close(read_end)
            return
        pipe.changed_s = time.monotonic()
        pipe.pending += data
        if not pipe.code:
            _find_code(pipe)
        if pipe.code is not None:
            pipe.pending = pipe.pending[:DUMP_BYTES_MAX]

    def remove(self, pid: int) -> None:
        """Close the pipe of a slot that was reaped. A child of the slot may keep the other end."""
        for read_end, pipe in list(self._pipes.items()):
            if pipe.pid == pid:
                del self._pipes[read_end]
                os.close(read_end)

    def complete(self) -> list[Dump]:
        """Return the dumps to which nothing has been added for `QUIET_S`, each once."""
        before_s = time.monotonic() - QUIET_S
        found = [
            pipe
            for pipe in self._pipes.values()
            if pipe.code is not None and pipe.pending and pipe.changed_s <= before_s
        ]
        dumps = [
            Dump(
                index=pipe.index,
                pid=pipe.pid,
                code=(pipe.code or b"").decode(errors="backslashreplace"),
                text=pipe.pending.decode(errors="backslashreplace"),
            )
            for pipe in found
        ]
        for pipe in found:
            pipe.pending = b""
        return dumps


def _find_code(pipe: _Pipe) -> None:
    """Take the description from the pending bytes. No line of a dump begins with a brace."""
    pending = pipe.pending
    begin = 0 if pending.startswith(b"{") else pending.find(b"\n{") + 1
    if not pending.startswith(b"{", begin):
        pipe.code = b"" if b"\n" in pending else None
        return
    end = pending.find(b"\n", begin)
    if end < 0:
        pipe.code = None
        return
    pipe.code = pending[begin:end] if end - begin <= CODE_BYTES_MAX else b""
    pipe.pending = pending[:begin] + pending[end + 1 :]
