"""User code that uses a state as if it were its value: the error says what to write."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from tidegate import Context, EventTimer, Fired, KeyedProcess, ValueState
from tidegate.api.state.state import ValueCell
from tidegate.errors import UserCodeError
from tidegate.testing import FunctionHarness

HINT = r"write \.value behind its name, as in self\.total\.value\.is_integer\. Correct the code"


class InProcess(KeyedProcess[str, int, int]):
    total = ValueState(float, default=0.0)

    def process(self, value: int, ctx: Context[str]) -> Iterable[int]:
        del ctx
        return (value,) if self.total.is_integer() else ()  # type: ignore[attr-defined]


class InTimer(KeyedProcess[str, int, int]):
    total = ValueState(float, default=0.0)
    timer = EventTimer()

    def process(self, value: int, ctx: Context[str]) -> Iterable[int]:
        del ctx
        self.timer.set(value)
        return ()

    def on_timer(self, fired: Fired, ctx: Context[str]) -> Iterable[int]:
        del fired, ctx
        return (1,) if self.total.is_integer() else ()  # type: ignore[attr-defined]


class OfAnother(KeyedProcess[str, int, int]):
    total = ValueState(float, default=0.0)

    def process(self, value: int, ctx: Context[str]) -> Iterable[int]:
        del ctx
        return (value.absent,)  # type: ignore[attr-defined]


def test_error_of_a_call_says_what_to_write() -> None:
    with (
        FunctionHarness(InProcess()) as harness,
        pytest.raises(UserCodeError, match=rf"has no attribute 'is_integer'.*{HINT}"),
    ):
        harness.push("k", 1)


def test_error_of_a_timer_says_what_to_write() -> None:
    with FunctionHarness(InTimer()) as harness:
        harness.push("k", 5, timestamp_ms=1)
        with pytest.raises(UserCodeError, match=rf"on_timer raised AttributeError.*{HINT}"):
            harness.watermark(6)


def test_error_of_another_object_has_no_hint() -> None:
    with (
        FunctionHarness(OfAnother()) as harness,
        pytest.raises(UserCodeError, match=r"no attribute 'absent'") as caught,
    ):
        harness.push("k", 1)
    assert ".value" not in str(caught.value)


def test_operator_on_a_state_says_what_to_write() -> None:
    cell = ValueCell(int)
    with pytest.raises(TypeError, match=r"Write \.value behind the name of the state"):
        cell + 1


def test_class_of_a_cell_has_no_hook_that_slows_down_each_attribute() -> None:
    assert "__getattr__" not in vars(ValueCell)
