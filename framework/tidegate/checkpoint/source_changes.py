"""Whether a topic in Kafka is still the topic whose offsets a checkpoint holds.

Offsets have a meaning only within one log. A topic that is deleted and created again has the same
name and another id (KIP-516). A log that an unclean leader election truncated keeps the topic id,
and its records behind the cut have a newer leader epoch (KIP-101). A source that continued at the
old offset would silently skip records, so both changes are errors. A position behind the end of the
log is also an error.

The module is pure. A single answer may come from a broker with old metadata; `confirmation` decides
when a finding is final.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from tidegate.checkpoint.partition_offsets import PartitionOffsets
from tidegate.errors import SourceChangedError
from tidegate.message_text import counted
from tidegate.protocol.subtask_snapshot import SourceSplit

REMEDY: Final = (
    "To begin without the checkpoint, run the job with --restore none: the state is dropped, and "
    "each source begins where its starting_offsets= says."
)


def find_log_change(
    old: SourceSplit,
    offsets: PartitionOffsets,
    *,
    reads_on: bool = True,
    on_other_cluster: bool = False,
) -> SourceChangedError | None:
    """Return the error for reading a partition, now as in `offsets`, from the stored position
    `old`; None if nothing is wrong.

    `reads_on` is false for a bounded run that has read the partition to its end. On another cluster
    (`on_other_cluster`) neither topic ids nor leader epochs can be compared.
    """
    if not on_other_cluster and differs(old.topic_id, offsets.topic_id):
        return _recreated_error(old, offsets)
    if not reads_on:
        return None
    end = offsets.epoch_end
    if not on_other_cluster and end is not None and end < old.offset:
        return _truncated_error(old, offsets, end)
    if offsets.latest is not None and offsets.latest < old.offset:
        return _beyond_end_error(old, offsets, offsets.latest)
    return None


def find_topic_change(
    splits: Sequence[SourceSplit], topic_ids: Mapping[str, str]
) -> SourceChangedError | None:
    """Return the error for publishing these positions, given the present ids of their topics; None
    if nothing is wrong.
    """
    for split in splits:
        now = topic_ids.get(split.topic)
        if now is None and split.topic_id:
            return deleted_topic_error(split)
        if now is not None and differs(split.topic_id, now):
            message = (
                f"{_position_text(split)}, and Kafka now has a topic of this name with id {now}: "
                "the topic was deleted and created again while the job ran. The job cannot tell "
                "which records it has read of which, so it did not publish the checkpoint and "
                f"ends. {REMEDY}"
            )
            return SourceChangedError(message, _finding("recreated", split, now))
    return None


def deleted_topic_error(split: SourceSplit) -> SourceChangedError:
    """Return the error for a stored position whose topic does not exist."""
    position = _position_text(split)
    message = f"{position}, and Kafka has no topic of this name any more: it was deleted. {REMEDY}"
    return SourceChangedError(message, _finding("absent", split))


def missing_partition_error(split: SourceSplit, topic_id: str) -> SourceChangedError:
    """Return the error for a topic that has fewer partitions than the stored positions."""
    now = f" with id {topic_id}" if topic_id else ""
    message = (
        f"{_position_text(split)}, and the topic of this name that Kafka has now{now} has no "
        f"partition {split.partition}: the topic was deleted and created again with fewer "
        f"partitions. {REMEDY}"
    )
    return SourceChangedError(message, _finding("fewer partitions", split, topic_id))


def end_beyond_log_error(offsets: PartitionOffsets, end: int) -> SourceChangedError:
    """Return the error for a bounded run whose chosen end is behind the end of the log."""
    where = f"partition {offsets.partition} of topic {offsets.topic!r}"
    message = (
        f"Source {offsets.source!r}: this run is to read {where} up to offset {end}, but the "
        f"partition {_log_range_text(offsets)}: Kafka has lost the records between, or the topic "
        "is another one. Wait until Kafka has the records again, or choose other ends."
    )
    finding = f"end beyond the log: {offsets.source} {offsets.topic}-{offsets.partition}"
    return SourceChangedError(message, finding)


def differs(stored: str, now: str) -> bool:
    """Return whether two topic ids differ. An empty id is unknown and differs from none."""
    return bool(stored and now) and stored != now


def _recreated_error(old: SourceSplit, offsets: PartitionOffsets) -> SourceChangedError:
    message = (
        f"{_position_text(old)}. Kafka now has a topic of this name with id {offsets.topic_id}, in "
        f"which partition {old.partition} {_log_range_text(offsets)}: the topic was deleted and "
        f"created again, and its offsets are of other records. {REMEDY}"
    )
    return SourceChangedError(message, _finding("recreated", old, offsets.topic_id))


def _truncated_error(old: SourceSplit, offsets: PartitionOffsets, end: int) -> SourceChangedError:
    cut = (
        f"the log of that epoch ends at offset {end}"
        if end >= 0
        else "the partition's leader does not know that epoch"
    )
    message = (
        f"{_position_text(old)}, in leader epoch {old.leader_epoch}, but {cut}, and the partition "
        f"{_log_range_text(offsets)}. Kafka has lost records that the job has read (unclean leader "
        "election), and may have other records at their offsets. Restore an older checkpoint that "
        "was taken before the cut with --restore ID (tidegate checkpoints lists them): what it has "
        f"not read is then read again. {REMEDY}"
    )
    return SourceChangedError(message, _finding("truncated", old))


def _beyond_end_error(
    old: SourceSplit, offsets: PartitionOffsets, latest: int
) -> SourceChangedError:
    message = (
        f"{_position_text(old)}, but the partition {_log_range_text(offsets)}, "
        f"{counted(old.offset - latest, 'offset')} before the position: Kafka has "
        "lost these records, or the topic is another one. Restore an older checkpoint with "
        "--restore ID (tidegate checkpoints lists them), or wait until Kafka has the records "
        f"again. {REMEDY}"
    )
    return SourceChangedError(message, _finding("beyond the end", old))


def _position_text(split: SourceSplit) -> str:
    with_id = f" (topic id {split.topic_id})" if split.topic_id else ""
    return (
        f"Source {split.source!r}: the job's position in partition {split.partition} of topic "
        f"{split.topic!r}{with_id} is offset {split.offset}"
    )


def _log_range_text(offsets: PartitionOffsets) -> str:
    if offsets.latest is None:
        return f"begins at offset {offsets.earliest}"
    return f"begins at offset {offsets.earliest} and ends at offset {offsets.latest}"


def _finding(what: str, split: SourceSplit, topic_id: str = "") -> str:
    return f"{what}: {split.source} {split.topic}-{split.partition} {topic_id}"
