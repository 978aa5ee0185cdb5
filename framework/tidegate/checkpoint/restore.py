"""The state and the splits that each slot of a new attempt restores.

`restore` is pure; the JobMaster calls it once per attempt, with the newest manifest and the new
plan. Subtask i of every vertex runs in the slot with ordinal i, so the result is given per ordinal.
Keyed state moves by ranges of key groups: a slot gets every old snapshot that overlaps its range
and keeps its part. No code looks at single keys. Splits are assigned again at every restart, by
topic and partition, always in the same way. A state that does not fit the plan is refused with a
remedy before anything is deployed.

The watermark of a step with its own time is one for all of its subtasks. It is the watermark that
the steps behind it had.

The module keeps invariant 7: no key and no split is lost or doubled at any pair of parallelisms.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from msgspec import structs

from tidegate.checkpoint.manifest import Manifest
from tidegate.checkpoint.partition_offsets import PartitionOffsets
from tidegate.checkpoint.source_changes import find_log_change, missing_partition_error
from tidegate.checkpoint.state_changes import ANY_SCHEMA, SchemaRules, step_refusals
from tidegate.checkpoint.state_metadata import StateMetadata
from tidegate.errors import CorruptCheckpointError, RefusedError, check
from tidegate.graph.key_groups import key_group_range
from tidegate.ids import SubtaskIndex, Uid
from tidegate.message_text import counted
from tidegate.protocol.subtask_snapshot import KeyedSnapshot, SourceSplit, StepWatermark
from tidegate.stream_elements import MIN_MS


@dataclass(frozen=True, slots=True, kw_only=True)
class RestorePlan:
    """The restore of one attempt. `keyed` and `splits` have one item per slot ordinal."""

    keyed: tuple[dict[Uid, tuple[KeyedSnapshot, ...]], ...]
    splits: tuple[tuple[SourceSplit, ...], ...]
    new_partitions: tuple[PartitionOffsets, ...]
    """Partitions that were added to a topic since the checkpoint. They are read from their earliest
    offset.
    """
    hidden_offsets: int = 0
    """The number of offsets that a bounded run does not read, because open transactions hid them
    when its ends were chosen. 0 if the attempt continues with ends that were chosen before.
    """
    sources_without_position: frozenset[Uid] = frozenset()
    """The sources without a position in the checkpoint. They begin where their `starting_offsets=`
    says.
    """
    input_over: bool = False
    """Whether the input has ended by a stop with a drain, so that no source reads any further."""
    watermarks: Mapping[str, int] = field(default_factory=dict)
    """The watermark from which each step with its own time continues. Steps without one are not in
    it.
    """


def restore(
    manifest: Manifest | None,
    plan: StateMetadata,
    partitions: Sequence[PartitionOffsets],
    *,
    submission_id: str = "",
    schemas: SchemaRules = ANY_SCHEMA,
    on_other_cluster: bool = False,
) -> RestorePlan:
    """Resolve a restore. `manifest` is None for a start without a checkpoint.

    `partitions` are all partitions of all sources. A bounded run of the same `submission_id` keeps
    its end offsets. With `on_other_cluster` the operator restores a checkpoint of another Kafka
    cluster, in which topics have other ids and leader epochs and the same offsets. RefusedError if
    state and plan do not fit, SourceChangedError if a topic is not the one that the checkpoint has
    read. CorruptCheckpointError if the state of a step does not cover all key groups once.
    """
    if manifest is not None:
        for refusal in refusals(manifest, plan, submission_id=submission_id, schemas=schemas):
            raise refusal
    resolved, added = _resolve_splits(
        manifest, partitions, submission_id, on_other_cluster=on_other_cluster
    )
    return RestorePlan(
        keyed=_keyed(manifest, plan),
        splits=assign_splits(resolved, plan.parallelism),
        new_partitions=added,
        hidden_offsets=0
        if manifest is not None and manifest.submission_id == submission_id
        else sum(offsets.hidden for offsets in partitions),
        sources_without_position=frozenset(offsets.source for offsets in partitions)
        - {split.source for split in (() if manifest is None else manifest.splits)},
        input_over=manifest is not None and manifest.input_over,
        watermarks=_step_watermarks(manifest),
    )


def refusals(
    manifest: Manifest,
    plan: StateMetadata,
    *,
    submission_id: str = "",
    schemas: SchemaRules = ANY_SCHEMA,
) -> Iterator[RefusedError]:
    """Yield each reason why the code cannot continue from a checkpoint. Topics are not compared."""
    yield from _drain_refusals(manifest, submission_id)
    yield from _parallelism_refusals(manifest, plan)
    yield from step_refusals(manifest, plan, schemas)
    yield from _source_refusals(manifest, plan)


def assign_splits(
    splits: Iterable[SourceSplit], parallelism: int
) -> tuple[tuple[SourceSplit, ...], ...]:
    """Assign splits to slot ordinals. The partitions of a topic go to successive ordinals, from an
    ordinal that depends on the topic's name.
    """
    dealt: list[list[SourceSplit]] = [[] for _ in range(parallelism)]
    for split in sorted(splits, key=lambda one: (one.source, one.topic, one.partition)):
        dealt[slot_of_split(split.topic, split.partition, parallelism)].append(split)
    return tuple(tuple(part) for part in dealt)


def slot_of_split(topic: str, partition: int, parallelism: int) -> int:
    """Return the ordinal of the slot that reads a partition. Python's `hash` is not used, because
    it differs between processes.
    """
    return (zlib.crc32(topic.encode()) + partition) % parallelism


# --- keyed state --------------------------------------------------------------------------------


def _keyed(
    manifest: Manifest | None, plan: StateMetadata
) -> tuple[dict[Uid, tuple[KeyedSnapshot, ...]], ...]:
    wanted = {step.uid for step in plan.steps}
    snapshots: dict[Uid, list[KeyedSnapshot]] = {}
    for part in () if manifest is None else manifest.subtasks:
        for keyed in part.keyed:
            if keyed.uid in wanted:
                snapshots.setdefault(keyed.uid, []).append(keyed)
    for uid, old in snapshots.items():
        old.sort(key=lambda keyed: keyed.first_key_group)
        _check_key_group_coverage(uid, old, plan.max_parallelism)
    return tuple(
        {
            uid: tuple(keyed for keyed in old if _overlaps(keyed, slot_key_groups))
            for uid, old in sorted(snapshots.items())
        }
        for slot_key_groups in (
            key_group_range(SubtaskIndex(ordinal), plan.parallelism, plan.max_parallelism)
            for ordinal in range(plan.parallelism)
        )
    )


def _overlaps(keyed: KeyedSnapshot, slot_key_groups: range) -> bool:
    return (
        keyed.first_key_group < slot_key_groups.stop
        and slot_key_groups.start <= keyed.last_key_group
    )


def _check_key_group_coverage(uid: Uid, old: Sequence[KeyedSnapshot], max_parallelism: int) -> None:
    """Check that the snapshots of a step cover all key groups, each once. Otherwise keys would be
    lost.
    """
    expected = 0
    for keyed in old:
        if keyed.first_key_group != expected:
            break
        expected = keyed.last_key_group + 1
    else:
        if expected == max_parallelism:
            return
    ranges = ", ".join(f"{keyed.first_key_group}-{keyed.last_key_group}" for keyed in old)
    message = (
        f"The checkpoint's state of step {uid!r} does not cover its "
        f"{counted(max_parallelism, 'key group')} once each (it has {ranges}); restore "
        "an older checkpoint with --restore ID."
    )
    raise CorruptCheckpointError(message)


# --- watermarks ---------------------------------------------------------------------------------


def _step_watermarks(manifest: Manifest | None) -> dict[str, int]:
    """Return the watermark of each step with its own time: the least of its subtasks.

    Each subtask has the watermark of its own records, so a higher one would make records of another
    subtask late. An idle subtask does not count, because the steps behind did not wait for it. If
    all are idle, the highest counts.
    """
    subtasks: dict[Uid, list[StepWatermark]] = {}
    for part in () if manifest is None else manifest.subtasks:
        for mark in part.watermarks:
            subtasks.setdefault(mark.uid, []).append(mark)
    found = {uid: _combined_ms(marks) for uid, marks in sorted(subtasks.items())}
    return {uid: watermark_ms for uid, watermark_ms in found.items() if watermark_ms > MIN_MS}


def _combined_ms(marks: Sequence[StepWatermark]) -> int:
    active = [_ms(mark) for mark in marks if not mark.idle]
    return min(active) if active else max(map(_ms, marks))


def _ms(mark: StepWatermark) -> int:
    return MIN_MS if mark.watermark_ms is None else mark.watermark_ms


# --- splits -------------------------------------------------------------------------------------


def _resolve_splits(
    manifest: Manifest | None,
    partitions: Sequence[PartitionOffsets],
    submission_id: str,
    *,
    on_other_cluster: bool,
) -> tuple[list[SourceSplit], tuple[PartitionOffsets, ...]]:
    known = {
        (split.source, split.topic, split.partition): split
        for split in (() if manifest is None else manifest.splits)
    }
    same_run = manifest is not None and manifest.submission_id == submission_id
    old_sources = {source for source, _, _ in known}
    splits: list[SourceSplit] = []
    added: list[PartitionOffsets] = []
    for offsets in partitions:
        old = known.pop((offsets.source, offsets.topic, offsets.partition), None)
        if old is not None:
            end = old.end_offset if same_run else offsets.end
            # A bounded run reads nothing more of a partition that it has read to its end.
            reads_on = not same_run or end is None or old.offset < end
            change = find_log_change(
                old, offsets, reads_on=reads_on, on_other_cluster=on_other_cluster
            )
            if change is not None:
                raise change
            if reads_on:
                _refuse_expired(old, offsets)
            epoch = -1 if on_other_cluster else old.leader_epoch
            split = _split(offsets, old.offset, end, epoch)
            # What was late stays late: the source continues from the watermark of the partition.
            # What is in an open transaction behind the end of the same run came after its start.
            hidden = 0 if same_run and old.idle else offsets.hidden
            idle = _is_idle(split, hidden, old.watermark_ms, was_idle=old.idle)
            splits.append(structs.replace(split, watermark_ms=old.watermark_ms, idle=idle))
        elif offsets.source in old_sources:
            added.append(offsets)
            splits.append(_new_split(offsets, offsets.earliest))
        else:
            splits.append(_new_split(offsets, offsets.start))
            _refuse_start_outside(offsets)
    gone = next(iter(known.values()), None)
    if gone is not None:
        topic_ids = {offsets.topic: offsets.topic_id for offsets in partitions}
        raise missing_partition_error(gone, topic_ids.get(gone.topic, ""))
    return splits, tuple(added)


def _new_split(offsets: PartitionOffsets, offset: int) -> SourceSplit:
    split = _split(offsets, offset, offsets.end)
    return structs.replace(split, idle=_is_idle(split, offsets.hidden, None, was_idle=False))


def _split(
    offsets: PartitionOffsets, offset: int, end: int | None, leader_epoch: int = -1
) -> SourceSplit:
    check(offset >= 0, f"{offsets.topic}-{offsets.partition}: offset {offset} was not resolved")
    return SourceSplit(
        source=offsets.source,
        topic=offsets.topic,
        partition=offsets.partition,
        offset=offset,
        end_offset=end,
        topic_id=offsets.topic_id,
        leader_epoch=leader_epoch,
    )


def _is_idle(split: SourceSplit, hidden: int, watermark_ms: int | None, *, was_idle: bool) -> bool:
    """Return whether a partition counts as idle, if its source has `idle_after`.

    A bounded run reads nothing of a partition whose end it has reached. If the partition was idle
    there, or never had a record, then it stays idle, so that it does not hold back the others. One
    that has records is not idle, because the others must wait for them: in front of its end, or
    `hidden` ones behind it in an open transaction.
    """
    if split.end_offset is None:
        return was_idle
    is_read = split.offset >= split.end_offset and not hidden
    return is_read and (was_idle or watermark_ms is None)


def _refuse_expired(old: SourceSplit, offsets: PartitionOffsets) -> None:
    """Refuse a position before the earliest offset that still exists.

    While a source runs, its position also advances over transaction markers. A position that was
    stored earlier may stand before some markers. Once Kafka has deleted these offsets, nothing
    shows whether they were markers or records.
    """
    if old.offset < offsets.earliest:
        message = (
            f"Source {old.source!r}: topic {old.topic!r}, partition {old.partition} was read up to "
            f"offset {old.offset}, but Kafka has deleted everything before {offsets.earliest} by "
            "the topic's retention: what stood between cannot be read any more, be it records or "
            "nothing but the markers that transactions leave. Restore a newer checkpoint if there "
            "is one (tidegate checkpoints), or start from what is there with --restore none: the "
            "state is dropped then."
        )
        raise RefusedError(message)


def _refuse_start_outside(offsets: PartitionOffsets) -> None:
    """Refuse a start that the log does not contain. A start that the user gave (an offset or a
    consumer group) may never have been in the log. Any other start was in the log once.
    """
    given = offsets.start_kind in {"group", "offset"}
    if offsets.start < offsets.earliest and not given:
        message = (
            f"Source {offsets.source!r}: this submission begins at offset {offsets.start} of "
            f"partition {offsets.partition} of topic {offsets.topic!r}, but retention has deleted "
            f"all records before offset {offsets.earliest}, and no checkpoint of the job is "
            f"published yet: offsets {offsets.start} to {offsets.earliest - 1} can no longer be "
            "read. Submit the job again to choose its start again, and give the topic a longer "
            "retention.ms."
        )
        raise RefusedError(message)
    if not given:
        change = find_log_change(_split(offsets, offsets.start, None), offsets)
        if change is not None:
            raise change
    elif offsets.latest is not None and not offsets.earliest <= offsets.start <= offsets.latest:
        message = (
            f"Source {offsets.source!r}: it would begin at offset {offsets.start} of partition "
            f"{offsets.partition} of topic {offsets.topic!r}, as starting_offsets= or its consumer "
            f"group says, but the log there begins at {offsets.earliest} and ends at "
            f"{offsets.latest}. Give it an offset between them, or 'earliest', 'latest' or a "
            "timestamp."
        )
        raise RefusedError(message)


# --- refusals -----------------------------------------------------------------------------------


def _drain_refusals(manifest: Manifest, submission_id: str) -> Iterator[RefusedError]:
    """Refuse a checkpoint of another run whose input has ended. More input would lead to second
    results of timers and windows that have fired before their time.
    """
    if manifest.drained and manifest.submission_id != submission_id:
        message = (
            f"Checkpoint {manifest.checkpoint} was taken when the job drained (--bounded, or stop "
            "--drain): all timers and windows have fired, and more input would make second results "
            "for them. To start without state, use --restore none. To continue from before the "
            "end, use --restore with an earlier checkpoint (tidegate checkpoints shows them). A "
            "bounded run that another run shall continue needs --no-drain."
        )
        yield RefusedError(message)


def _parallelism_refusals(manifest: Manifest, plan: StateMetadata) -> Iterator[RefusedError]:
    old = manifest.plan
    if old.steps and plan.max_parallelism != old.max_parallelism:
        message = (
            f"max_parallelism is {plan.max_parallelism}, but checkpoint {manifest.checkpoint} was "
            f"taken with {old.max_parallelism}: it is the number of key groups and fixed for the "
            f"life of the state. Set job.max_parallelism to {old.max_parallelism}."
        )
        yield RefusedError(message)


def _source_refusals(manifest: Manifest, plan: StateMetadata) -> Iterator[RefusedError]:
    new_topics = {source.uid: source.topic for source in plan.sources}
    for source in manifest.plan.sources:
        topic = new_topics.get(source.uid)
        if topic is None:
            message = (
                f"Checkpoint {manifest.checkpoint} holds the position of a source {source.uid!r}, "
                f"which the pipeline no longer has (its sources are: {_list(new_topics)}). If the "
                "attribute was renamed, name it so again; to forget all positions, start with "
                "--restore none."
            )
            yield RefusedError(message)
        elif topic != source.topic:
            message = (
                f"Source {source.uid!r} reads topic {topic!r}, but the checkpoint has its position "
                f"in topic {source.topic!r}. Give the source of the new topic another attribute "
                "name, or start with --restore none."
            )
            yield RefusedError(message)


def _list(names: Mapping[Uid, object]) -> str:
    return ", ".join(sorted(names)) or "none"
