"""Ends the forks that user code makes with `os.fork()`, before they run code of tidegate.

`os.fork()` returns in two processes. A copy of a slot that continues the slot's loop would write to
the slot's transactions, files and connections as well. So a fork may do what it likes inside the
function of user code that has made it. It ends where it would leave that function, by a return, a
`yield` or an exception. `os._exit` ends it, so no exit handler of a native library runs. The
process that was forked does not notice anything.

`watch_forks` arms this in a process that runs user code, after tidegate's own forks. A fork is
ended in two ways:

- A trace function is set in the fork, and nothing in the process that was forked. The interpreter
  calls it when the outermost frame of user code is left. A fork of `multiprocessing` gets none: it
  never leaves the call that has made it, and a trace function would slow it down.
- Drivers call `end_if_forked`. This is for what a trace function does not see: a fork by native
  code, a fork that removes its trace function, and a state that a child of `multiprocessing` uses.

A fork copies all descriptors of its process. While it lives, the end of a pipe or a lock of its
parent would not be noticed by others. So a process names the descriptors that no fork may hold
(`keep_from_forks`).
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
import weakref
from types import FrameType
from typing import Any, ClassVar, Final, NoReturn, Protocol

from tidegate.drivers.process.forked import CRASHED
from tidegate.frames import is_own, is_own_module, module_of

_LEFT: Final = "it left the function that had called os.fork()"


class _HasDescriptor(Protocol):
    def fileno(self) -> int: ...


class _Watch:
    """The state of this module in the present process."""

    owner = 0
    """The process whose forks are ended. 0 if it has not called `watch_forks`."""
    everywhere = False
    """Whether threads that tidegate has not called count as well."""
    hooked = False
    masks: ClassVar[dict[int, set[int]]] = {}
    """The signals that were blocked before a thread began to fork."""
    kept: ClassVar[weakref.WeakSet[_HasDescriptor]] = weakref.WeakSet()


def watch_forks(*, everywhere: bool) -> None:
    """End forks of this process from now on. A process calls this before it runs user code, and
    after its own forks.

    With `everywhere`, tidegate has called all user code of this process, and threads of user code
    belong to it. Otherwise the process belongs to a script of a user: only the forks of functions
    that tidegate has called are ended.
    """
    _hook()
    _Watch.owner, _Watch.everywhere = os.getpid(), everywhere


def keep_from_forks(file: _HasDescriptor) -> None:
    """Take a file or a socket of this process away from all later forks that `os.fork` makes."""
    _hook()
    _Watch.kept.add(file)


def end_if_forked() -> None:
    """End this process if it is a fork of one that has called `watch_forks`. Drivers call this
    before they use a client, a connection or a file.
    """
    if _Watch.owner and os.getpid() != _Watch.owner:
        _end("it used clients, connections or state of that process")


def _hook() -> None:
    if not _Watch.hooked:
        _Watch.hooked = True
        os.register_at_fork(
            before=_hold_sigterm, after_in_parent=_release_sigterm, after_in_child=_begin_fork
        )


def _hold_sigterm() -> None:
    """Let a SIGTERM wait until the fork has its own handler. Otherwise the fork could lose it."""
    held = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    _Watch.masks[threading.get_ident()] = held


def _release_sigterm() -> None:
    signal.pthread_sigmask(signal.SIG_SETMASK, _Watch.masks.pop(threading.get_ident()))


def _begin_fork() -> None:
    _drop_kept_files()
    if _Watch.owner:
        handler = signal.getsignal(signal.SIGTERM)
        if is_own_module(str(getattr(handler, "__module__", ""))):
            # The handler of a role ends a process in order. A fork that hangs must end as well.
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
    _release_sigterm()
    if _Watch.owner:
        _trace_fork(sys._getframe(1))  # which has called `os.fork`


def _drop_kept_files() -> None:
    for file in _Watch.kept:
        with contextlib.suppress(ValueError, OSError):  # the file is closed already
            # The number stays in use, because the fork may close it, or leave it to the collector.
            nothing = os.open(os.devnull, os.O_RDWR)
            os.dup2(nothing, file.fileno(), inheritable=False)
            os.close(nothing)
    _Watch.kept.clear()


def _trace_fork(caller: FrameType) -> None:
    if caller.f_code.co_name == "_launch" and module_of(caller).endswith(".popen_fork"):
        return
    outermost = _outermost_of_user(caller)
    if outermost is None:
        return
    if is_own(outermost):
        _end(_LEFT)  # tidegate has called `os.fork` itself, as a function of user code
    outermost.f_trace = _trace_outermost
    outermost.f_trace_lines = False
    sys.settrace(_trace_call)


def _outermost_of_user(caller: FrameType) -> FrameType | None:
    """Return the frame of user code that tidegate has called. Between the two may be frames of the
    standard library, such as those of an import or of a thread.

    Return the frame of tidegate if there is no frame of user code, and None if tidegate has not
    called this code.
    """
    user: FrameType | None = None
    last, frame = caller, caller.f_back
    if is_own(caller):
        return caller
    while True:
        if user is None or module_of(last).partition(".")[0] not in sys.stdlib_module_names:
            user = last
        if frame is None:
            return user if _Watch.everywhere else None
        if is_own(frame):
            return user
        last, frame = frame, frame.f_back


def _trace_call(_frame: FrameType, _event: str, _argument: Any) -> None:
    """Trace nothing in the frames of later calls."""


def _trace_outermost(_frame: FrameType, event: str, _argument: Any) -> Any:
    if event == "return":  # also by an exception, or at a `yield`
        _end(_LEFT)
    return _trace_outermost


def _end(why: str) -> NoReturn:
    """End this fork with a message, whatever its other threads do."""
    text = (
        f"[tidegate] Process {os.getpid()} ends: it is a fork of process {_Watch.owner}, made by "
        f"user code, and {why}. Only the original process continues. Use subprocess or "
        "multiprocessing, or end the fork with os._exit() in the function that makes it.\n"
    )
    with contextlib.suppress(OSError):
        os.write(2, text.encode())
    os._exit(CRASHED)
