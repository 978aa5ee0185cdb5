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

from collections.abc import Sequence
from dataclasses import replace

import msgspec

from tidegate.checkpoint.effects import Procedure, create_entry, read_object
from tidegate.checkpoint.envelope import seal, unseal
from tidegate.checkpoint.procedures.patience import STORING, Patience, Waiting
from tidegate.checkpoint.restore import PartitionFacts
from tidegate.errors import CorruptCheckpointError, StorageError
from tidegate.ids import JobName, Uid
from tidegate.ports.blobs import Created


class Beginning(msgspec.Struct, frozen=True, kw_only=True):
    """What was found of one partition at the first look."""

    source: Uid
    topic: str
    partition: int
    start: int
    end: int | None


class Beginnings(msgspec.Struct, frozen=True, kw_only=True):
    """The file of a submission."""

    partitions: tuple[Beginning, ...]


def beginnings_path(job: JobName, submission: str) -> str:
    """Where it lies. Like the journal it is never deleted in this version."""
    return f"{job}/beginnings/{submission}.json"


def fix_beginnings(
    job: JobName,
    submission: str,
    found: Sequence[PartitionFacts],
    *,
    patience: Patience = STORING,
) -> Procedure[tuple[PartitionFacts, ...]]:
    """`found`, with the starts and ends of this submission's first look.

    StorageError if they can not be written down or read, CorruptCheckpointError for a torn file.
    """
    path = beginnings_path(job, submission)
    data = yield from read_object(path)
    if data is None:
        data = yield from _written(path, _first_look(found), patience)
    first = _decoded(data, path)
    return tuple(_as_first_found(facts, first) for facts in found)


def _first_look(found: Sequence[PartitionFacts]) -> bytes:
    return seal(
        Beginnings(
            partitions=tuple(
                Beginning(
                    source=facts.source,
                    topic=facts.topic,
                    partition=facts.partition,
                    start=facts.start,
                    end=facts.end,
                )
                for facts in found
            )
        )
    )


def _written(path: str, data: bytes, patience: Patience) -> Procedure[bytes]:
    """What stands there afterwards: ours, or that of another JobMaster that was first."""
    waiting = Waiting(patience)
    while (yield from create_entry(path, data)) is Created.UNKNOWN:
        if not (yield from waiting.again()):
            raise StorageError(
                f"the checkpoint storage did not say in {patience.give_up_s:g} s whether {path} "
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
        body = msgspec.json.decode(unseal(data, what=what), type=Beginnings)
    except CorruptCheckpointError as error:
        raise CorruptCheckpointError(f"{error}. {remedy}") from error
    except msgspec.MsgspecError as error:
        message = f"{what} does not read as beginnings ({error}). {remedy}"
        raise CorruptCheckpointError(message) from error
    return {(one.source, one.topic, one.partition): one for one in body.partitions}


def _as_first_found(
    facts: PartitionFacts, first: dict[tuple[Uid, str, int], Beginning]
) -> PartitionFacts:
    known = first.get((facts.source, facts.topic, facts.partition))
    if known is None:
        return facts  # added to the topic since
    if known.start < facts.earliest and facts.start == facts.earliest:
        return replace(facts, end=known.end)  # "earliest" is what is still there
    # A start that retention has overtaken since is refused by the restore, and not passed over.
    latest = known.start if facts.latest is None else facts.latest
    return replace(facts, start=known.start, end=known.end, latest=latest)
