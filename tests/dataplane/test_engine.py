"""The engine reports every exception of an action, and lets the end of the process pass."""

from __future__ import annotations

import pytest

from tidegate.dataplane.engine import Engine
from tidegate.drivers.system import SystemDrivers
from tidegate.user_exceptions import Terminated


class PanicError(BaseException):
    """A panic of a Rust library: PyO3 derives it from BaseException."""


def engine(failures: list[BaseException]) -> Engine:
    return Engine(SystemDrivers().threads, lambda error, _: failures.append(error))


@pytest.mark.parametrize("error", [ValueError("a"), PanicError("b"), SystemExit(0)])
def test_exception_of_any_action_is_reported(error: BaseException) -> None:
    def action() -> None:
        raise error

    failures: list[BaseException] = []
    of_slot = engine(failures)
    of_slot.run_guarded(action, None)
    of_slot.run_io(action, None)
    of_slot.mailbox.wait(30.0)
    of_slot.mailbox.run_posted()
    assert failures == [error, error]


def test_end_of_the_process_passes() -> None:
    def action() -> None:
        raise Terminated(0)

    failures: list[BaseException] = []
    with pytest.raises(Terminated):
        engine(failures).run_guarded(action, None)
    assert not failures
