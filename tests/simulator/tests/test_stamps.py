"""`with_timestamps` in the simulator: what a seed draws, and what the checker accepts."""

from __future__ import annotations

from random import Random

import msgspec
import pytest

from tests.simulator.calendar_plan import with_local_days
from tests.simulator.event_time_plan import with_event_time
from tests.simulator.oracle import Oracle
from tests.simulator.pipelines import IN_A, OUT_B
from tests.simulator.plan import Plan
from tests.simulator.result_groups import Violation
from tests.simulator.run import plan_of, run_seed
from tests.simulator.stamp_model import Stamp, check_stamps, combined_ms, stamps_of
from tests.simulator.stamped_pipelines import STAMPED, WINDOWED_STAMPED
from tests.simulator.tests.test_event_time import PLANS, event_time_of
from tests.simulator.tests.test_timed_results import DELAY_MS
from tests.simulator.timed_model import Sources
from tests.simulator.timed_pipelines import (
    REJECTED,
    STAMP,
    UNTIMED_MS,
    Entry,
    EventTime,
    TimedEvent,
    Watched,
    has_time,
)
from tests.simulator.timed_results import TimedResults
from tests.simulator.window_pipelines import Windowed
from tests.simulator.window_plan import with_more_windows
from tidegate.ids import SubtaskIndex, Uid, VertexId
from tidegate.protocol.subtask_snapshot import SourceSplit, StepWatermark, SubtaskSnapshot
from tidegate.stream_elements import MIN_MS, TopicPartition

FIRST, SECOND = (TopicPartition(IN_A, number) for number in range(2))
STAMPED_PLANS = [plan for plan in PLANS if event_time_of(plan).stamped]
EVENT_TIME = EventTime(
    delay_ms=DELAY_MS,
    idle_after_ms=None,
    alarms=False,
    drains=True,
    partitions=((IN_A, 0), (IN_A, 1)),
    limits={},
    stamped=True,
)


def untimed(plan: Plan) -> float:
    """The share of the records without a usable time."""
    return sum(not has_time(each.event) for each in plan.inputs) / len(plan.inputs)


def test_some_plans_have_stamps_and_records_without_a_usable_time() -> None:
    shapes = (STAMPED, WINDOWED_STAMPED)
    assert {plan.shape.pipeline for plan in STAMPED_PLANS} == {each.pipeline for each in shapes}
    assert 8 < len(STAMPED_PLANS) < 40
    assert any(untimed(plan) > 0.1 for plan in STAMPED_PLANS)
    assert any(not untimed(plan) for plan in STAMPED_PLANS)
    for plan in PLANS:
        if event_time_of(plan).stamped:
            assert plan.job_runs[-1].ends in {"bounded", "drain"}
            assert event_time_of(plan).drains
            assert OUT_B in plan.partitions
        else:
            assert not untimed(plan)


def test_stamps_draw_from_a_stream_of_their_own_and_only_for_some_shapes() -> None:
    shapes = {Watched: STAMPED, Windowed: WINDOWED_STAMPED}
    for seed, after in enumerate(PLANS[:80]):
        before = with_event_time(plan_of(seed), Random(f"{seed}/event time"))
        before = with_more_windows(before, Random(f"{seed}/windows"))
        before = with_local_days(before, Random(f"{seed}/local days"))
        if event_time_of(after).stamped:
            assert after.shape is shapes[before.shape.pipeline]
            assert [each.at_s for each in after.inputs] == [each.at_s for each in before.inputs]
            assert after.settings == before.settings
        else:
            assert after == before


def test_plan_that_ends_with_a_backfill_has_no_stamps() -> None:
    for seed in range(120):
        plan = plan_of(seed, backfills=True, event_time=True)
        if plan.job_runs[-1].wave_offsets is not None:
            assert not event_time_of(plan).stamped


@pytest.mark.parametrize("shape", [STAMPED, WINDOWED_STAMPED])
def test_runs_with_stamps_are_exact_and_drain(shape: object) -> None:
    seeds = [seed for seed, plan in enumerate(PLANS) if plan.shape is shape][:3]
    outcomes = [run_seed(seed, event_time=True) for seed in seeds]
    for seed, outcome in zip(seeds, outcomes, strict=True):
        assert outcome.violation is None, (
            f"python -m tests.simulator --event-time --seed {seed}: {outcome.violation}"
        )
    assert sum(outcome.fired for outcome in outcomes)


def sources(*times: tuple[TopicPartition, int]) -> Sources:
    """Records of key "k" in these partitions, with these event times."""
    found = Sources(EVENT_TIME)
    for place, at_ms in times:
        offset = len(found.partitions[place].offsets)
        name = f"{place.topic}-{place.partition}:{offset}"
        found.add(place, TimedEvent(name, "k", 1, at_ms), offset)
    return found


def stamp(watermark_ms: int, *, idle: bool = False, **offsets: int) -> Stamp:
    places = {"first": FIRST, "second": SECOND}
    read = {places[name]: offset for name, offset in offsets.items()}
    return Stamp("subtask 0", watermark_ms, idle, read)


def test_checker_knows_the_watermark_of_each_subtask_from_its_records() -> None:
    known = sources((FIRST, 100), (FIRST, 300), (FIRST, 200), (SECOND, 150))
    ahead, behind = stamp(289, first=2), stamp(139, second=1)
    check_stamps([ahead, behind], [], known)
    with pytest.raises(Violation, match="the watermark 150 of stamp, subtask 0, where 139 follows"):
        check_stamps([ahead, stamp(150, second=1)], [], known)
    with pytest.raises(Violation, match=f"where {MIN_MS} follows"):
        check_stamps([stamp(89, first=0)], [], known)


def test_subtasks_continue_from_the_least_watermark_and_their_own_records() -> None:
    known = sources((FIRST, 300), (FIRST, 200), (SECOND, 150), (SECOND, 120))
    base = [stamp(289, first=1), stamp(139, second=1)]
    check_stamps([stamp(189, first=2), stamp(139, second=2)], base, known)
    with pytest.raises(Violation, match="where 189 follows"):
        check_stamps([stamp(289, first=2)], base, known)
    with pytest.raises(Violation, match="where 139 follows"):
        check_stamps([stamp(MIN_MS, second=2)], base, known)


def test_idle_subtask_does_not_hold_back_a_restore_unless_all_are_idle() -> None:
    assert combined_ms([stamp(289), stamp(139, idle=True)]) == 289
    assert combined_ms([stamp(289, idle=True), stamp(139, idle=True)]) == 289
    assert combined_ms([stamp(289), stamp(139)]) == 139
    assert combined_ms([]) == MIN_MS


def test_stamps_of_a_checkpoint_are_those_of_the_step() -> None:
    split = SourceSplit(source=Uid("events"), topic=IN_A, partition=1, offset=7)
    marks = (
        StepWatermark(uid=Uid(STAMP), watermark_ms=5, idle=True),
        StepWatermark(uid=Uid("another")),
    )
    part = SubtaskSnapshot(
        vertex=VertexId("v"), index=SubtaskIndex(2), splits=(split,), watermarks=marks
    )
    assert stamps_of([part]) == (Stamp("subtask 2", 5, True, {SECOND: 7}),)


def test_one_partition_alone_brings_a_watermark_and_it_may_go_behind_an_older_one() -> None:
    known = sources((FIRST, 300), (FIRST, 200))
    assert not known.why_not(289, "k", {FIRST: 1})
    assert not known.why_not(189, "k", {FIRST: 2}), "another attempt has read 300"
    assert known.why_not(190, "k", {FIRST: 2}) == "no record has this watermark"
    assert "has overtaken records" in known.why_not(289, "k", {})


def test_records_without_a_usable_time_belong_to_no_log_and_nothing_is_sure_before_the_drain() -> (
    None
):
    checker = TimedResults(EVENT_TIME)
    event = TimedEvent(f"{IN_A}-0:0", "k", 1, UNTIMED_MS)
    checker.expect(FIRST, event, 0)
    entry = Entry(event.name, "k", 1, "k", kind=REJECTED)
    assert checker.judge(entry, "out") == 0
    assert checker.missing() == 0
    checker.complete()


def test_oracle_expects_a_record_without_a_usable_time_in_the_sink_of_the_rejected() -> None:
    oracle = Oracle(STAMPED, EVENT_TIME)
    event = TimedEvent(f"{IN_A}-0:0", "k", 1, 100)
    oracle.expect(FIRST, event, 0)
    oracle.expect(FIRST, msgspec.structs.replace(event, name=f"{IN_A}-0:1", at_ms=UNTIMED_MS), 1)
    assert oracle.missing == 2
    with pytest.raises(Violation, match=r"2 results are missing .* in-a-0:0"):
        oracle.complete()
    untimed_event = msgspec.structs.replace(event, at_ms=UNTIMED_MS)
    for shape in (STAMPED, WINDOWED_STAMPED):
        assert shape.sinks[OUT_B](event) == ()
        assert shape.sinks[OUT_B](untimed_event) == (event.name,)
