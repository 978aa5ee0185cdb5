"""The text of any exception is short, can be encoded, and has no secret."""

from __future__ import annotations

import pytest

from tidegate import user_exceptions
from tidegate.errors import UserCodeError, from_foreign
from tidegate.masking import remember_value
from tidegate.protocol import codec
from tidegate.protocol.errors import ErrorReport
from tidegate.protocol.messages import Failed
from tidegate.user_exceptions import (
    MESSAGE_MAX,
    TEXT_MAX,
    TRACEBACK_MAX,
    Interrupted,
    described,
    repr_of,
    text_of,
    traceback_of,
)

LARGE = 40_000_000


class RaisingError(Exception):
    def __str__(self) -> str:
        raise AttributeError("status")


class NoTextError(Exception):
    def __str__(self) -> str:
        return 7  # type: ignore[return-value]  # noqa: PLE0307  # as user code may do


class DeepError(Exception):
    def __str__(self) -> str:
        return str(self)


class PanickingError(Exception):
    def __str__(self) -> str:
        raise SystemExit(0)

    def __repr__(self) -> str:
        raise SystemExit(0)


class OddText(str):
    __slots__ = ()

    def encode(self, encoding: str = "utf-8", errors: str = "strict") -> bytes:
        raise LookupError

    def __len__(self) -> int:
        return 1 << 40

    def __getitem__(self, _: object) -> str:
        raise LookupError


class OddError(Exception):
    def __str__(self) -> str:
        return OddText("odd")


def chain(length: int) -> BaseException:
    error: BaseException = ValueError("first")
    for number in range(length):
        error, cause = ValueError(f"{number}"), error
        error.__cause__ = cause
    return error


def noted() -> BaseException:
    error = ValueError("noted")
    error.add_note("n" * LARGE)
    return error


ODD = {
    "raises": RaisingError("down"),
    "no text": NoTextError(),
    "recurses": DeepError(),
    "panics": PanickingError(PanickingError()),
    "subclass of str": OddError(),
    "large": ValueError("x" * LARGE),
    "surrogate": ValueError("half \ud800 of a pair"),
    "lines": ValueError("a\n" * 1_000_000),
    "group": ExceptionGroup("g", [ValueError("x" * 10_000) for _ in range(1_000)]),
    "notes": noted(),
    "chain": chain(2_000),
    "syntax": SyntaxError("bad", ("file.py", 1, 1, "x" * LARGE)),
}


@pytest.mark.parametrize("name", ODD)
def test_every_exception_has_a_short_text_and_can_be_sent(name: str) -> None:
    error = ODD[name]
    for text, limit in (
        (described(error), TEXT_MAX),
        (repr_of(error), user_exceptions.REPR_MAX),
        (traceback_of(error), TRACEBACK_MAX),
    ):
        assert len(text.encode()) < limit + 300
    for reported in (error, from_foreign(error), caused_by(error)):
        report = ErrorReport.of(reported)
        assert len(codec.encode(Failed(error=report))) < TRACEBACK_MAX + MESSAGE_MAX


def caused_by(error: BaseException) -> BaseException:
    caused = UserCodeError(f"step 'a' raised {described(error)}")
    caused.__cause__ = error
    return caused


def test_text_says_what_its_exception_could_not() -> None:
    assert described(RaisingError("down", 7)) == (
        "RaisingError: (its __str__ raised AttributeError; its arguments are ('down', 7))"
    )
    assert described(ValueError()) == "ValueError"
    assert described(OddError()) == "OddError: odd"
    assert described(ValueError("half \ud800")) == "ValueError: half \\ud800"
    assert text_of(ValueError("x" * LARGE)).endswith("x… (40,000,000 characters)")


def test_error_of_tidegate_from_user_code_is_cut_on_the_wire() -> None:
    assert len(ErrorReport.of(UserCodeError("x" * LARGE)).message) < MESSAGE_MAX + 100


def test_cut_does_not_leave_the_beginning_of_a_secret() -> None:
    secret = "correct-horse-battery-staple"
    remember_value(secret)
    before = "x" * (TEXT_MAX - 10)
    assert "correct" not in text_of(ValueError(before + secret + "y" * LARGE))
    assert "correct" not in traceback_of(ValueError(before + secret))


def test_traceback_shows_the_beginning_and_the_end() -> None:
    def deep(depth: int) -> None:
        other(depth)

    def other(depth: int) -> None:
        if not depth:
            raise ValueError("at the end")
        deep(depth - 1)

    with pytest.raises(ValueError) as raised:  # the text is not what is tested
        deep(200)
    text = traceback_of(raised.value)
    assert text.startswith("Traceback (most recent call last)")
    assert "characters left out" in text
    assert text.endswith("ValueError: at the end\n")


def test_interrupt_within_a_text_passes() -> None:
    class InterruptedError_(Exception):
        def __str__(self) -> str:
            raise Interrupted

    with pytest.raises(Interrupted):
        text_of(InterruptedError_())
