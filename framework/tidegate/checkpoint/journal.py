"""The entries of a job's journal, as they are written and where they lie.

The journal is a row of numbered entries, each created with create-if-absent, in which claims and
publications compete for the next number: it is the one commit point of the job (invariants 2, 3,
5). `journal_state.py` says what they add up to; the procedures of `checkpoint/procedures` read and
create them.

Each entry names the nonce of the one before it. So an entry that was removed and created again, or
a journal pieced together from two backups, is found where it is read; a number that is missing
while a later one is there is an error and is never skipped, except where the journal was trimmed,
which a hint above it shows. An entry of a kind that this version does not know stops the reader:
its meaning could change what the last publication is.
"""

from __future__ import annotations

import re
from typing import Final

import msgspec

from tidegate.checkpoint.envelope import decode_file, encode_file, written_by_newer
from tidegate.errors import CorruptCheckpointError, check
from tidegate.ids import Attempt, CheckpointId, JobName, JournalNumber
from tidegate.protocol.snapshots import PreparedTransaction

SNAPSHOT_INTERVAL: Final = 100
"""Entries between two hints: a claim reads at most about so many entries."""


class Entry(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind"):
    """Base of all entries. The tag of each class is what stands in its file, whatever its name."""

    number: JournalNumber
    nonce: str
    """Tells one's own entry from another's where a create says that something is there."""
    previous: str
    """The nonce of the entry before; empty in the first."""
    journal: str
    """The journal's random name: part of transactional ids, the same in every entry."""
    created_ms: int
    """Wall clock of the writer; for display only."""


class Claim(Entry, frozen=True, kw_only=True, tag="claim"):
    """An attempt begins; the attempt is this entry's number. Publications of older ones end
    here.
    """

    submission: str
    restore: str
    """`latest`, `none` or the id of a checkpoint, as submitted."""
    took_over: bool = False
    """The operator took the job's name over: ids of other journals may be fenced."""
    claimant: str = ""
    """A random name of the process that made it."""
    kafka_cluster: str = ""
    """The id of the Kafka cluster that the attempt runs on; empty in claims of earlier versions."""
    restore_to_other_cluster: bool = False
    """The operator consents, for the first claim of a submission: the job may restore checkpoints
    of another Kafka cluster on `kafka_cluster`, because that one has the same offsets."""
    lost_attempt: int = 0
    """The newest attempt that Kafka knows and that this journal lacks, where the operator restores
    a checkpoint all the same: the journal is a backup. 0: it lacks none."""


class Publication(Entry, frozen=True, kw_only=True, tag="publication"):
    """A checkpoint is complete: its transactions are decided, its state is where the job
    restores.
    """

    attempt: Attempt
    checkpoint: CheckpointId
    submission: str
    manifest: str
    sha256: str
    """Of the manifest's file."""
    transactions: tuple[PreparedTransaction, ...]
    """The named ones, oldest first."""
    final: bool
    stopped: bool = False
    """A user's stop asked for this final checkpoint, before the end of the input."""


class Settled(Entry, frozen=True, kw_only=True, tag="settled"):
    """Every transaction that the last publication names was seen CompleteCommit."""

    attempt: Attempt
    publication: JournalNumber


class Lost(Entry, frozen=True, kw_only=True, tag="lost"):
    """The broker has aborted transactions that the last publication names; the others are ended."""

    attempt: Attempt
    publication: JournalNumber
    transactions: tuple[PreparedTransaction, ...]
    statement: str
    """What the operator is told."""


class RolledBack(Entry, frozen=True, kw_only=True, tag="retracted"):
    """The last publication is taken back: the broker has aborted something that it names, and
    nothing that it was the first to name was committed or ever will be.

    The job stands on the publication before it (or on nothing, if it was the first), with those of
    its transactions that the retracted one still carried.
    """

    attempt: Attempt
    publication: JournalNumber
    aborted: tuple[PreparedTransaction, ...]
    """What it was the first to name: its records are written again."""


class LossAccepted(Entry, frozen=True, kw_only=True, tag="accepted"):
    """The operator accepts a loss."""

    lost: JournalNumber
    submission: str


class Closed(Entry, frozen=True, kw_only=True, tag="closed"):
    """The job has ended for good; only a new submit may claim after it."""

    attempt: Attempt
    outcome: str
    """`finished`, `canceled` or `failed`."""
    stopped: str = ""
    """How a user's stop ended a job that is `finished`: a `StopEnd`; empty where the job ended at
    the end of its input. No further outcome, which an older version could not read."""


AnyEntry = Claim | Publication | Settled | Lost | RolledBack | LossAccepted | Closed

KINDS: Final = frozenset(
    {"claim", "publication", "settled", "lost", "retracted", "accepted", "closed"}
)


# --- files --------------------------------------------------------------------------------------


def entry_path(job: JobName, number: int) -> str:
    """Where an entry lies."""
    check(number >= 1, "entries are numbered from 1")
    return f"{journal_folder(job)}/{number:020d}.json"


def journal_folder(job: JobName) -> str:
    """Where the entries and hints lie."""
    return f"{job}/journal"


def hint_path(job: JobName, number: int) -> str:
    """Where the state at an entry lies. Each is written under a name of its own: a zombie that is
    late can not replace a newer one.
    """
    return f"{journal_folder(job)}/{number:020d}.hint"


def encode_entry(entry: AnyEntry) -> bytes:
    """The entry's file."""
    return encode_file(entry)


def decode_entry(data: bytes, path: str) -> AnyEntry:
    """The inverse; CorruptCheckpointError that names the file and what to do about it."""
    what = f"journal entry {path}"
    try:
        body = decode_file(data, what=what)
    except CorruptCheckpointError as error:
        raise CorruptCheckpointError(f"{error}. {REMEDY}") from error
    try:
        kind = msgspec.json.decode(body, type=_Kind).kind
        if kind not in KINDS:
            raise written_by_newer(what, f"an entry of kind {kind!r}")
        entry: AnyEntry = msgspec.json.decode(body, type=AnyEntry)
    except msgspec.MsgspecError as error:
        message = f"{what} does not read as an entry ({error}). {REMEDY}"
        raise CorruptCheckpointError(message) from error
    return entry


REMEDY: Final = (
    "The journal decides what was committed, so nothing is skipped: bring the checkpoint storage "
    "back from a backup of this moment, or give the job another name and known start offsets"
)


class _Kind(msgspec.Struct):
    kind: str


_NUMBER = re.compile(r".*/journal/(\d{20})\.(json|hint)")


def entry_number(path: str) -> JournalNumber | None:
    """The number of the entry that lies there; None for a hint and for anything else."""
    return _number(path, ".json")


def hint_number(path: str) -> JournalNumber | None:
    """The number of the entry whose state lies there; None for an entry and for anything else."""
    return _number(path, ".hint")


def _number(path: str, kind: str) -> JournalNumber | None:
    if not path.endswith(kind):  # asked of every name; a pattern takes four times longer
        return None
    match = _NUMBER.fullmatch(path)
    return None if match is None else JournalNumber(int(match[1]))
