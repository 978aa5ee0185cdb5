"""A slot obeys its own attempt and no other."""

from __future__ import annotations

import contextlib
from types import SimpleNamespace
from typing import Any, cast

from tidegate.ids import Attempt, CheckpointId, JobName
from tidegate.protocol.messages import Acknowledge, Refused, TriggerCheckpoint
from tidegate.slot.main import Slot

JOB, MINE = JobName("job"), Attempt(2)


def trigger(job: JobName, attempt: Attempt) -> TriggerCheckpoint:
    return TriggerCheckpoint(job=job, attempt=attempt, checkpoint=CheckpointId(attempt, 1))


def test_a_message_of_another_attempt_is_refused_by_a_slot() -> None:
    posted: list[object] = []
    slot = cast(
        "Any",
        SimpleNamespace(
            _start=SimpleNamespace(job=JOB, attempt=MINE),
            _mailbox=SimpleNamespace(post=posted.append),
            _receive_lock=contextlib.nullcontext(),
            _last_sequence=0,
        ),
    )
    for job, attempt in ((JOB, Attempt(1)), (JOB, Attempt(3)), (JobName("other"), MINE)):
        reply = Slot._handle(slot, trigger(job, attempt))
        assert reply == Refused(reason="this slot runs attempt 2 of job")
    assert posted == []
    assert Slot._handle(slot, trigger(JOB, MINE)) == Acknowledge()
    assert len(posted) == 1
