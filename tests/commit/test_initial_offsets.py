"""The offsets at which a submission begins: the first ones that are recorded count."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import msgspec
import pytest

from tests.commit.quiet import ProcedureRunner
from tests.commit.world import JOB, RETRY_POLICY
from tidegate.checkpoint.envelope import decode_file, encode_file
from tidegate.checkpoint.partition_offsets import PartitionOffsets, StartKind
from tidegate.checkpoint.restore import restore
from tidegate.checkpoint.state_metadata import StateMetadata
from tidegate.commit import effects
from tidegate.commit.effects import Effect
from tidegate.commit.initial_offsets import (
    initial_offsets_path,
    read_initial_offsets,
    record_initial_offsets,
)
from tidegate.errors import (
    CorruptCheckpointError,
    RefusedError,
    SourceChangedError,
    StorageError,
)
from tidegate.ids import Uid
from tidegate.ports.blobs import CreateResult

PATH = initial_offsets_path(JOB, "s1")
ONE_SLOT = StateMetadata(parallelism=1, max_parallelism=128)


@pytest.fixture
def quiet() -> ProcedureRunner:
    return ProcedureRunner()


def descriptions(
    start: int,
    *,
    earliest: int = 0,
    end: int | None = None,
    at: int = 0,
    kind: StartKind = "latest",
) -> PartitionOffsets:
    return PartitionOffsets(
        source=Uid("in"),
        topic="t",
        partition=at,
        start=start,
        earliest=earliest,
        end=end,
        start_kind=kind,
    )


def fixed(
    quiet: ProcedureRunner, *found: PartitionOffsets, submission_id: str = "s1"
) -> list[PartitionOffsets]:
    return list(
        quiet.run(record_initial_offsets(JOB, submission_id, found, retry_policy=RETRY_POLICY))
    )


def test_restart_keeps_the_latest_and_end_offsets_of_the_first_attempt(
    quiet: ProcedureRunner,
) -> None:
    assert fixed(quiet, descriptions(100, end=150))[0].start == 100
    (again,) = fixed(quiet, descriptions(170, end=180))
    assert (again.start, again.end) == (100, 150), "or 100 to 169 would never be read"
    ((split,),) = restore(None, ONE_SLOT, [again]).splits
    assert (split.offset, split.end_offset) == (100, 150)


def test_new_submission_records_its_own_initial_offsets(quiet: ProcedureRunner) -> None:
    fixed(quiet, descriptions(100))
    assert fixed(quiet, descriptions(170), submission_id="s2")[0].start == 170


def test_a_source_that_begins_at_the_latest_offset_reads_all_of_a_partition_added_later(
    quiet: ProcedureRunner,
) -> None:
    fixed(quiet, descriptions(100))
    added = descriptions(7, earliest=2, at=1)
    assert fixed(quiet, descriptions(170), added)[1].start == 2


@pytest.mark.parametrize("kind", ["earliest", "timestamp", "group", "offset"])
def test_source_not_at_latest_begins_in_an_added_partition_at_its_own_start(
    quiet: ProcedureRunner, kind: StartKind
) -> None:
    fixed(quiet, descriptions(100, kind=kind))
    added = descriptions(7, earliest=2, at=1, kind=kind)
    assert fixed(quiet, descriptions(170, kind=kind), added)[1] == added


def test_earliest_start_moves_with_the_log_start(quiet: ProcedureRunner) -> None:
    fixed(quiet, descriptions(0, kind="earliest"))
    (oldest,) = fixed(quiet, descriptions(20, earliest=20, kind="earliest"))
    ((split,),) = restore(None, ONE_SLOT, [oldest]).splits
    assert split.offset == 20


@pytest.mark.parametrize("kind", ["latest", "timestamp"])
@pytest.mark.parametrize("now", [200, 300])
def test_a_fixed_start_that_retention_has_overtaken_is_refused_with_both_offsets(
    quiet: ProcedureRunner, kind: StartKind, now: int
) -> None:
    """Also where the log is empty, so that the start of today is the earliest offset."""
    fixed(quiet, descriptions(100, kind=kind))
    found = fixed(quiet, descriptions(now, earliest=200, kind=kind))
    with pytest.raises(RefusedError, match=r"offset 100 of .* before offset 200, .*100 to 199"):
        restore(None, ONE_SLOT, found)


def test_an_offset_of_the_group_that_retention_has_overtaken_is_refused(
    quiet: ProcedureRunner,
) -> None:
    """The group's offset may have expired since, so that the start of today is the earliest."""
    fixed(quiet, descriptions(100, kind="group"))
    found = fixed(quiet, replace(descriptions(200, earliest=200, kind="earliest"), latest=300))
    with pytest.raises(RefusedError, match=r"offset 100 of .* begins at 200 and ends at 300"):
        restore(None, ONE_SLOT, found)


def test_initial_offsets_file_without_start_kind_takes_the_kind_of_the_source(
    quiet: ProcedureRunner,
) -> None:
    fixed(quiet, descriptions(100), descriptions(100, at=1))
    stored = decode_file(quiet.world.store.objects[PATH], what="the file")
    kinds_left_out = re.sub(rb',"start_kind":"latest"', b"", stored)
    assert b"start_kind" not in kinds_left_out != stored
    quiet.world.store.objects[PATH] = encode_file(msgspec.json.decode(kinds_left_out))
    oldest = descriptions(200, earliest=200, kind="earliest")
    latest = descriptions(200, earliest=200, at=1)
    found = fixed(quiet, oldest, latest)
    assert [each.start for each in found] == [200, 100]


def test_given_start_offset_beyond_the_log_end_is_refused_on_every_attempt(
    quiet: ProcedureRunner,
) -> None:
    beyond = replace(descriptions(900, kind="offset"), latest=500)
    for _ in range(2):
        with pytest.raises(RefusedError, match="ends at 500"):
            restore(None, ONE_SLOT, fixed(quiet, beyond))


def test_concurrent_process_uses_the_initial_offsets_that_were_recorded_first(
    quiet: ProcedureRunner,
) -> None:
    def other_was_first(effect: Effect) -> Any:
        if isinstance(effect, effects.CreateEntry):
            fixed(quiet, descriptions(100))
        return NotImplemented

    procedure = record_initial_offsets(JOB, "s1", [descriptions(170)], retry_policy=RETRY_POLICY)
    assert quiet.run(procedure, other_was_first)[0].start == 100


def test_create_with_unknown_result_is_retried_until_the_retry_timeout(
    quiet: ProcedureRunner,
) -> None:
    answers = [CreateResult.UNKNOWN]

    def once(effect: Effect) -> Any:
        unknown = isinstance(effect, effects.CreateEntry) and answers
        return answers.pop() if unknown else NotImplemented

    procedure = record_initial_offsets(JOB, "s1", [descriptions(100)], retry_policy=RETRY_POLICY)
    assert quiet.run(procedure, once)[0].start == 100

    def never(effect: Effect) -> Any:
        return CreateResult.UNKNOWN if isinstance(effect, effects.CreateEntry) else NotImplemented

    with pytest.raises(StorageError, match="did not say"):
        quiet.run(
            record_initial_offsets(JOB, "s2", [descriptions(1)], retry_policy=RETRY_POLICY), never
        )


def test_torn_initial_offsets_file_is_reported_with_its_path_and_the_remedy(
    quiet: ProcedureRunner,
) -> None:
    fixed(quiet, descriptions(100))
    quiet.world.store.objects[PATH] = quiet.world.store.objects[PATH][:-20]
    with pytest.raises(CorruptCheckpointError, match=r"beginnings/s1\.json .*Remove it"):
        fixed(quiet, descriptions(170))


def test_recreated_source_topic_is_reported_with_both_topic_ids(
    quiet: ProcedureRunner,
) -> None:
    fixed(quiet, replace(descriptions(100), topic_id="id-a"))
    assert fixed(quiet, replace(descriptions(100), topic_id="id-a"))
    with pytest.raises(SourceChangedError, match=r"topic id id-a\) is offset 100.*with id id-b"):
        fixed(quiet, replace(descriptions(300), topic_id="id-b"))


def test_missing_partition_with_recorded_offsets_is_reported(quiet: ProcedureRunner) -> None:
    fixed(quiet, descriptions(100), descriptions(200, at=1))
    with pytest.raises(SourceChangedError, match=r"partition 1 of topic 't' is offset 200"):
        fixed(quiet, descriptions(100))


def test_recorded_initial_offsets_can_be_read_as_splits(quiet: ProcedureRunner) -> None:
    assert quiet.run(read_initial_offsets(JOB, "s1")) == ()
    fixed(quiet, replace(descriptions(100), topic_id="id-a"))
    (split,) = quiet.run(read_initial_offsets(JOB, "s1"))
    assert (split.topic, split.partition, split.offset, split.topic_id) == ("t", 0, 100, "id-a")
