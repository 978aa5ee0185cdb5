"""A final barrier waits for channels that are full, not for sinks, and not for ever."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from tidegate.dataplane.subtask import FINAL_WAIT_S, FinalWait


class Outputs:
    """The outputs of a chain, and a clock."""

    def __init__(self) -> None:
        self.now_s = 100.0
        self.channel_takes, self.sink_takes = False, True

    def wait(self) -> FinalWait:
        sink = SimpleNamespace(writable=lambda: self.sink_takes)
        chain: Any = SimpleNamespace(
            sinks={"out": sink}, writable=lambda: self.channel_takes and self.sink_takes
        )
        return FinalWait(chain, lambda: self.now_s)


def test_barrier_waits_while_only_channels_are_full_and_for_no_longer_than_the_limit() -> None:
    outputs = Outputs()
    wait = outputs.wait()
    assert wait.holds(due=True)
    outputs.now_s += FINAL_WAIT_S / 2
    assert wait.holds(due=True)
    outputs.now_s += FINAL_WAIT_S / 2
    assert not wait.holds(due=True)


def test_wait_begins_again_after_a_channel_has_taken_something() -> None:
    outputs = Outputs()
    wait = outputs.wait()
    assert wait.holds(due=True)
    outputs.now_s += FINAL_WAIT_S / 2
    outputs.channel_takes = True
    assert not wait.holds(due=True)
    outputs.channel_takes = False
    assert wait.holds(due=True)
    outputs.now_s += FINAL_WAIT_S / 2
    assert wait.holds(due=True)


@pytest.mark.parametrize(("sink_takes", "due"), [(False, True), (True, False)])
def test_barrier_does_not_wait_for_a_sink_or_if_nothing_is_due(
    *, sink_takes: bool, due: bool
) -> None:
    outputs = Outputs()
    outputs.sink_takes = sink_takes
    assert not outputs.wait().holds(due=due)
