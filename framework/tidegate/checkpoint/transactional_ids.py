"""Transactional ids, written and parsed whole.

`tidegate.{job}.{journal}.{sink}.{attempt}.{subtask}.{slot}`: no part holds a dot, so that job `a`
never takes an id of a job `a.b` for its own, and an id that does not parse is never fenced. The
attempt is in it because initialising an id always succeeds and aborts what it has open: a zombie
can only ever hit ids of its own attempt. The journal's random name is in it so that a job that was
given a used name, or whose journal was lost, is told from the job that wrote the ids.

Sinks make ids (dataplane), the procedures of this room parse them; nobody else looks inside one.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from tidegate.errors import check
from tidegate.ids import JOB_NAME, Attempt, JobName, SubtaskIndex, TransactionalId, Uid

_WHOLE: Final = re.compile(
    rf"tidegate\.(?P<job>{JOB_NAME})"
    r"\.(?P<journal>[a-z0-9]{1,32})"
    r"\.(?P<sink>[a-z0-9][a-z0-9_-]{0,99})\.(?P<attempt>[1-9][0-9]{0,17})"
    r"\.(?P<subtask>0|[1-9][0-9]{0,8})\.(?P<slot>0|[1-9][0-9]{0,8})"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionalIdParts:
    """What a transactional id says. `str` is the id; it is its own inverse with `parse`."""

    job: JobName
    journal: str
    sink: Uid
    attempt: Attempt
    subtask: SubtaskIndex
    slot: int

    def __str__(self) -> str:
        return (
            f"tidegate.{self.job}.{self.journal}.{self.sink}"
            f".{self.attempt}.{self.subtask}.{self.slot}"
        )


def format_transactional_id(
    *, job: JobName, journal: str, sink: Uid, attempt: Attempt, subtask: SubtaskIndex, slot: int
) -> TransactionalId:
    """The id as Kafka sees it; InternalError if a part has a form that would not parse back."""
    parts = TransactionalIdParts(
        job=job, journal=journal, sink=sink, attempt=attempt, subtask=subtask, slot=slot
    )
    check(parse_transactional_id(str(parts)) == parts, f"{str(parts)!r} does not parse back")
    return TransactionalId(str(parts))


def parse_transactional_id(text: str) -> TransactionalIdParts | None:
    """The parts of an id, or None if it is not one of ours, from its first letter to its last."""
    match = _WHOLE.fullmatch(text)
    if match is None:
        return None
    return TransactionalIdParts(
        job=JobName(match["job"]),
        journal=match["journal"],
        sink=Uid(match["sink"]),
        attempt=Attempt(int(match["attempt"])),
        subtask=SubtaskIndex(int(match["subtask"])),
        slot=int(match["slot"]),
    )


def job_prefix(job: JobName) -> str:
    """What every id of a job begins with, for ListTransactions."""
    return f"tidegate.{job}."
