"""Claiming a job's journal: how an attempt begins.

The attempt is the number of its claim, and everything before the claim is read and decided;
whatever an older attempt sends later finds the claim in its way. A claim is made by a fresh start
or a restart only, never by an attempt that was deposed: two processes would depose each other for
ever.

Everything that is refused is refused before the claim is created, so that a refused submit changes
nothing: a closed journal, an unaccepted loss, an unknown or deleted checkpoint, a name whose
transactional ids in Kafka stem from another journal.
"""

from __future__ import annotations

from typing import Final

from tidegate.checkpoint.effects import Procedure, list_objects, list_transactions, nonce
from tidegate.checkpoint.journal import HINT_INTERVAL, Accepted, AnyEntry, Claim, entry_path
from tidegate.checkpoint.journal_state import JournalState
from tidegate.checkpoint.manifest import manifest_folder
from tidegate.checkpoint.procedures.own_journal import (
    OwnJournal,
    header_after,
    place,
    restore_point,
    write_missed_hint,
)
from tidegate.checkpoint.procedures.patience import FENCING, STORING, Patience, kafka_retried
from tidegate.checkpoint.procedures.reading import read_entry, read_journal
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

COMPETITIONS_MAX: Final = 1_000
"""Entries that may be added by others while one claim is being made: more is no race but a
fault."""


def claim(
    job: JobName,
    *,
    submission: str,
    restore: str = "latest",
    accept_loss: bool = False,
    take_over: bool = False,
    claimant: str = "",
    again: bool = False,
    hint_interval: int = HINT_INTERVAL,
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
        yield from _refuse_deleted(job, state, submission, restore)
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
        if found is None or found.nonce != entry.nonce:
            state = yield from read_journal(job)  # others were faster, perhaps by much
            continue
        if isinstance(found, Claim):
            yield from _read_back(job, found)
            journal = OwnJournal(
                job=job,
                submission=submission,
                attempt=Attempt(found.number),
                before=state,
                state=state.after(found),
                hint_interval=hint_interval,
            )
            yield from write_missed_hint(journal)
            return journal
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


def _refuse_deleted(
    job: JobName, state: JournalState, submission: str, restore: str
) -> Procedure[None]:
    """A checkpoint that was asked for by its id, and that the journal names but nobody keeps."""
    point = restore_point(state, submission, restore)
    if point is None or str(point.checkpoint) != restore:
        return
    there = set((yield from list_objects(manifest_folder(job))))
    if point.manifest in there:
        return
    kept = [str(ref.checkpoint) for ref in state.recent if ref.manifest in there]
    raise RefusedError(
        f"the files of checkpoint {restore!r} are not in the checkpoint storage any more; those of "
        f"{', '.join(kept) or 'none'} are. Give one of these, or `latest`, and set "
        "checkpoint.retained if more are to be kept"
    )


def _refuse_used_name(job: JobName) -> Procedure[None]:
    """A journal without entries, while Kafka knows ids of a job of this name."""
    listed = yield from kafka_retried(lambda: list_transactions(job_prefix(job)), FENCING)
    parsed = [parse_transactional_id(tid) for tid in listed]
    others = sorted({parts.journal for parts in parsed if parts is not None and parts.job == job})
    if others and (yield from read_entry(job, 1)) is None:  # else another process was just first
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
    found = yield from read_entry(job, own.number)
    if found != own:
        message = (
            f"journal entry {entry_path(job, own.number)} was created, but reads back as "
            f"{'nothing' if found is None else 'another'}: this storage can not hold a journal"
        )
        raise CorruptCheckpointError(message)
