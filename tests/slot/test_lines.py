"""The lines between a slot and its JobMaster: a message that fails at the other end is noticed."""

from __future__ import annotations

import queue
from typing import Any, cast

from tidegate.config import Config
from tidegate.controlplane.jobmaster.slot_line import SlotLine
from tidegate.drivers.threads import SystemThreads
from tidegate.errors import InternalError
from tidegate.ids import Attempt, JobName
from tidegate.protocol.messages import CloseTasks
from tidegate.slot.control import ControlLine

MESSAGE = CloseTasks(job=JobName("job"), attempt=Attempt(1))


class Failing:
    """Both a client whose calls fail at the other end and a clock."""

    def call(self, message: Any, timeout_s: float = 0.0) -> Any:
        raise InternalError("the event loop is stuck")

    def close(self) -> None:
        pass

    def monotonic(self) -> float:
        return 0.0

    def sleep(self, seconds: float) -> None:
        pass


def test_a_slot_whose_jobmaster_fails_on_its_message_leaves() -> None:
    said: queue.SimpleQueue[str] = queue.SimpleQueue()
    other = cast("Any", Failing())
    line = ControlLine(
        client=other, clock=other, threads=SystemThreads(), config=Config(), abandon=said.put
    )
    line.send(MESSAGE)
    assert said.get(timeout=10) == "the JobMaster cannot take CloseTasks: the event loop is stuck"


def test_a_slot_that_fails_on_its_message_is_lost() -> None:
    said: queue.SimpleQueue[str] = queue.SimpleQueue()
    other = cast("Any", Failing())
    line = SlotLine(other, other, SystemThreads(), name="tm-1/0", timeout_s=1.0, lost=said.put)
    line.send(MESSAGE)
    assert said.get(timeout=10) == "it cannot take CloseTasks: the event loop is stuck"
