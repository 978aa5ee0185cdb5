"""The offsets at which a submission begins. They are decided once: the first result counts.

"latest" and the ends of a bounded run depend on the time at which Kafka is asked. An attempt that
ends before its first publication leaves no manifest with these offsets. If the next attempt asked
again, it would skip the records that were read meanwhile and never published. So the first result
is written with create-if-absent before anything is deployed. Every attempt of the submission uses
that file, until a publication has its positions. The file is deleted when that publication is
settled, because it can then not be rolled back (`cleanup.py`), or when the journal is closed
(`recover.py`).

The JobMaster's recovery calls this module after the claim. Positions in a manifest are handled by
`checkpoint/restore`, not here.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace

import msgspec

from tidegate.checkpoint.envelope import decode_file, encode_file
from tidegate.checkpoint.partition_offsets import PartitionOffsets, StartKind
from tidegate.checkpoint.source_changes import find_log_change, missing_partition_error
from tidegate.commit.effects import Procedure, create_entry, read_object
from tidegate.commit.retry import STORAGE_RETRY, RetryLoop, RetryPolicy
from tidegate.errors import CorruptCheckpointError, SourceChangedError, StorageError
from tidegate.ids import JobName, Uid
from tidegate.ports.blobs import CreateResult
from tidegate.protocol.subtask_snapshot import SourceSplit


class InitialPartitionOffsets(msgspec.Struct, frozen=True, kw_only=True):
    """The offsets of one partition, as Kafka first reported them."""

    source: Uid
    topic: str
    partition: int
    start: int
    end: int | None
    start_kind: StartKind | None = None
    """The choice that gave `start`; None in files of earlier versions."""
    topic_id: str = ""
    """Kafka's id of the topic; empty in files of earlier versions."""
    hidden: int = 0
    """The number of offsets behind `end` that an open transaction hid when `end` was recorded."""

    @property
    def split(self) -> SourceSplit:
        """The recorded start, as a position."""
        return SourceSplit(
            source=self.source,
            topic=self.topic,
            partition=self.partition,
            offset=self.start,
            topic_id=self.topic_id,
        )


class InitialOffsets(msgspec.Struct, frozen=True, kw_only=True):
    """The content of a submission's file."""

    partitions: tuple[InitialPartitionOffsets, ...]


def initial_offsets_path(job: JobName, submission_id: str) -> str:
    """Return the path of a submission's file."""
    return f"{initial_offsets_folder(job)}/{submission_id}.json"


def initial_offsets_folder(job: JobName) -> str:
    """Return the folder with the files of all submissions."""
    return f"{job}/beginnings"


def record_initial_offsets(
    job: JobName,
    submission_id: str,
    found: Sequence[PartitionOffsets],
    *,
    checkpointed: Collection[tuple[Uid, str, int]] = (),
    retry_policy: RetryPolicy = STORAGE_RETRY,
) -> Procedure[tuple[PartitionOffsets, ...]]:
    """Return `found`, with the starts and ends that the submission has recorded first. Partitions
    in `checkpointed` do not begin there: the restore compares their topics with the checkpoint.

    StorageError if the offsets cannot be written or read, CorruptCheckpointError if the file is
    torn, SourceChangedError if a topic was created again since they were recorded.
    """
    path = initial_offsets_path(job, submission_id)
    data = yield from read_object(path)
    if data is None:
        data = yield from _create_or_read(path, _encode_initial_offsets(found), retry_policy)
    recorded = _decoded(data, path)
    for change in _changes(found, {k: v for k, v in recorded.items() if k not in checkpointed}):
        raise change
    return tuple(_apply_recorded(offsets, recorded) for offsets in found)


def _changes(
    found: Sequence[PartitionOffsets],
    recorded: Mapping[tuple[Uid, str, int], InitialPartitionOffsets],
) -> Iterator[SourceChangedError]:
    """Return the errors for topics that were created again since the offsets were recorded."""
    now = {(offsets.source, offsets.topic, offsets.partition): offsets for offsets in found}
    topic_ids = {offsets.topic: offsets.topic_id for offsets in found}
    for key, known in recorded.items():
        if key not in now:
            yield missing_partition_error(known.split, topic_ids.get(known.topic, ""))
        elif (change := find_log_change(known.split, now[key], reads_on=False)) is not None:
            yield change


def read_initial_offsets(job: JobName, submission_id: str) -> Procedure[tuple[SourceSplit, ...]]:
    """Return the position at which the submission began in each partition; empty before they are
    recorded.
    """
    path = initial_offsets_path(job, submission_id)
    data = yield from read_object(path)
    recorded = {} if data is None else _decoded(data, path)
    return tuple(known.split for known in recorded.values())


def _encode_initial_offsets(found: Sequence[PartitionOffsets]) -> bytes:
    return encode_file(
        InitialOffsets(
            partitions=tuple(
                InitialPartitionOffsets(
                    source=offsets.source,
                    topic=offsets.topic,
                    partition=offsets.partition,
                    start=offsets.start,
                    end=offsets.end,
                    start_kind=offsets.start_kind,
                    topic_id=offsets.topic_id,
                    hidden=offsets.hidden,
                )
                for offsets in found
            )
        )
    )


def _create_or_read(path: str, data: bytes, retry_policy: RetryPolicy) -> Procedure[bytes]:
    """Create the file and return its content: this one, or that of another JobMaster that was
    first.
    """
    waiting = RetryLoop(retry_policy)
    while (yield from create_entry(path, data)) is CreateResult.UNKNOWN:
        if not (yield from waiting.wait()):
            raise StorageError(
                f"The checkpoint storage did not say in {retry_policy.timeout_s:g} s whether "
                f"{path} was written; the attempt ends, and the next one reads it."
            )
    stands = yield from read_object(path)
    if stands is None:
        raise StorageError(f"{path} was written to the checkpoint storage and is not there.")
    return stands


def _decoded(data: bytes, path: str) -> dict[tuple[Uid, str, int], InitialPartitionOffsets]:
    what = f"Checkpoint file {path}"
    remedy = "Remove it to let the job look again: it holds only where the job began."
    try:
        body = msgspec.json.decode(decode_file(data, what=what), type=InitialOffsets)
    except CorruptCheckpointError as error:
        raise CorruptCheckpointError(f"{error} {remedy}") from error
    except msgspec.MsgspecError as error:
        message = f"{what} does not read as beginnings ({error}). {remedy}"
        raise CorruptCheckpointError(message) from error
    return {(one.source, one.topic, one.partition): one for one in body.partitions}


def _apply_recorded(
    offsets: PartitionOffsets, recorded: dict[tuple[Uid, str, int], InitialPartitionOffsets]
) -> PartitionOffsets:
    """Return `offsets` with the recorded start and end.

    A partition that is not in the file was added to the topic after the submit. A source with start
    "latest" reads such a partition completely. A recorded start does not move when retention passes
    it, and the restore then refuses it. Only "earliest" follows the log.
    """
    known = recorded.get((offsets.source, offsets.topic, offsets.partition))
    if known is None:
        added_to_latest = offsets.start_kind == "latest"
        return replace(offsets, start=offsets.earliest) if added_to_latest else offsets
    kind = known.start_kind or offsets.start_kind
    start = max(known.start, offsets.earliest) if kind == "earliest" else known.start
    return replace(offsets, start=start, end=known.end, start_kind=kind, hidden=known.hidden)
