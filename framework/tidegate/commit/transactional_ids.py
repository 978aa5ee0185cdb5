"""Transactional ids: their format and their parsing.

An id is `tidegate.{job}.{journal}.{sink}.{attempt}.{subtask}.{index}`. No part contains a dot, and
an id is parsed as a whole. So job `a` never takes an id of job `a.b` as its own, and an id that
does not parse is never fenced. An id in another system than Kafka begins with the name of that
system and a colon (`files:tidegate.…`), so an id alone says which system to ask.

The id contains the attempt because initialising an id always succeeds and aborts its open
transaction. So a zombie can only abort under ids of its own attempt. The id contains the journal's
random name to distinguish the job that wrote it from another job of the same name, and from a job
whose journal was lost.

Sinks make ids (`dataplane`), and the procedures parse them. No other code looks inside an id.

Each journal has one more id, which only its claims initialise (`claim_producer.py`):
`tidegate.{job}.{journal}._claims`. It does not parse as an id of a sink, because no uid begins with
`_`. So no process fences it with the ids of older attempts, and no attempt is read from it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from tidegate.errors import check
from tidegate.ids import (
    JOB_NAME,
    KAFKA,
    TRANSACTION_SYSTEM,
    Attempt,
    JobName,
    SubtaskIndex,
    TransactionalId,
    Uid,
)

_NUMBER: Final = "0|[1-9][0-9]{0,8}"
_WHOLE: Final = re.compile(
    rf"(?:(?!{KAFKA}:)(?P<system>{TRANSACTION_SYSTEM}):)?"
    rf"tidegate\.(?P<job>{JOB_NAME})"
    r"\.(?P<journal>[a-z0-9]{1,32})"
    r"\.(?P<sink>[a-z0-9][a-z0-9_-]{0,99})\.(?P<attempt>[1-9][0-9]{0,17})"
    rf"\.(?P<subtask>{_NUMBER})\.(?P<index>{_NUMBER})"
)
_CLAIM_ID: Final = re.compile(
    rf"tidegate\.(?P<job>{JOB_NAME})\.(?P<journal>[a-z0-9]{{1,32}})\._claims"
)
_HEAD: Final = re.compile(rf"(.+)\.(?:{_NUMBER})\.(?:{_NUMBER})")


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionalIdParts:
    """The parts of a transactional id. `str` returns the id, and `parse_transactional_id` reverses
    it.
    """

    job: JobName
    journal_id: str
    sink: Uid
    attempt: Attempt
    subtask: SubtaskIndex
    index: int
    system: str = KAFKA
    """The name of the system that holds the transaction."""

    def __str__(self) -> str:
        system = "" if self.system == KAFKA else f"{self.system}:"
        return (
            f"{system}tidegate.{self.job}.{self.journal_id}.{self.sink}"
            f".{self.attempt}.{self.subtask}.{self.index}"
        )


def format_transactional_id(
    *,
    job: JobName,
    journal_id: str,
    sink: Uid,
    attempt: Attempt,
    subtask: SubtaskIndex,
    index: int,
    system: str = KAFKA,
) -> TransactionalId:
    """Return the id as its system has it. InternalError if a part has a form that would not
    parse back.
    """
    parts = TransactionalIdParts(
        job=job,
        journal_id=journal_id,
        sink=sink,
        attempt=attempt,
        subtask=subtask,
        index=index,
        system=system,
    )
    check(parse_transactional_id(str(parts)) == parts, f"{str(parts)!r} does not parse back")
    return TransactionalId(str(parts))


def parse_transactional_id(text: str) -> TransactionalIdParts | None:
    """Return the parts of an id; None if the whole text is not an id of tidegate."""
    match = _WHOLE.fullmatch(text)
    if match is None:
        return None
    return TransactionalIdParts(
        job=JobName(match["job"]),
        journal_id=match["journal"],
        sink=Uid(match["sink"]),
        attempt=Attempt(int(match["attempt"])),
        subtask=SubtaskIndex(int(match["subtask"])),
        index=int(match["index"]),
        system=match["system"] or KAFKA,
    )


def claim_id(job: JobName, journal_id: str) -> TransactionalId:
    """Return the id that every claim of a journal initialises. InternalError if a part has a form
    that would not parse back.
    """
    text = f"{job_prefix(job)}{journal_id}._claims"
    check(parse_claim_id(text) == (job, journal_id), f"{text!r} does not parse back")
    return TransactionalId(text)


def parse_claim_id(text: str) -> tuple[JobName, str] | None:
    """Return the job and the journal id of a claim id; None if the text is not one."""
    match = _CLAIM_ID.fullmatch(text)
    return None if match is None else (JobName(match["job"]), match["journal"])


def transaction_system(transactional_id: TransactionalId) -> str:
    """Return the name of the system that holds the transactions of an id."""
    system, colon, _ = transactional_id.partition(":")
    return system if colon else KAFKA


def list_attempts(ids: Iterable[TransactionalId]) -> set[tuple[JobName, str, Attempt]]:
    """Return job, journal id and attempt of the ids of tidegate, each combination once.

    Kafka keeps up to a million ids of a backfill for a week, and thousands of them have the same
    attempt. Only one id of each attempt and sink is parsed.
    """
    heads = {match[1] for match in map(_HEAD.fullmatch, ids) if match is not None}
    parsed = (parse_transactional_id(f"{head}.0.0") for head in heads)
    return {(parts.job, parts.journal_id, parts.attempt) for parts in parsed if parts is not None}


def job_prefix(job: JobName) -> str:
    """Return the prefix of all ids of a job, for ListTransactions."""
    return f"tidegate.{job}."
