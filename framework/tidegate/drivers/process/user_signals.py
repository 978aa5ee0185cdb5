"""Signal handlers of user code: they run at once, but their exceptions only where user code runs.

Python runs a signal handler in the main thread, between any two instructions. In a slot and in a
JobMaster this thread runs tidegate's loop. An exception of a handler would leave the loop half-way
through a change of its data. So `guard_handlers` replaces `signal.signal`, which user code and its
libraries call: it installs a wrapper for their handlers.

The wrapper calls the handler at once. If the handler raises in the middle of user code, the
exception continues there: a time limit by SIGALRM interrupts the call that it was set for. Anywhere
else it is given to `report`, and so it is an error of user code like any other.

Two signals belong to tidegate. A handler for SIGTERM is called, and then the process ends in order.
SIGPIPE stays ignored, because a lost connection must not end the process. `signal.getsignal` shows
what user code has set.
"""

from __future__ import annotations

import _thread
import os
import signal
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any, Final

from tidegate.frames import is_own, is_own_module, module_of
from tidegate.user_exceptions import process_ends

Handler = Callable[[int, FrameType | None], Any] | int | None
Report = Callable[[BaseException, signal.Signals], None]

_LIBRARIES: Final = frozenset(
    {"confluent_kafka", "fastavro", "grpc", "kafka", "msgspec", "obstore", "rocksdict"}
)
"""The libraries that tidegate calls in the main thread, besides those of Python."""

_real_signal, _real_getsignal = signal.signal, signal.getsignal
_set_by_user: dict[int, Handler] = {}
"""The handlers of user code for the signals that have a wrapper, or that stay as they are."""


def guard_handlers(report: Report) -> None:
    """Wrap the signal handlers that user code of this process sets from now on. `report` gets their
    exceptions, in a thread of its own.
    """
    owner = os.getpid()
    before: dict[int, Handler] = {}

    def set_handler(signalnum: int, handler: Handler) -> Handler:
        if os.getpid() != owner or is_own_module(str(getattr(handler, "__module__", ""))):
            _set_by_user.pop(signalnum, None)
            return _real_signal(signalnum, handler)
        replaced = get_handler(signalnum)
        if signalnum == signal.SIGTERM:
            before.setdefault(signalnum, _real_getsignal(signalnum))
            _real_signal(signalnum, _then(handler, before[signalnum], report))
        elif signalnum == signal.SIGPIPE and not callable(handler):
            _real_signal(signalnum, signal.SIG_IGN)
        elif handler is signal.default_int_handler and _real_getsignal(signalnum) == signal.SIG_IGN:
            return replaced  # the command line interprets a Ctrl-C
        elif callable(handler):
            _real_signal(signalnum, _wrapped(handler, report))
        else:
            _real_signal(signalnum, handler)
        _set_by_user[signalnum] = handler
        return replaced

    def get_handler(signalnum: int) -> Handler:
        return _set_by_user[signalnum] if signalnum in _set_by_user else _real_getsignal(signalnum)

    signal.signal, signal.getsignal = set_handler, get_handler


def _wrapped(handler: Callable[..., Any], report: Report) -> Callable[..., None]:
    def handle(number: int, frame: FrameType | None) -> None:
        try:
            handler(number, frame)
        except process_ends():
            raise
        except BaseException as error:
            if _is_in_user_code(frame):
                raise
            # No lock may be taken here: the main thread may hold it.
            _thread.start_new_thread(report, (error, signal.Signals(number)))

    return handle


def _then(handler: Handler, ends: Handler, report: Report) -> Callable[..., None]:
    """Return a handler that calls the one of user code, if it is one, and then `ends`."""

    def handle(number: int, frame: FrameType | None) -> None:
        try:
            if callable(handler):
                handler(number, frame)
        except BaseException as error:  # noqa: BLE001  # the process ends, whatever it is
            _thread.start_new_thread(report, (error, signal.Signals(number)))
        finally:
            if callable(ends):
                ends(number, frame)
            elif ends == signal.SIG_DFL:
                _real_signal(number, signal.SIG_DFL)
                os.kill(os.getpid(), number)

    return handle


def _is_in_user_code(frame: FrameType | None) -> bool:
    """Return whether a frame of user code is above the newest frame of tidegate. The standard
    library and the libraries that tidegate calls belong to their callers.
    """
    while frame is not None and not is_own(frame):
        top = module_of(frame).partition(".")[0]
        if top not in sys.stdlib_module_names and top not in _LIBRARIES:
            return True
        frame = frame.f_back
    return False
