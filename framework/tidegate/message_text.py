"""Parts of the text of messages: a number with its noun, and the text of one error in another.

The form of a message is a rule of the whole framework: `tests/repository/test_messages.py` reads
every message of an error. This module is pure, so every package may use it.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Final

from tidegate.user_exceptions import MESSAGE_MAX, text_of

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


def counted(number: int, noun: str, plural: str = "") -> str:
    """Return a number with its noun: `1 record`, `1,200 records`.

    `plural` is for a noun that does not form its plural with an s.
    """
    return f"{number:,} {noun if number == 1 else plural or f'{noun}s'}"


def clause(error: object) -> str:
    """Return the text of an error without its full stop, for a sentence that continues after it.

    For an exception of user code, it is the clause of its text with its class (`described`).
    """
    text = text_of(error, MESSAGE_MAX) if isinstance(error, BaseException) else str(error)
    return text.rstrip().removesuffix(".")


def utc_text(epoch_ms: int, *, zone: str = " UTC", with_ms: bool = False) -> str:
    """Return a time as `2026-06-01 00:30:00 UTC`.

    A topic can hold any timestamp of 64 bits, such as one in microseconds. For a time that has no
    date, before the year 1 or after 9999, the text is the number.
    """
    try:
        at = _EPOCH + timedelta(milliseconds=epoch_ms)
    except OverflowError:
        return f"{epoch_ms} ms"
    part = f".{at.microsecond // 1000:03}" if with_ms else ""
    return f"{at:%Y-%m-%d %H:%M:%S}{part}{zone}"
