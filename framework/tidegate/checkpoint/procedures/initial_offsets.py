"""Where a submission begins, decided once: the first look at the partitions counts.

"latest" and the ends of a bounded run are what Kafka says when it is asked. An attempt that ends
before its first publication leaves no manifest that holds the answer, and the next one, asking
again, would pass over what was read meanwhile and was never published. So the first answer is
written down, create-if-absent, before anything is deployed, and every attempt of the submission
goes by what stands there, until a publication holds its positions.

Called by the JobMaster's recovery, after the claim. Not for what a manifest says: that is
`checkpoint/restore`'s.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace

import msgspec

from tidegate.checkpoint.effects import Procedure, create_entry, read_object
from tidegate.checkpoint.envelope import decode_file, encode_file
from tidegate.checkpoint.partition_offsets import PartitionOffsets, StartKind
from tidegate.checkpoint.procedures.retry import STORAGE_RETRY, RetryLoop, RetryPolicy
from tidegate.checkpoint.source_changes import changed_log, gone_partition
from tidegate.errors import CorruptCheckpointError, SourceChangedError, StorageError
from tidegate.ids import JobName, Uid
from tidegate.ports.blobs import CreateResult
from tidegate.protocol.snapshots import SourceSplit


class Beginning(msgspec.Struct, frozen=True, kw_only=True):
    """What was found of one partition at the first look."""

    source: Uid
    topic: str
    partition: int
    start: int
    end: int | None
    start_kind: StartKind | None = None
    """How `start` was chosen; None in files of earlier versions."""
    topic_id: str = ""
    """Kafka's id of the topic; empty in files of earlier versions."""
    hidden: int = 0
    """Offsets behind `end` that an open transaction hid at the first look."""

    @property
    def split(self) -> SourceSplit:
        """The position at the first look."""
        return SourceSplit(
            source=self.source,
            topic=self.topic,
            partition=self.partition,
            offset=self.start,
            topic_id=self.topic_id,
        )


class InitialOffsets(msgspec.Struct, frozen=True, kw_only=True):
    """The file of a submission."""

    partitions: tuple[Beginning, ...]


def beginnings_path(job: JobName, submission: str) -> str:
    """Where it lies. Like the journal it is never deleted in this version."""
    return f"{job}/beginnings/{submission}.json"


def record_initial_offsets(
    job: JobName,
    submission: str,
    found: Sequence[PartitionOffsets],
    *,
    checkpointed: Collection[tuple[Uid, str, int]] = (),
    patience: RetryPolicy = STORAGE_RETRY,
) -> Procedure[tuple[PartitionOffsets, ...]]:
    """`found`, with the starts and ends of this submission's first look. Partitions that are
    `checkpointed` do not begin there: the restore compares their topics with the checkpoint's.

    StorageError if they can not be written down or read, CorruptCheckpointError for a torn file,
    SourceChangedError where a topic was created again since the first look.
    """
    path = beginnings_path(job, submission)
    data = yield from read_object(path)
    if data is None:
        data = yield from _written(path, _first_look(found), patience)
    first = _decoded(data, path)
    for change in _changes(found, {k: v for k, v in first.items() if k not in checkpointed}):
        raise change
    return tuple(_as_first_found(facts, first) for facts in found)


def _changes(
    found: Sequence[PartitionOffsets], first: Mapping[tuple[Uid, str, int], Beginning]
) -> Iterator[SourceChangedError]:
    """Topics that were created again since the first look."""
    now = {(facts.source, facts.topic, facts.partition): facts for facts in found}
    topic_ids = {facts.topic: facts.topic_id for facts in found}
    for key, known in first.items():
        if key not in now:
            yield gone_partition(known.split, topic_ids.get(known.topic, ""))
        elif (change := changed_log(known.split, now[key], reads_on=False)) is not None:
            yield change


def read_beginnings(job: JobName, submission: str) -> Procedure[tuple[SourceSplit, ...]]:
    """Where the submission began in each partition; empty before its first look."""
    path = beginnings_path(job, submission)
    data = yield from read_object(path)
    first = {} if data is None else _decoded(data, path)
    return tuple(known.split for known in first.values())


def _first_look(found: Sequence[PartitionOffsets]) -> bytes:
    return encode_file(
        InitialOffsets(
            partitions=tuple(
                Beginning(
                    source=facts.source,
                    topic=facts.topic,
                    partition=facts.partition,
                    start=facts.start,
                    end=facts.end,
                    start_kind=facts.start_kind,
                    topic_id=facts.topic_id,
                    hidden=facts.hidden,
                )
                for facts in found
            )
        )
    )


def _written(path: str, data: bytes, patience: RetryPolicy) -> Procedure[bytes]:
    """What stands there afterwards: ours, or that of another JobMaster that was first."""
    waiting = RetryLoop(patience)
    while (yield from create_entry(path, data)) is CreateResult.UNKNOWN:
        if not (yield from waiting.wait()):
            raise StorageError(
                f"the checkpoint storage did not say in {patience.timeout_s:g} s whether {path} "
                "was written; the attempt ends, and the next one reads it"
            )
    stands = yield from read_object(path)
    if stands is None:
        raise StorageError(f"{path} was written to the checkpoint storage and is not there")
    return stands


def _decoded(data: bytes, path: str) -> dict[tuple[Uid, str, int], Beginning]:
    what = f"checkpoint file {path}"
    remedy = "Remove it to let the job look again: it holds only where the job began"
    try:
        body = msgspec.json.decode(decode_file(data, what=what), type=InitialOffsets)
    except CorruptCheckpointError as error:
        raise CorruptCheckpointError(f"{error}. {remedy}") from error
    except msgspec.MsgspecError as error:
        message = f"{what} does not read as beginnings ({error}). {remedy}"
        raise CorruptCheckpointError(message) from error
    return {(one.source, one.topic, one.partition): one for one in body.partitions}


def _as_first_found(
    facts: PartitionOffsets, first: dict[tuple[Uid, str, int], Beginning]
) -> PartitionOffsets:
    """`facts` with the start and the end of the first look.

    A partition that is not in the file was added to the topic after the submit: a source that
    begins at the latest offset reads all of it. A fixed start stays where it is when retention
    overtakes it, and the restore refuses it; only "earliest" follows the log.
    """
    known = first.get((facts.source, facts.topic, facts.partition))
    if known is None:
        added_to_latest = facts.start_kind == "latest"
        return replace(facts, start=facts.earliest) if added_to_latest else facts
    kind = known.start_kind or facts.start_kind
    start = max(known.start, facts.earliest) if kind == "earliest" else known.start
    return replace(facts, start=start, end=known.end, start_kind=kind, hidden=known.hidden)
