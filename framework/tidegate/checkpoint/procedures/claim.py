"""Claiming a job's journal: how an attempt begins.

The attempt is the number of its claim, and everything before the claim is read and decided;
whatever an older attempt sends later finds the claim in its way. A claim is made by a fresh start
or a restart only, never by an attempt that was deposed: two processes would depose each other for
ever.

Everything that is refused is refused before the claim is created, so that a refused submit changes
nothing: a closed journal, an unaccepted loss, an unknown checkpoint, a name whose transactional ids
in Kafka stem from another journal.
"""

from __future__ import annotations

from typing import Final

from tidegate.checkpoint.effects import Procedure, list_transactions, nonce, read_object
from tidegate.checkpoint.journal import (
    REMEDY,
    Accepted,
    AnyEntry,
    Claim,
    decode_entry,
    entry_path,
    hint_path,
)
from tidegate.checkpoint.journal_state import JournalState, decode_hint
from tidegate.checkpoint.procedures.own_journal import (
    OwnJournal,
    header_after,
    place,
    restore_point,
)
from tidegate.checkpoint.procedures.patience import FENCING, STORING, Patience, kafka_retried
from tidegate.checkpoint.transactional_ids import job_prefix, parse_transactional_id
from tidegate.errors import (
    CorruptCheckpointError,
    DataLossError,
    DeposedError,
    JobClosedError,
    RefusedError,
    StorageError,
)
from tidegate.ids import Attempt, JobName

HOLE_MAX: Final = 3
"""Entries that are looked for behind the last one: a few lost files in a row are noticed at once. A
larger hole is noticed when the attempt wants to write where an old entry stands."""

COMPETITIONS_MAX: Final = 1_000
"""Entries that may be added by others while one claim is being made: more is no race but a
fault."""


def read_journal(job: JobName) -> Procedure[JournalState]:
    """Fold the whole journal, from the hint upwards. CorruptCheckpointError if it is not whole.

    Claims nothing and changes nothing.
    """
    state = yield from _hinted(job)
    while True:
        while (entry := (yield from _read(job, state.number + 1))) is not None:
            state = state.after(entry)
        beyond = yield from _beyond(job, state.number)
        if beyond is None:
            return state
        if (yield from _read(job, state.number + 1)) is None:  # else it came between two looks
            message = (
                f"journal entry {entry_path(job, state.number + 1)} is missing, but entry {beyond} "
                f"is there. {REMEDY}"
            )
            raise CorruptCheckpointError(message)


def _beyond(job: JobName, number: int) -> Procedure[int | None]:
    """The number of an entry behind a hole after `number`, if there is one."""
    for further in range(number + 2, number + 2 + HOLE_MAX):
        if (yield from read_object(entry_path(job, further))) is not None:
            return further
    return None


def claim(
    job: JobName,
    *,
    submission: str,
    restore: str = "latest",
    accept_loss: bool = False,
    take_over: bool = False,
    claimant: str = "",
    again: bool = False,
    patience: Patience = STORING,
) -> Procedure[OwnJournal]:
    """Begin an attempt. `submission` is the id of the submit that it belongs to.

    JobClosedError if the job has ended for this submission, DataLossError if a loss was stated and
    is not accepted (`accept_loss` counts for the first claim of a submission only: a later loss
    must be accepted anew), RefusedError if the name is used or `restore` unknown.

    `again`: this process, `claimant`, has claimed before. Then DeposedError if the newest claim is
    not its own: it was given up meanwhile, and must not push out the one that has taken its place.
    """
    state = yield from read_journal(job)
    for _ in range(COMPETITIONS_MAX):
        if again and state.claimant != claimant:
            raise DeposedError(
                f"job {job!r} was claimed by another process, as attempt {state.attempt}: this one "
                "exits and claims nothing any more"
            )
        _refuse(job, state, submission, restore, accept_loss=accept_loss)
        if not state.number and not take_over:
            yield from _refuse_used_name(job)
        entry: AnyEntry
        if state.lost is not None and not state.accepted:
            header = yield from header_after(state)
            entry = Accepted(**header, lost=state.lost.number, submission=submission)
        else:
            entry = yield from _next_claim(
                state, submission, restore, take_over=take_over, claimant=claimant
            )
        found = yield from place(job, entry, patience)
        if found.nonce == entry.nonce and isinstance(found, Claim):
            yield from _read_back(job, found)
            return OwnJournal(
                job=job,
                submission=submission,
                attempt=Attempt(found.number),
                before=state,
                state=state.after(found),
            )
        state = state.after(found)
    message = f"job {job!r}: others have added {COMPETITIONS_MAX} journal entries during one claim"
    raise StorageError(message)


def _refuse(
    job: JobName, state: JournalState, submission: str, restore: str, *, accept_loss: bool
) -> None:
    fresh = state.submission != submission
    if state.closed is not None and not fresh:
        message = (
            f"job {job!r} has ended ({state.closed.outcome}): its journal is closed, and only a "
            "new submit may begin it again"
        )
        raise JobClosedError(message, state.closed.outcome)
    if state.lost is not None and not state.accepted and not (fresh and accept_loss):
        raise DataLossError(state.lost.statement)
    restore_point(state, submission, restore)


def _refuse_used_name(job: JobName) -> Procedure[None]:
    """A journal without entries, while Kafka knows ids of a job of this name."""
    listed = yield from kafka_retried(lambda: list_transactions(job_prefix(job)), FENCING)
    parsed = [parse_transactional_id(tid) for tid in listed]
    others = sorted({parts.journal for parts in parsed if parts is not None and parts.job == job})
    if others and (yield from _read(job, 1)) is None:  # else another process was just first
        message = (
            f"job {job!r} has no journal in this checkpoint storage, but Kafka holds transactional "
            f"ids of that name, of journal {', '.join(others)}: the name is used by another job, "
            "or the checkpoint storage is not the one that the job was run with. Set "
            "checkpoint.storage to that one, choose another name, or, if nothing of that name "
            "runs any more, submit with --take-over: its open transactions are then aborted"
        )
        raise RefusedError(message)


def _next_claim(
    state: JournalState, submission: str, restore: str, *, take_over: bool, claimant: str
) -> Procedure[Claim]:
    header = yield from header_after(state)
    if not state.number:
        header["journal"] = yield from nonce()
    took_over = take_over and not state.number
    return Claim(
        **header,
        submission=submission,
        restore=restore,
        took_over=took_over,
        claimant=claimant,
    )


def _read_back(job: JobName, own: Claim) -> Procedure[None]:
    """What the store confirmed must be there, or its creates order nothing."""
    found = yield from _read(job, own.number)
    if found != own:
        message = (
            f"journal entry {entry_path(job, own.number)} was created, but reads back as "
            f"{'nothing' if found is None else 'another'}: this storage can not hold a journal"
        )
        raise CorruptCheckpointError(message)


def _hinted(job: JobName) -> Procedure[JournalState]:
    """The state that the hint holds, if it can be used and the entry that it stands on is there."""
    path = hint_path(job)
    data = yield from read_object(path)
    if data is None:
        return JournalState()
    try:
        state = decode_hint(data, path)
    except CorruptCheckpointError:
        return JournalState()  # only a shortcut: without it, every entry is read
    entry = yield from _read(job, state.number)
    if entry is None or entry.nonce != state.nonce:
        message = (
            f"journal entry {entry_path(job, state.number)} is missing or is not the one that "
            f"{path} was written after. {REMEDY}"
        )
        raise CorruptCheckpointError(message)
    return state


def _read(job: JobName, number: int) -> Procedure[AnyEntry | None]:
    path = entry_path(job, number)
    data = yield from read_object(path)
    return None if data is None else decode_entry(data, path)
