"""The manifest of a checkpoint: everything that a restore needs, in one file.

The manifest is written before the publication that refers to it, and is never changed. A manifest
without a publication has no effect, because only the journal decides which checkpoints count. Its
path contains attempt and counter, so two writers never share a file. New fields get defaults, and
fields are never removed: old manifests must stay restorable forever.
"""

from __future__ import annotations

import hashlib
from typing import Final

import msgspec

from tidegate.checkpoint.envelope import decode_file, encode_file
from tidegate.checkpoint.state_metadata import StateMetadata
from tidegate.errors import CorruptCheckpointError
from tidegate.ids import CheckpointId, JobName
from tidegate.protocol.subtask_snapshot import PreparedTransaction, SourceSplit, SubtaskSnapshot


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """The content of a checkpoint."""

    job: JobName
    checkpoint: CheckpointId
    submission_id: str = msgspec.field(name="submission")
    created_ms: int
    """The wall clock in milliseconds; for display only."""
    final: bool
    kafka_cluster: str
    fingerprint: str
    """The fingerprint of the graph that wrote the checkpoint. It is for display; a restore compares
    `plan`.
    """
    plan: StateMetadata
    subtasks: tuple[SubtaskSnapshot, ...]
    graph: dict[str, object] = msgspec.field(default_factory=dict)
    """The graph as `StreamGraph.describe` returns it, for people."""
    duration_ms: int = 0
    """The time from the trigger to the last acknowledgement, for people; 0 if it is not known."""

    @property
    def splits(self) -> tuple[SourceSplit, ...]:
        """Every source position, ordered by source, topic and partition."""
        splits = [split for part in self.subtasks for split in part.splits]
        return tuple(sorted(splits, key=lambda split: (split.source, split.topic, split.partition)))

    @property
    def transactions(self) -> tuple[PreparedTransaction, ...]:
        """All transactions in the subtasks' acknowledgements, each once."""
        return tuple(dict.fromkeys(txn for part in self.subtasks for txn in part.transactions))

    @property
    def drained(self) -> bool:
        """Whether timers and windows may have fired before their time, because the input ended."""
        return any(part.drained for part in self.subtasks)

    @property
    def input_over(self) -> bool:
        """Whether a stop with a drain has ended the input somewhere before its bounds, or without
        any. The rest of the input is never read.
        """
        return any(
            split.end_offset is None or split.offset < split.end_offset
            for part in self.subtasks
            if part.drained
            for split in part.splits
        )

    @property
    def files(self) -> frozenset[str]:
        """Paths of all files of keyed state, relative to the job's folder."""
        return frozenset(
            file.path for part in self.subtasks for keyed in part.keyed for file in keyed.files
        )


def manifest_folder(job: JobName) -> str:
    """Return the folder of a job's manifests."""
    return f"{job}/manifests"


def manifest_path(job: JobName, checkpoint: CheckpointId) -> str:
    """Return the path of a checkpoint's manifest."""
    return f"{manifest_folder(job)}/{checkpoint}.json"


def encode_manifest(manifest: Manifest) -> bytes:
    """Return the content of the manifest's file."""
    return encode_file(manifest)


def file_digest(data: bytes) -> str:
    """Return the digest of a manifest's file that a publication records: SHA-256, in hex."""
    return hashlib.sha256(data).hexdigest()


def decode_manifest(data: bytes | None, path: str, sha256: str | None = None) -> Manifest:
    """Return the manifest in a file, the inverse of `encode_manifest`. `data` is None if the file
    does not exist.

    CorruptCheckpointError, with the path and the remedy, if the file is missing, torn, edited, of a
    newer version, or not the file that the publication recorded.
    """
    what = f"Checkpoint file {path}"
    try:
        return msgspec.json.decode(_body(data, what, sha256), type=Manifest)
    except msgspec.MsgspecError as error:
        message = f"{what} does not read as a manifest ({error}). {REMEDY}"
        raise CorruptCheckpointError(message) from error


def _body(data: bytes | None, what: str, sha256: str | None) -> bytes:
    if data is None:
        raise CorruptCheckpointError(f"{what} is missing. {REMEDY}")
    try:
        body = decode_file(data, what=what)
    except CorruptCheckpointError as error:
        raise CorruptCheckpointError(f"{error} {REMEDY}") from error
    if sha256 is not None and file_digest(data) != sha256:
        message = f"{what} is not the file that the journal recorded. {REMEDY}"
        raise CorruptCheckpointError(message)
    return body


REMEDY: Final = (
    "Bring it back from a backup, or restore an older checkpoint by hand (`--restore ID`; "
    "`tidegate checkpoints JOB` lists them): the records after it are then written again."
)
