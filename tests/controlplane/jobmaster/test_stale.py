"""A JobMaster takes messages of its live attempt and no other, when they come and when they are
handled.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

from tidegate.controlplane.jobmaster.process import _receive_when_started
from tidegate.controlplane.jobmaster.service import JobMaster
from tidegate.ids import Attempt, JobName, SlotId, TaskManagerId
from tidegate.protocol.messages import Acknowledge, Refused, SlotLost, TasksReady

JOB, LIVE = JobName("job"), Attempt(2)


def ready(attempt: Attempt) -> TasksReady:
    return TasksReady(job=JOB, attempt=attempt, ordinal=0)


def jobmaster(live: Attempt | None, decided: list[object], posted: list[object]) -> Any:
    return cast(
        "Any",
        SimpleNamespace(
            _job=JOB,
            _machine=SimpleNamespace(attempt=live),
            _live=None if live is None else SimpleNamespace(attempt=live),
            _loop=SimpleNamespace(post=posted.append),
            decide=decided.append,
        ),
    )


def test_a_message_of_another_attempt_is_refused() -> None:
    posted: list[object] = []
    master = jobmaster(LIVE, [], posted)
    for attempt in (Attempt(1), Attempt(3)):
        reply = JobMaster.receive(master, ready(attempt))
        assert reply == Refused(reason=f"job job is in attempt 2, not {attempt}")
    assert posted == []
    assert JobMaster.receive(master, ready(LIVE)) == Acknowledge()
    lost = SlotLost(
        job=JOB, attempt=Attempt(1), slot=SlotId(TaskManagerId("tm-1"), 0), reason="killed"
    )
    assert JobMaster.receive(master, lost) == Acknowledge(), (
        "it says by itself which attempt it means"
    )
    assert len(posted) == 2


def test_queued_message_is_ignored_if_its_attempt_has_ended() -> None:
    for live in (None, LIVE):
        decided: list[object] = []
        master = jobmaster(live, decided, [])
        JobMaster._handle(master, ready(Attempt(1)))
        assert decided == []
    JobMaster._handle(master, ready(LIVE))
    assert len(decided) == 1


def test_message_is_refused_before_the_jobmaster_has_started() -> None:
    assert _receive_when_started([], ready(LIVE)) == Refused(reason="this JobMaster is starting")
