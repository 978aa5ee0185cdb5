"""The manifest of a checkpoint: everything that a restore needs, as one file.

It is written before the publication that names it and never changed; on its own it is nothing,
because only the journal says which checkpoints count. Its path holds attempt and counter, so no two
writers ever share a file. Fields are only added, with defaults: old manifests must restore for
ever.
"""

from __future__ import annotations

import hashlib
from typing import Final

import msgspec

from tidegate.checkpoint.envelope import decode_file, encode_file
from tidegate.checkpoint.state_metadata import StateMetadata
from tidegate.errors import CorruptCheckpointError
from tidegate.ids import CheckpointId, JobName
from tidegate.protocol.snapshots import PreparedTransaction, SourceSplit, SubtaskSnapshot


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """A checkpoint."""

    job: JobName
    checkpoint: CheckpointId
    submission: str
    created_ms: int
    """Wall clock; for display only."""
    final: bool
    kafka_cluster: str
    fingerprint: str
    """Of the graph that wrote it; for display, a restore compares `plan`."""
    plan: StateMetadata
    subtasks: tuple[SubtaskSnapshot, ...]
    graph: dict[str, object] = msgspec.field(default_factory=dict)
    """The graph as `StreamGraph.describe` gives it, for people."""

    @property
    def splits(self) -> tuple[SourceSplit, ...]:
        """Every source position, ordered by source, topic and partition."""
        splits = [split for part in self.subtasks for split in part.splits]
        return tuple(sorted(splits, key=lambda split: (split.source, split.topic, split.partition)))

    @property
    def transactions(self) -> tuple[PreparedTransaction, ...]:
        """All that the subtasks acknowledged with, once each."""
        return tuple(dict.fromkeys(txn for part in self.subtasks for txn in part.transactions))

    @property
    def files(self) -> frozenset[str]:
        """Paths of all files of keyed state, relative to the job's folder."""
        return frozenset(
            file.path for part in self.subtasks for keyed in part.keyed for file in keyed.files
        )


def manifest_folder(job: JobName) -> str:
    """Where a job's manifests lie."""
    return f"{job}/manifests"


def manifest_path(job: JobName, checkpoint: CheckpointId) -> str:
    """Where the manifest of a checkpoint lies."""
    return f"{manifest_folder(job)}/{checkpoint}.json"


def encode_manifest(manifest: Manifest) -> bytes:
    """The manifest's file."""
    return encode_file(manifest)


def file_digest(data: bytes) -> str:
    """What a publication records of a manifest's file: its SHA-256, in hex."""
    return hashlib.sha256(data).hexdigest()


def decode_manifest(data: bytes | None, path: str, sha256: str | None = None) -> Manifest:
    """The inverse of `encode_manifest`; `data` is None where there is no such file.

    CorruptCheckpointError that names the file and the remedy if it is missing, torn, edited, of a
    newer version, or not the file that the publication recorded.
    """
    what = f"checkpoint file {path}"
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
        raise CorruptCheckpointError(f"{error}. {REMEDY}") from error
    if sha256 is not None and file_digest(data) != sha256:
        message = f"{what} is not the file that the journal recorded. {REMEDY}"
        raise CorruptCheckpointError(message)
    return body


REMEDY: Final = (
    "Bring it back from a backup, or restore an older checkpoint by hand (`--restore ID`; "
    "`tidegate checkpoints JOB` lists them): the records after it are then written again"
)
