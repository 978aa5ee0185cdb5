"""The entries of a job's journal: their fields, their encoding and their paths.

The journal is a sequence of numbered entries, each created with create-if-absent. Claims and
publications compete for the next number, so the journal is the one commit point of the job
(invariants 2, 3, 5). `state.py` computes the state that the entries add up to. The procedures of
`commit` read and create entries.

Each entry has the nonce of the entry before it. So a reader detects an entry that was removed and
created again, and a journal that was composed from two backups. A missing number below an existing
entry is an error and is never skipped. The only exception is a truncated journal, which a journal
snapshot with a higher number proves. An entry of a kind that this version does not know stops the
reader: its meaning could change which publication is the last one.
"""

from __future__ import annotations

import re
from typing import Final

import msgspec

from tidegate.checkpoint.envelope import decode_file, encode_file, written_by_newer
from tidegate.errors import CorruptCheckpointError, check
from tidegate.ids import Attempt, CheckpointId, JobName, JournalNumber
from tidegate.protocol.subtask_snapshot import PreparedTransaction

SNAPSHOT_INTERVAL: Final = 100
"""The number of entries between two journal snapshots: a claim reads at most about this many
entries.
"""


class Entry(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind"):
    """Base of all entries. The file of an entry contains the class's tag, not the class's name."""

    number: JournalNumber
    nonce: str
    """A random text by which a process recognises its own entry when a create answers that the
    entry exists.
    """
    previous: str
    """The nonce of the entry before; empty in the first entry."""
    journal_id: str = msgspec.field(name="journal")
    """The journal's random id. It is part of transactional ids and the same in every entry."""
    created_ms: int
    """The wall clock of the writer in milliseconds; for display only."""


class ClaimProducer(msgspec.Struct, frozen=True, kw_only=True):
    """The producer id and the epoch that a claim gave to the journal's claim id."""

    cluster_id: str
    producer_id: int
    epoch: int
    proves: bool
    """Whether no newer attempt has opened an id as long as Kafka has this producer. False if other
    processes have initialised the id, and it is not certain that the journal has their claims.
    """


class Claim(Entry, frozen=True, kw_only=True, tag="claim"):
    """The start of an attempt, whose number is the number of this entry. No older attempt can
    publish after it.
    """

    submission_id: str = msgspec.field(name="submission")
    restore: str
    """`latest`, `none` or the id of a checkpoint, as submitted."""
    fences_other_journals: bool = msgspec.field(default=False, name="took_over")
    """Whether the operator took over the job's name: ids of other journals may be fenced."""
    process_id: str = msgspec.field(default="", name="claimant")
    """A random id of the process that made the claim."""
    kafka_cluster: str = ""
    """The id of the Kafka cluster that the attempt runs on; empty in claims of earlier versions."""
    restore_to_other_cluster: bool = False
    """Whether the operator consents, in the first claim of a submission, to a restore from another
    Kafka cluster. The job may then restore checkpoints of that cluster on `kafka_cluster`, because
    both have the same offsets.
    """
    lost_attempt: int = 0
    """The newest attempt that Kafka knows and that this journal lacks; 0 if it lacks none. A number
    above 0 means that the journal is an older copy, and that the operator restores a checkpoint
    anyway.
    """
    producer: ClaimProducer | None = None
    """The producer of the claim id after this claim initialised it. An attempt that opens no
    transactional id initialises nothing, and has that of the claim before. None in claims of
    earlier versions, and if there was none before.
    """


class Publication(Entry, frozen=True, kw_only=True, tag="publication"):
    """The commit of a complete checkpoint: its transactions are to be committed, and the job
    restores its state.
    """

    attempt: Attempt
    checkpoint: CheckpointId
    submission_id: str = msgspec.field(name="submission")
    manifest: str
    sha256: str
    """The SHA-256 of the manifest's file, in hex."""
    transactions: tuple[PreparedTransaction, ...]
    """The listed transactions, those of earlier publications first."""
    final: bool
    stopped: bool = False
    """Whether a user's stop asked for this final checkpoint before the end of the input."""


class Settled(Entry, frozen=True, kw_only=True, tag="settled"):
    """The statement that every transaction in the last publication was seen CompleteCommit."""

    attempt: Attempt
    publication: JournalNumber


class Lost(Entry, frozen=True, kw_only=True, tag="lost"):
    """The statement that the broker has aborted transactions of the last publication; the other
    listed transactions are ended.
    """

    attempt: Attempt
    publication: JournalNumber
    transactions: tuple[PreparedTransaction, ...]
    statement: str
    """The text for the operator."""


class RolledBack(Entry, frozen=True, kw_only=True, tag="retracted"):
    """The rollback of the last publication. The broker has aborted a transaction that it lists, and
    no transaction that it was the first to list is or will ever be committed.

    The job then continues from the publication before it, or from nothing if it was the first. The
    transactions of that earlier publication count again, but only those that the rolled-back one
    also listed.
    """

    attempt: Attempt
    publication: JournalNumber
    aborted: tuple[PreparedTransaction, ...]
    """The transactions that the publication was the first to list; their records are
    written again.
    """


class LossAccepted(Entry, frozen=True, kw_only=True, tag="accepted"):
    """The operator's acceptance of a loss."""

    lost: JournalNumber
    submission_id: str = msgspec.field(name="submission")


class Closed(Entry, frozen=True, kw_only=True, tag="closed"):
    """The permanent end of the job. Only a new submit may claim after it."""

    attempt: Attempt
    outcome: str
    """`finished`, `canceled` or `failed`."""
    stopped: str = ""
    """The way in which a user's stop ended a job that is `finished`, as a `StopEnd`. Empty if the
    job ended at the end of its input. This is not another outcome, because an older version could
    not read one.
    """


AnyEntry = Claim | Publication | Settled | Lost | RolledBack | LossAccepted | Closed

KINDS: Final = frozenset(
    {"claim", "publication", "settled", "lost", "retracted", "accepted", "closed"}
)


# --- files --------------------------------------------------------------------------------------


def entry_path(job: JobName, number: int) -> str:
    """Return the path of an entry."""
    check(number >= 1, "entries are numbered from 1")
    return f"{journal_folder(job)}/{number:020d}.json"


def journal_folder(job: JobName) -> str:
    """Return the folder of the entries and the journal snapshots."""
    return f"{job}/journal"


def snapshot_path(job: JobName, number: int) -> str:
    """Return the path of the journal snapshot after an entry (a `.hint` file). Each snapshot has a
    path of its own, so that a late zombie cannot replace a newer one.
    """
    return f"{journal_folder(job)}/{number:020d}.hint"


def encode_entry(entry: AnyEntry) -> bytes:
    """Return the content of the entry's file."""
    return encode_file(entry)


def decode_entry(data: bytes, path: str) -> AnyEntry:
    """Return the entry in a file. CorruptCheckpointError, with the path and the remedy, if the file
    is torn, edited, of a newer version or not an entry.
    """
    what = f"Journal entry {path}"
    try:
        body = decode_file(data, what=what)
    except CorruptCheckpointError as error:
        raise CorruptCheckpointError(f"{error} {REMEDY}") from error
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
    "Journal entries cannot be skipped, because they record what was committed. Restore the whole "
    "checkpoint storage from one backup, or start under another job name with known start offsets."
)


class _Kind(msgspec.Struct):
    kind: str


_NUMBER = re.compile(r".*/journal/(\d{20})\.(json|hint)")


def entry_number(path: str) -> JournalNumber | None:
    """Return the number of the entry at this path; None for a journal snapshot and for any other
    file.
    """
    return _number(path, ".json")


def snapshot_number(path: str) -> JournalNumber | None:
    """Return the number of the journal snapshot at this path; None for an entry and for any other
    file.
    """
    return _number(path, ".hint")


def _number(path: str, kind: str) -> JournalNumber | None:
    if not path.endswith(kind):  # called for every name, and the pattern takes four times longer
        return None
    match = _NUMBER.fullmatch(path)
    return None if match is None else JournalNumber(int(match[1]))
