"""Restore at any parallelism: nothing lost, nothing doubled; and what is refused, with its
remedy."""

from __future__ import annotations

import dataclasses
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.checkpoint.manifest import Manifest
from tidegate.checkpoint.partition_offsets import PartitionOffsets, StartKind
from tidegate.checkpoint.restore import (
    assign_splits,
    restore,
    slot_of_split,
)
from tidegate.checkpoint.state_changes import SchemaRules
from tidegate.checkpoint.state_metadata import SourceMetadata, StateMetadata, StepMetadata
from tidegate.errors import (
    CorruptCheckpointError,
    InternalError,
    RefusedError,
    Retry,
    SourceChangedError,
)
from tidegate.graph.key_groups import key_group_range
from tidegate.ids import Attempt, CheckpointId, JobName, SubtaskIndex, Uid, VertexId
from tidegate.protocol.subtask_snapshot import (
    KEY_TYPE,
    KeyedSnapshot,
    SourceSplit,
    StateFile,
    StepWatermark,
    SubtaskSnapshot,
)

ORDERS, TOTAL = Uid("orders"), Uid("total")


def plan(parallelism: int = 2, max_parallelism: int = 128, **changes: Any) -> StateMetadata:
    return msgspec.structs.replace(
        StateMetadata(
            parallelism=parallelism,
            max_parallelism=max_parallelism,
            steps=(StepMetadata(uid=TOTAL, key_type="str", states={"total": "int"}),),
            sources=(SourceMetadata(uid=ORDERS, topic="orders"),),
        ),
        **changes,
    )


def checkpoint(
    state_metadata: StateMetadata,
    partitions: int = 3,
    schemas: dict[str, list[str]] | None = None,
    **split: Any,
) -> Manifest:
    """A manifest as a run of that plan writes it: one snapshot per subtask, with the splits
    assigned.
    """
    splits = assign_splits(
        [
            SourceSplit(source=ORDERS, topic="orders", partition=p, offset=100 + p, **split)
            for p in range(partitions)
        ],
        state_metadata.parallelism,
    )
    parts = []
    for index in range(state_metadata.parallelism):
        groups = key_group_range(
            SubtaskIndex(index), state_metadata.parallelism, state_metadata.max_parallelism
        )
        file = StateFile(name="a", path=f"files/1/{index}/a", size=1, sha256="")
        keyed = KeyedSnapshot(
            uid=TOTAL,
            backend="memory",
            first_key_group=groups[0],
            last_key_group=groups[-1],
            files=(file,),
            schemas={"total": ["int"]} if schemas is None else schemas,
        )
        part = SubtaskSnapshot(
            vertex=VertexId("v"), index=SubtaskIndex(index), keyed=(keyed,), splits=splits[index]
        )
        parts.append(part)
    return Manifest(
        job=JobName("job"),
        checkpoint=CheckpointId(Attempt(1), 1),
        submission_id="s1",
        created_ms=0,
        final=False,
        kafka_cluster="c",
        fingerprint="f",
        plan=state_metadata,
        subtasks=tuple(parts),
    )


def now(partitions: int = 3, *, source: Uid = ORDERS, **changes: Any) -> list[PartitionOffsets]:
    return [
        PartitionOffsets(
            source=source,
            topic="orders",
            partition=p,
            start=changes.get("start", 5),
            earliest=changes.get("earliest", 2),
            end=changes.get("end"),
        )
        for p in range(partitions)
    ]


@given(st.integers(1, 40), st.integers(1, 40), st.integers(40, 200), st.integers(1, 20))
def test_every_key_group_and_every_split_has_exactly_one_owner(
    old: int, new: int, groups: int, partitions: int
) -> None:
    manifest = checkpoint(plan(old, groups), partitions)
    restore_plan = restore(manifest, plan(new, groups), now(partitions), submission_id="s1")
    covered: list[int] = []
    for ordinal, keyed in enumerate(restore_plan.keyed):
        mine = key_group_range(SubtaskIndex(ordinal), new, groups)
        theirs = [
            range(max(part.first_key_group, mine.start), min(part.last_key_group + 1, mine.stop))
            for part in keyed[TOTAL]
        ]
        assert all(theirs), "no snapshot is fetched for nothing"
        covered += [group for part in theirs for group in part]
    assert sorted(covered) == list(range(groups))
    splits = [split for part in restore_plan.splits for split in part]
    assert sorted((s.partition, s.offset) for s in splits) == [
        (p, 100 + p) for p in range(partitions)
    ]
    assert len(restore_plan.splits) == len(restore_plan.keyed) == new


def test_slot_of_a_split_is_deterministic_and_splits_are_spread_evenly() -> None:
    assert [slot_of_split("orders", p, 4) for p in range(5)] == [2, 3, 0, 1, 2]
    assert [slot_of_split("clicks", p, 4) for p in range(2)] == [1, 2]


def test_a_restoration_says_which_sources_have_no_position_in_the_checkpoint() -> None:
    both = plan(sources=(*plan().sources, SourceMetadata(uid=Uid("clicks"), topic="orders")))
    partitions = [*now(3), *now(3, source=Uid("clicks"))]
    assert restore(None, both, partitions).sources_without_position == {ORDERS, "clicks"}
    assert restore(checkpoint(plan()), both, partitions).sources_without_position == {"clicks"}
    assert restore(checkpoint(plan()), plan(), now(4)).sources_without_position == set(), (
        "a new partition"
    )


def test_start_without_a_checkpoint_begins_at_the_start_offsets_of_the_sources() -> None:
    restore_plan = restore(None, plan(), now())
    assert restore_plan.keyed == ({}, {})
    assert {split.offset for part in restore_plan.splits for split in part} == {5}
    assert restore_plan.new_partitions == ()


def test_a_new_partition_begins_at_its_earliest_offset() -> None:
    restore_plan = restore(checkpoint(plan()), plan(), now(4))
    offsets = {s.partition: s.offset for part in restore_plan.splits for s in part}
    assert offsets == {0: 100, 1: 101, 2: 102, 3: 2}
    assert [found.partition for found in restore_plan.new_partitions] == [3]


def test_new_source_begins_at_its_own_start_offset() -> None:
    clicks = Uid("clicks")
    state_metadata = plan(
        sources=(
            SourceMetadata(uid=ORDERS, topic="orders"),
            SourceMetadata(uid=clicks, topic="orders"),
        )
    )
    restore_plan = restore(checkpoint(plan()), state_metadata, [*now(), *now(1, source=clicks)])
    offsets = {(s.source, s.partition): s.offset for part in restore_plan.splits for s in part}
    assert offsets[clicks, 0] == 5


def test_restored_run_keeps_its_end_offsets_and_a_new_submission_has_new_ones() -> None:
    manifest = checkpoint(plan(), end_offset=150)

    def ends(submission_id: str, end: int | None) -> set[int | None]:
        restore_plan = restore(manifest, plan(), now(end=end), submission_id=submission_id)
        return {split.end_offset for part in restore_plan.splits for split in part}

    assert ends("s1", 900) == {150}
    assert ends("s2", 900) == {900}
    assert ends("s2", None) == {None}


def test_checkpoint_of_a_drained_run_is_refused_by_every_other_run() -> None:
    manifest = checkpoint(plan())
    first, *rest = manifest.subtasks
    drained = msgspec.structs.replace(
        manifest, subtasks=(msgspec.structs.replace(first, drained=True), *rest)
    )
    with pytest.raises(RefusedError, match="was taken when the job drained") as caught:
        restore(drained, plan(), now(), submission_id="another")
    assert "--no-drain" in str(caught.value)
    restore(drained, plan(), now(), submission_id=drained.submission_id)
    restore(manifest, plan(), now(), submission_id="another")


@pytest.mark.parametrize(
    ("end_offset", "drained", "over"),
    [(None, True, True), (None, False, False), (101, True, True), (100, True, False)],
)
def test_sources_of_a_stopped_drain_read_no_further_and_bounded_ones_read_to_their_ends(
    end_offset: int | None, drained: bool, over: bool
) -> None:
    manifest = checkpoint(plan())
    splits = [
        msgspec.structs.replace(split, offset=100, end_offset=end_offset)
        for split in manifest.splits
    ]
    first, *rest = (msgspec.structs.replace(part, splits=()) for part in manifest.subtasks)
    first = msgspec.structs.replace(first, splits=tuple(splits), drained=drained)
    taken = msgspec.structs.replace(manifest, subtasks=(first, *rest))
    assert restore(taken, plan(), now(end=200), submission_id="s1").input_over is over


def test_new_step_begins_without_state() -> None:
    state_metadata = plan(steps=(*plan().steps, StepMetadata(uid=Uid("added"), key_type="int")))
    assert list(restore(checkpoint(plan()), state_metadata, now()).keyed[0]) == [TOTAL]


# --- refusals -----------------------------------------------------------------------------------


def refusal(
    state_metadata: StateMetadata, partitions: list[PartitionOffsets] | None = None, **more: Any
) -> str:
    with pytest.raises(RefusedError) as caught:
        restore(
            checkpoint(plan()), state_metadata, now() if partitions is None else partitions, **more
        )
    return str(caught.value)


def test_another_number_of_key_groups_is_refused() -> None:
    said = refusal(plan(max_parallelism=256))
    assert "max_parallelism is 256" in said
    assert "Set job.max_parallelism to 128" in said


def test_without_keyed_state_the_number_of_key_groups_may_change() -> None:
    stateless = plan(steps=())
    manifest = msgspec.structs.replace(
        checkpoint(plan()), plan=stateless, subtasks=checkpoint(stateless).subtasks
    )
    restore(manifest, plan(steps=(), max_parallelism=256), now())


def test_state_without_a_step_is_refused() -> None:
    renamed = plan(steps=(StepMetadata(uid=Uid("sum"), key_type="str"),))
    said = refusal(renamed)
    assert "state of a step 'total'" in said
    assert "its keyed steps are: sum" in said
    assert "--restore none" in said


def test_another_key_type_is_refused() -> None:
    said = refusal(plan(steps=(StepMetadata(uid=TOTAL, key_type="int"),)))
    assert "is keyed by int, but its state was written with keys of type str" in said


def test_state_schema_that_conflicts_by_the_schema_rules_is_refused() -> None:
    changed = plan(steps=(StepMetadata(uid=TOTAL, key_type="str", states={"total": "string"}),))

    def conflict(old: str, new: str) -> str | None:
        return None if old == new else f"field x: {old} is no {new}"

    rules = SchemaRules(conflict=conflict)
    assert "state 'total'" in refusal(changed, schemas=rules)
    restore(checkpoint(plan()), plan(), now(), schemas=rules)
    added = plan(
        steps=(StepMetadata(uid=TOTAL, key_type="str", states={"total": "int", "new": "string"}),)
    )
    restore(checkpoint(plan()), added, now(), schemas=rules)


def test_every_schema_that_values_may_be_stored_under_must_be_readable() -> None:
    """Values of version 1 stay as they are until their key comes again, also under version 3."""

    def conflict(old: str, new: str) -> str | None:
        return f"{old} is no {new}" if (old, new) == ("v1", "v3") else None

    third = plan(steps=(StepMetadata(uid=TOTAL, key_type="str", states={"total": "v3"}),))
    rules = SchemaRules(conflict=conflict)
    restore(checkpoint(plan(), schemas={"total": ["v2"]}), third, now(), schemas=rules)
    with pytest.raises(RefusedError, match=r"state 'total' in the checkpoint.*v1 is no v3"):
        restore(checkpoint(plan(), schemas={"total": ["v1", "v2"]}), third, now(), schemas=rules)


def test_a_key_class_whose_fields_changed_is_refused_before_anything_is_deployed() -> None:
    now_keyed = StepMetadata(uid=TOTAL, key_type="str", states={"total": "int"}, key_schema="b")
    manifest = checkpoint(plan(), schemas={KEY_TYPE: ["a"], "total": ["int"]})
    rules = SchemaRules(same_keys=lambda old, new: old == new)
    with pytest.raises(RefusedError, match="the fields of this type have changed"):
        restore(manifest, plan(steps=(now_keyed,)), now(), schemas=rules)
    same = msgspec.structs.replace(now_keyed, key_schema="a")
    restore(manifest, plan(steps=(same,)), now(), schemas=rules)


def test_a_source_that_reads_another_topic_is_refused() -> None:
    said = refusal(plan(sources=(SourceMetadata(uid=ORDERS, topic="orders-2"),)))
    assert "reads topic 'orders-2', but the checkpoint has its position in topic 'orders'" in said


def test_removed_source_with_a_position_in_the_checkpoint_is_refused() -> None:
    gone = plan(sources=())
    assert "the position of a source 'orders'" in refusal(gone, [])


def test_a_topic_with_fewer_partitions_is_refused() -> None:
    old = checkpoint(plan(), topic_id="id-a")
    fewer = [dataclasses.replace(offsets, topic_id="id-a") for offsets in now(2)]
    with pytest.raises(SourceChangedError) as refused:
        restore(old, plan(), fewer)
    assert "partition 2 of topic 'orders' (topic id id-a) is offset 102" in str(refused.value)
    assert "has now with id id-a has no partition 2" in str(refused.value)


def changed(old: Manifest, *, submission_id: str = "s2", **changes: Any) -> str:
    """The refusal of a restore whose partitions have offsets 50 to 200, except for `changes`."""
    on_other_cluster = changes.pop("on_other_cluster", False)
    offsets = [
        dataclasses.replace(each, **{"latest": 200, "topic_id": "id-a", **changes})
        for each in now(earliest=50)
    ]
    try:
        found = restore(
            old, plan(), offsets, submission_id=submission_id, on_other_cluster=on_other_cluster
        )
    except SourceChangedError as error:
        return str(error)
    splits = [split for part in found.splits for split in part]
    assert {split.topic_id for split in splits} == {offsets[0].topic_id}
    return ""


def test_a_topic_that_was_created_again_is_refused_with_both_ids_and_offsets() -> None:
    assert SourceChangedError.retry is Retry.NO, "no restart brings the old topic back"
    old = checkpoint(plan(), topic_id="id-a")
    said = changed(old, topic_id="id-b")
    assert "partition 0 of topic 'orders' (topic id id-a) is offset 100" in said
    assert "with id id-b, in which partition 0 begins at offset 50 and ends at offset 200" in said
    assert "--restore none" in said
    assert "id-b" in changed(old, topic_id="id-b", latest=60), "stopped and shorter"
    assert "id-b" in changed(
        checkpoint(plan(), topic_id="id-a", end_offset=100), topic_id="id-b", submission_id="s1"
    ), "also where this run has read it to its end"
    assert changed(old) == ""


@pytest.mark.parametrize(("stored", "now_has"), [("", "id-a"), ("id-a", ""), ("", "")])
def test_unknown_topic_id_does_not_refuse_a_restore(stored: str, now_has: str) -> None:
    """Checkpoints of earlier versions have none, and some brokers have none."""
    assert changed(checkpoint(plan(), topic_id=stored), topic_id=now_has) == ""


def test_position_beyond_the_end_of_the_partition_is_refused() -> None:
    """Bounded runs are refused too: without the refusal they would end at once, with 0 records."""
    for end in (None, 60):
        said = changed(checkpoint(plan(), topic_id="id-a"), latest=60, end=end)
        assert "is offset 100, but the partition begins at offset 50 and ends at offset 60" in said
        assert "40 offsets before the position" in said
    assert changed(checkpoint(plan(), topic_id="id-a"), latest=102) == ""


def test_partition_that_a_bounded_run_has_read_to_its_end_may_be_shorter() -> None:
    done = checkpoint(plan(), topic_id="id-a", end_offset=100)
    assert changed(done, latest=60, submission_id="s1") == ""


def test_a_log_that_was_truncated_and_has_grown_again_is_refused() -> None:
    old = checkpoint(plan(), topic_id="id-a", leader_epoch=3)
    said = changed(old, epoch_end=99)
    assert "in leader epoch 3, but the log of that epoch ends at offset 99" in said
    assert "unclean leader election" in said
    assert "leader does not know that epoch" in changed(old, epoch_end=-1)
    assert changed(old, epoch_end=102) == changed(old, epoch_end=None) == ""


def test_topic_ids_and_epochs_are_ignored_on_another_cluster_and_ends_are_checked() -> None:
    old = checkpoint(plan(), topic_id="id-a", leader_epoch=3)
    assert changed(old, topic_id="id-b", epoch_end=1, on_other_cluster=True) == ""
    assert "ends at offset 60" in changed(old, topic_id="id-b", latest=60, on_other_cluster=True)


def test_restored_splits_keep_their_leader_epoch_except_on_another_cluster() -> None:
    old = checkpoint(plan(), leader_epoch=3)
    for other, epoch in ((False, 3), (True, -1)):
        found = restore(old, plan(), now(), on_other_cluster=other)
        assert {split.leader_epoch for part in found.splits for split in part} == {epoch}


@pytest.mark.parametrize("kind", ["earliest", "latest", "timestamp"])
def test_resolved_start_offset_beyond_the_end_of_the_log_is_a_changed_source(
    kind: StartKind,
) -> None:
    offsets = [dataclasses.replace(each, latest=4, start_kind=kind) for each in now(start=5)]
    with pytest.raises(SourceChangedError, match=r"is offset 5, but .* ends at offset 4"):
        restore(None, plan(), offsets)


def test_position_whose_records_retention_has_deleted_is_refused() -> None:
    said = refusal(plan(), now(earliest=101))
    assert "partition 0 was read up to offset 100, but Kafka has deleted everything" in said


def test_refusal_of_deleted_records_says_that_only_markers_may_be_missing() -> None:
    said = refusal(plan(), now(earliest=101))
    assert "nothing but the markers" in said
    assert "the state is dropped" in said


def test_split_that_this_run_has_read_to_its_end_may_be_deleted_from_the_log() -> None:
    done = checkpoint(plan(), end_offset=100)
    found = restore(done, plan(), now(earliest=500, end=900), submission_id="s1")
    assert {split.offset for part in found.splits for split in part} == {100, 101, 102}
    with pytest.raises(RefusedError, match="Kafka has deleted everything"):
        restore(done, plan(), now(earliest=500, end=900), submission_id="another run reads on")
    half = checkpoint(plan(), end_offset=101)
    with pytest.raises(RefusedError, match="partition 0 was read up to offset 100"):
        restore(half, plan(), now(earliest=500, end=900), submission_id="s1")


def test_checkpoint_that_does_not_cover_every_key_group_once_is_corrupt() -> None:
    manifest = checkpoint(plan(3))
    for subtasks in (manifest.subtasks[:2], manifest.subtasks[1:], manifest.subtasks[::2]):
        broken = msgspec.structs.replace(manifest, subtasks=subtasks)
        partitions = [found for found in now() if found.partition in _partitions(broken)]
        with pytest.raises(CorruptCheckpointError, match="does not cover its 128 key groups"):
            restore(broken, plan(), partitions)
    twice = msgspec.structs.replace(
        manifest, subtasks=(*manifest.subtasks, checkpoint(plan(1), 0).subtasks[0])
    )
    with pytest.raises(CorruptCheckpointError, match="once each"):
        restore(twice, plan(), now())


def _partitions(manifest: Manifest) -> set[int]:
    return {split.partition for split in manifest.splits}


def test_start_offset_that_was_not_resolved_is_a_bug() -> None:
    with pytest.raises(InternalError, match="was not resolved"):
        restore(None, plan(), now(start=-2))


@pytest.mark.parametrize(("start", "fits"), [(1, False), (2, True), (9, True), (10, False)])
def test_given_start_offset_must_be_in_the_log_if_there_is_no_checkpoint(
    start: int, fits: bool
) -> None:
    given = [
        dataclasses.replace(offsets, latest=9, start_kind="offset") for offsets in now(start=start)
    ]
    if fits:
        found = restore(None, plan(), given, submission_id="s1")
        assert {split.offset for splits in found.splits for split in splits} == {start}
    else:
        with pytest.raises(RefusedError, match="begins at 2 and ends at 9"):
            restore(None, plan(), given, submission_id="s1")
    # With a checkpoint it is not used, wherever the log begins by now.
    longer = [dataclasses.replace(offsets, latest=200) for offsets in given]
    assert restore(checkpoint(plan()), plan(), longer, submission_id="s1").splits


def test_restored_splits_keep_their_watermark_and_idleness() -> None:
    old = checkpoint(plan(), watermark_ms=7, idle=True)
    found = restore(old, plan(), now())
    assert {(s.watermark_ms, s.idle) for part in found.splits for s in part} == {(7, True)}


@pytest.mark.parametrize(
    ("split", "end", "hidden", "idle"),
    [
        ({}, 102, 0, True),
        ({"watermark_ms": 7}, 102, 0, False),
        ({"watermark_ms": 7, "idle": True}, 102, 0, True),
        ({"idle": True}, 103, 0, False),
        ({"idle": True}, 102, 1, False),
        ({}, None, 0, False),
    ],
    ids=[
        "never had a record",
        "has a watermark",
        "was idle",
        "was idle and has records",
        "records in an open transaction",
        "no end",
    ],
)
def test_partition_of_a_bounded_run_is_idle_if_its_end_is_read_and_it_was_idle_or_had_no_record(
    split: dict[str, Any], end: int | None, hidden: int, *, idle: bool
) -> None:
    offsets = [dataclasses.replace(each, end=end, hidden=hidden) for each in now()]
    found = restore(checkpoint(plan(), **split), plan(), offsets)
    assert [s.idle for part in found.splits for s in part if s.partition == 2] == [idle]


def test_open_transaction_behind_the_end_of_a_run_wakes_no_idle_partition_at_a_restart() -> None:
    old = checkpoint(plan(), idle=True)
    ended = msgspec.structs.replace(
        old,
        submission_id="s1",
        subtasks=tuple(
            msgspec.structs.replace(
                part,
                splits=tuple(
                    msgspec.structs.replace(each, end_offset=each.offset) for each in part.splits
                ),
            )
            for part in old.subtasks
        ),
    )
    offsets = [dataclasses.replace(each, end=500, hidden=3) for each in now()]
    for submission, idle in (("s1", True), ("s2", False)):
        found = restore(ended, plan(), offsets, submission_id=submission)
        assert {split.idle for part in found.splits for split in part} == {idle}


def test_empty_partition_of_a_bounded_run_is_idle_from_the_first_start() -> None:
    for end, idle in ((5, True), (6, False)):
        found = restore(None, plan(), now(end=end))
        assert {s.idle for part in found.splits for s in part} == {idle}


@pytest.mark.parametrize(
    ("subtasks", "floor"),
    [
        (((10, False), (7, False)), 7),
        (((10, False), (None, False)), None),
        (((10, False), (7, True), (None, True)), 10),
        (((10, True), (7, True), (None, True)), 10),
        (((None, True),), None),
    ],
)
def test_step_continues_from_the_watermark_that_the_steps_behind_had(
    subtasks: tuple[tuple[int | None, bool], ...], floor: int | None
) -> None:
    parts = [
        SubtaskSnapshot(
            vertex=VertexId("v"),
            index=SubtaskIndex(index),
            watermarks=(StepWatermark(uid=Uid("stamp"), watermark_ms=watermark_ms, idle=idle),),
        )
        for index, (watermark_ms, idle) in enumerate(subtasks)
    ]
    old = checkpoint(plan())
    found = restore(msgspec.structs.replace(old, subtasks=(*old.subtasks, *parts)), plan(), now())
    assert found.watermarks == ({} if floor is None else {"stamp": floor})
