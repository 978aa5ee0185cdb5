"""The JobMaster's shell: what it waits for before it fences its own transactional ids."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

from tidegate.config import Config
from tidegate.controlplane.jobmaster.events import JobState
from tidegate.controlplane.jobmaster.service import RELEASE_S, JobMaster
from tidegate.drivers.entropy import SystemEntropy
from tidegate.drivers.threads import SystemThreads
from tidegate.ids import Attempt, JobName, LeaderEpoch
from tidegate.protocol.messages import Message, ReleaseSlots, SlotsReleased


class Shell:
    """A JobMaster in attempt 4, with a loop whose time is turned by hand."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.due: list[tuple[float, Callable[[], None]]] = []
        self.sent: list[Message] = []
        self.closed: list[str] = []
        submission = SimpleNamespace(job=JobName("job"), parallelism=1)
        plan = SimpleNamespace(config=Config(), subtasks=frozenset(), graph=[], facts=None)
        drivers = SimpleNamespace(
            clock=SimpleNamespace(monotonic=lambda: self.now_s, now_ms=lambda: 0),
            process=SimpleNamespace(pid=1),
            threads=SystemThreads(),
            entropy=SystemEntropy(),
        )
        loop = SimpleNamespace(call_later=self.call_later, post=lambda action: action())
        manager = SimpleNamespace(send=self.sent.append, epoch=LeaderEpoch(1))
        made: Any = JobMaster
        self.master: JobMaster = made(submission, plan, loop, manager, drivers, "address")
        self.master._machine.attempt = Attempt(4)
        close = SimpleNamespace(
            close=lambda outcome, done: self.closed.append(outcome), abandon=lambda: None
        )
        self.master._journal = cast("Any", close)

    def call_later(self, delay_s: float, action: Callable[[], None]) -> None:
        self.due.append((self.now_s + delay_s, action))

    def run_until(self, time_s: float) -> None:
        while self.due and min(at for at, _ in self.due) <= time_s:
            self.due.sort(key=lambda item: item[0])
            self.now_s, action = self.due.pop(0)
            action()
        self.now_s = time_s

    def released(self, attempt: int) -> None:
        self.master.take(SlotsReleased(job=JobName("job"), attempt=Attempt(attempt)))


def test_own_ids_are_fenced_only_when_no_slot_is_left() -> None:
    shell = Shell()
    shell.master._close(JobState.FINISHED)
    shell.run_until(1.0)
    assert isinstance(shell.sent[-1], ReleaseSlots)
    shell.run_until(5.0)
    shell.released(3)
    shell.run_until(6.0)
    assert shell.closed == [], "a slot may still open a transaction, which nobody would end"
    shell.released(4)
    shell.run_until(6.1)
    assert shell.closed == ["finished"]


def test_the_wait_for_the_slots_has_an_end() -> None:
    shell = Shell()
    shell.master._close(JobState.CANCELED)
    shell.run_until(RELEASE_S - 0.1)
    assert shell.closed == []
    shell.run_until(RELEASE_S + 1)
    assert shell.closed == ["canceled"]


def test_a_failed_attempts_slots_are_waited_for_too() -> None:
    shell = Shell()
    shell.master._end_attempt(Attempt(4))
    shell.master._machine.attempt = None
    shell.master._close(JobState.FAILED)
    shell.run_until(1.0)
    assert shell.closed == []
    shell.released(4)
    shell.run_until(1.1)
    assert shell.closed == ["failed"]


def test_a_job_that_never_had_slots_is_closed_at_once() -> None:
    shell = Shell()
    shell.master._machine.attempt = None
    shell.master._close(JobState.FAILED)
    shell.run_until(0.1)
    assert shell.closed == ["failed"]
