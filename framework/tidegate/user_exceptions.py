"""What user code may raise: any exception, with any text. This module is pure.

An exception of user code need not derive from `Exception`. A panic of a Rust library, the
`CancelledError` of asyncio and `sys.exit()` in a step do not. So the places that call user code
catch BaseException, and let through only what ends the process or the thread (`process_ends`).

User code decides what its exceptions say. Their methods may raise, return anything, or make a text
of any length. So only this module reads their texts. Its functions raise no error because of that.
The texts that they return are short, hold no secret, and can be encoded as UTF-8.
"""

from __future__ import annotations

import signal
import traceback
from collections.abc import Iterable
from types import TracebackType
from typing import Final

from tidegate.masking import masked_text

TEXT_MAX: Final = 1_000
"""The number of characters of an exception's text that are shown. Some texts quote a whole record,
and a text of several MB would not fit into a message between processes.
"""
MESSAGE_MAX: Final = 8_000
"""The same for an error of tidegate, whose text may quote several texts that are already short."""
REPR_MAX: Final = 200
TRACEBACK_MAX: Final = 12_000
"""The number of characters of a traceback that are shown."""
_READ_MAX: Final = 100_000
"""The number of characters that are read of a text before it is cut. Secrets are replaced in all of
them, so that a cut does not leave the beginning of a secret.
"""

_getsignal: Final = signal.getsignal
"""The function of Python. A process that runs user code replaces `signal.getsignal`, which then
shows what user code has set."""


class ProcessEnd(BaseException):
    """The end of a process or a thread that tidegate itself has ordered, for example by SIGTERM. It
    is raised in the middle of user code, and is no exception of user code.
    """


class Terminated(ProcessEnd, SystemExit):
    """SIGTERM ends the process in order."""


class Interrupted(ProcessEnd, KeyboardInterrupt):
    """A Ctrl-C that a signal handler of tidegate has received."""


def process_ends() -> tuple[type[BaseException], ...]:
    """Return the exceptions that are not of user code even if user code was running.

    A KeyboardInterrupt is a Ctrl-C where Python's own handler receives the signal, as in a test or
    a notebook. In the processes of a job SIGINT is ignored, so that user code has raised it.
    """
    if _getsignal(signal.SIGINT) is signal.default_int_handler:
        return (ProcessEnd, KeyboardInterrupt)
    return (ProcessEnd,)


def described(error: BaseException) -> str:
    """Return the class and the text of an exception: `ValueError: 12 is no date`."""
    text = text_of(error)
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def text_of(error: BaseException, length_max: int = TEXT_MAX) -> str:
    """Return the text of an exception."""
    try:
        return _shown(str(error), length_max)
    except process_ends():
        raise
    except BaseException as failure:  # noqa: BLE001  # `__str__` is code of a user
        return (
            f"(its __str__ raised {type(failure).__name__}; its arguments are "
            f"{repr_of(error.args)})"
        )


def repr_of(value: object, length_max: int = REPR_MAX) -> str:
    """Return the repr of a value of user code."""
    try:
        return _shown(repr(value), length_max)
    except process_ends():
        raise
    except BaseException as failure:  # noqa: BLE001  # `__repr__` is code of a user
        return f"<{type(value).__name__} whose __repr__ raised {type(failure).__name__}>"


def traceback_of(error: BaseException, frames: TracebackType | None = None) -> str:
    """Return the traceback of an exception. It begins at `frames`, or else at the first frame.

    The beginning and the end of a long traceback are shown.
    """
    begins = error.__traceback__ if frames is None else frames
    try:
        shown = traceback.TracebackException(type(error), error, begins, compact=True)
        text = "".join(_short_parts(shown.format()))
    except process_ends():
        raise
    except BaseException as failure:  # noqa: BLE001  # it reads attributes of the exception
        return f"{described(error)}\n(no traceback, because {described(failure)})\n"
    if len(text) > TRACEBACK_MAX:
        third = TRACEBACK_MAX // 3
        left_out = len(text) - TRACEBACK_MAX
        text = f"{text[:third]}\n... {left_out:,} characters left out ...\n{text[-2 * third :]}"
    return encodable(text)


def encodable(text: str) -> str:
    r"""Return the text in a form that UTF-8 can encode.

    Half of a surrogate pair becomes its escape. JSON's `"\ud800"` decodes to such a half, and user
    code may quote it.
    """
    return text.encode(errors="backslashreplace").decode()


def _short_parts(parts: Iterable[str]) -> Iterable[str]:
    """Shorten the parts of a traceback: a part is a frame, or the text of an exception."""
    for part in parts:
        short = _shown(part.rstrip("\n"), TEXT_MAX)
        yield f"{short}\n"


def _shown(text: str, length_max: int) -> str:
    # A subclass of str, which `__str__` may return, can have other methods.
    head = str.__getitem__(text, slice(_READ_MAX))
    clean = encodable(masked_text(head))
    length = str.__len__(text)
    if length <= _READ_MAX and len(clean) <= length_max:
        return clean
    return f"{clean[:length_max]}… ({length:,} characters)"
