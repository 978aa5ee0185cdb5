"""The checker of event time, given logs that are wrong: it must name each, and no right one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec
import pytest

from tests.simulator.pipelines import IN_A
from tests.simulator.result_groups import Violation
from tests.simulator.timed_pipelines import (
    ALARM,
    CANCELED,
    CANCELS,
    DEADLINE,
    REPEAT_MS,
    SILENCE,
    Entry,
    EventTime,
    TimedEvent,
    TimerChange,
)
from tests.simulator.timed_results import TimedResults
from tidegate.checkpoint.manifest import Manifest
from tidegate.checkpoint.state_metadata import StateMetadata
from tidegate.ids import Attempt, CheckpointId, JobName, SubtaskIndex, Uid, VertexId
from tidegate.protocol.subtask_snapshot import KeyedSnapshot, SourceSplit, SubtaskSnapshot
from tidegate.stream_elements import MAX_MS, MIN_MS, TopicPartition

DELAY_MS = 10
JOB = JobName("watched")


def silence(at_ms: int | None) -> TimerChange:
    return TimerChange(SILENCE, "", at_ms)


def deadline(name: str, at_ms: int | None) -> TimerChange:
    return TimerChange(DEADLINE, name, at_ms)


@dataclass
class Log:
    """The records of a source, and the log of key "k" that a job writes for them."""

    idle_after_ms: int | None = None
    partitions: int = 1
    count: int = 0
    offsets: dict[int, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        places = tuple((IN_A, number) for number in range(self.partitions))
        self.checker = TimedResults(
            EventTime(
                delay_ms=DELAY_MS,
                idle_after_ms=self.idle_after_ms,
                alarms=True,
                drains=False,
                partitions=places,
                limits={},
            )
        )

    def record(
        self,
        at_ms: int,
        *changes: TimerChange,
        partition: int = 0,
        key: str = "k",
        repeats: int | None = None,
    ) -> TimedEvent:
        """A record that is written to the source."""
        offset = self.offsets.get(partition, 0)
        self.offsets[partition] = offset + 1
        event = TimedEvent(f"{IN_A}-{partition}:{offset}", key, 1, at_ms, changes, repeats)
        self.checker.expect(TopicPartition(IN_A, partition), event, offset)
        return event

    def reads(self, event: TimedEvent, watermark_ms: int = MIN_MS, **fields: object) -> None:
        """The entry of a record."""
        self._judge(
            Entry(event.name, "k", 1, "k", timestamp_ms=event.at_ms, watermark_ms=watermark_ms),
            fields,
        )

    def fires(
        self,
        timer: str,
        at_ms: int,
        watermark_ms: int,
        *,
        name: str = "",
        **fields: object,
    ) -> None:
        """The entry of a timer."""
        entry = Entry("", "k", 0, "k", timer=timer, timer_name=name, at_ms=at_ms)
        times = {"timestamp_ms": at_ms, "watermark_ms": watermark_ms}
        self._judge(msgspec.structs.replace(entry, **times), fields)

    def _judge(self, entry: Entry, fields: dict[str, object]) -> None:
        self.count += 1
        self.checker.judge(msgspec.structs.replace(entry, **{"count": self.count, **fields}), "out")

    def hidden(self, event: TimedEvent, count: int, watermark_ms: int = MIN_MS) -> Entry:
        """The entry of a record in a transaction that a checkpoint names."""
        return Entry(
            event.name, "k", 1, "k", count, timestamp_ms=event.at_ms, watermark_ms=watermark_ms
        )

    def cut(
        self,
        offset: int,
        watermark_ms: int | None,
        *hidden: Entry,
        counter: int = 1,
        attempt: int = 1,
        step_ms: int | None = None,
        idle: bool = False,
        drained: bool = False,
    ) -> CheckpointId:
        """A checkpoint that is published, of a source with one partition."""
        split = SourceSplit(
            source=Uid("events"),
            topic=IN_A,
            partition=0,
            offset=offset,
            watermark_ms=watermark_ms,
            idle=idle,
        )
        keyed = KeyedSnapshot(
            uid=Uid("watch"),
            backend="memory",
            first_key_group=0,
            last_key_group=127,
            files=(),
            schemas={},
            watermark_ms=step_ms,
        )
        part = SubtaskSnapshot(
            vertex=VertexId("v"),
            index=SubtaskIndex(0),
            splits=(split,),
            keyed=(keyed,),
            drained=drained,
        )
        manifest = Manifest(
            job=JOB,
            checkpoint=CheckpointId(Attempt(attempt), counter),
            submission_id="s",
            created_ms=0,
            final=False,
            kafka_cluster="c",
            fingerprint="f",
            plan=StateMetadata(parallelism=1, max_parallelism=128),
            subtasks=(part,),
        )
        self.checker.cut(manifest, hidden)
        return manifest.checkpoint


def test_checker_accepts_a_correct_log() -> None:
    log = Log()
    first, second = log.record(100, silence(120), repeats=1), log.record(200, deadline("b", 300))
    log.reads(first)
    log.reads(second, 89)
    assert log.checker.missing() == 1, "silence is due under the last watermark, 189"
    log.fires(SILENCE, 120, 189)
    assert log.checker.missing() == 0, "it is set again, for 270"
    log.checker.complete()
    third = log.record(311)
    log.reads(third, 189)
    log.fires(SILENCE, 120 + REPEAT_MS, 300)
    log.fires(DEADLINE, 300, 300, name="b")
    log.checker.complete()
    assert log.checker.fired == 3


def test_checker_reports_a_timer_that_fires_twice() -> None:
    log = Log()
    log.reads(log.record(100, silence(80)))
    log.fires(SILENCE, 80, 89)
    with pytest.raises(Violation, match="no timer is due"):
        log.fires(SILENCE, 80, 89)


def test_checker_reports_a_call_that_is_repeated_or_lost() -> None:
    log = Log()
    first, second = log.record(100), log.record(101)
    log.reads(first)
    with pytest.raises(Violation, match="has number 1 for a second time, where 2 follows"):
        log.reads(second, count=1)
    with pytest.raises(Violation, match="has number 3, where 2 follows"):
        log.reads(second, count=3)


def test_checker_reports_a_timer_that_was_moved_or_cancelled() -> None:
    log = Log()
    log.reads(log.record(100, silence(50), deadline("c", 60)))
    log.reads(log.record(200, silence(150), deadline("c", None)))
    with pytest.raises(Violation, match=r"the timer silence at 50 .* silence at 150 is next"):
        log.fires(SILENCE, 50, 189)
    with pytest.raises(Violation, match="the timer deadline c at 60"):
        log.fires(DEADLINE, 60, 189, name="c", count=3)


def test_checker_reports_a_timer_that_another_one_has_cancelled() -> None:
    log = Log()
    log.reads(log.record(100, deadline(CANCELS, 50), deadline(CANCELED, 60)))
    log.fires(DEADLINE, 50, 89, name=CANCELS)
    with pytest.raises(Violation, match="no timer is due"):
        log.fires(DEADLINE, 60, 89, name=CANCELED)


@pytest.mark.parametrize(
    "changes",
    [
        pytest.param((silence(60), deadline("c", 50)), id="time"),
        pytest.param((silence(50), deadline("c", 50)), id="declaration"),
        pytest.param((deadline("d", 50), deadline("c", 50)), id="name"),
    ],
)
def test_checker_reports_timers_of_a_key_in_the_wrong_order(
    changes: Sequence[TimerChange],
) -> None:
    log = Log()
    log.reads(log.record(100, *changes))
    first, second = changes
    right_first = (first.at_ms, first.timer != SILENCE, first.name) < (
        second.at_ms,
        second.timer != SILENCE,
        second.name,
    )
    wrong = second if right_first else first
    with pytest.raises(Violation, match="is next"):
        log.fires(wrong.timer, wrong.at_ms or 0, 89, name=wrong.name)


def test_checker_reports_a_timer_before_its_watermark_and_a_record_before_a_due_timer() -> None:
    log = Log()
    log.reads(log.record(100, silence(95)))
    with pytest.raises(Violation, match="no timer is due"):
        log.fires(SILENCE, 95, 89)
    late = log.record(110)
    log.record(120)
    log.reads(late, 89, count=2)
    with pytest.raises(Violation, match="the timer silence at 95 has not fired"):
        log.reads(log.record(130), 99, count=3)


def test_checker_reports_a_watermark_that_goes_back() -> None:
    log = Log()
    for number in range(3):
        log.reads(log.record(100 + number), 89 + number - 1 if number else MIN_MS)
    with pytest.raises(Violation, match="go back from 90 to 89"):
        log.reads(log.record(200), 89)


def test_checker_reports_a_watermark_that_no_record_makes_possible() -> None:
    log = Log()
    first = log.record(100)
    log.reads(first)
    with pytest.raises(Violation, match="88, and no record has this watermark"):
        log.reads(log.record(101), 88)


def test_checker_reports_a_watermark_that_overtakes_a_record_of_the_key() -> None:
    log = Log()
    first, _, _ = log.record(100), log.record(101), log.record(200, key="other")
    log.reads(first)
    with pytest.raises(Violation, match=f"189, and it has overtaken records of {IN_A}-0"):
        log.fires(SILENCE, 0, 189)


def test_checker_reports_a_watermark_that_is_ahead_of_the_slowest_partition() -> None:
    log = Log(partitions=2)
    log.record(50, partition=1, key="other")
    log.reads(log.record(100))
    with pytest.raises(Violation, match=f"89, and {IN_A}-1 is not so far"):
        log.reads(log.record(101), 89)


def test_partition_that_may_be_idle_does_not_hold_the_watermark_back() -> None:
    log = Log(partitions=2, idle_after_ms=100)
    log.record(50, partition=1, key="other")
    log.reads(log.record(100, silence(85)))
    log.fires(SILENCE, 85, 89)
    assert log.checker.missing() == 0


def test_checker_reports_a_timer_that_has_not_fired_at_the_end() -> None:
    log = Log()
    log.reads(log.record(100, silence(89), deadline("c", 90)))
    assert log.checker.missing() == 1
    with pytest.raises(Violation, match="silence at 89 of key k has not fired at the end"):
        log.checker.complete()
    log.fires(SILENCE, 89, 89)
    log.checker.complete()
    log.checker.begin_drain()
    with pytest.raises(Violation, match="deadline c at 90 of key k has not fired at the end"):
        log.checker.complete()


def test_checker_reports_a_record_after_the_end_of_the_input() -> None:
    log = Log()
    log.reads(log.record(100, silence(5_000)))
    log.checker.begin_drain()
    log.fires(SILENCE, 5_000, MAX_MS)
    with pytest.raises(Violation, match="comes after timers of its key that fired because"):
        log.reads(log.record(200), 89)


def test_processing_timer_fires_once_by_the_clock_of_its_slot() -> None:
    log = Log()
    log.reads(log.record(100, TimerChange(ALARM, "", 500)), processing_ms=1_000)
    assert log.checker.missing() == 1
    with pytest.raises(Violation, match="fires at 1499, before its time 1500"):
        log.fires(ALARM, 1_500, 89, timestamp_ms=90, processing_ms=1_499)
    log.fires(ALARM, 1_500, 89, timestamp_ms=90, processing_ms=1_500, count=2)
    log.checker.complete()
    with pytest.raises(Violation, match="and the processing timer is at None"):
        log.fires(ALARM, 1_500, 89, timestamp_ms=90, processing_ms=1_500, count=3)


def relayed(watermark_ms: int, timestamp_ms: int, count: int) -> dict[str, Any]:
    return {
        "relay": "k",
        "relay_count": count,
        "relay_watermark_ms": watermark_ms,
        "relay_timestamp_ms": timestamp_ms,
    }


def test_checker_reports_a_result_that_the_second_step_gets_after_its_watermark() -> None:
    log = Log()
    log.reads(log.record(100, silence(80)), **relayed(MIN_MS, 100, 1))
    with pytest.raises(Violation, match="of 80 and late in the second step"):
        log.fires(SILENCE, 80, 89, **relayed(89, 80, 2))
    log.fires(SILENCE, 80, 89, count=2, **relayed(MIN_MS, 80, 2))


def test_timer_that_was_set_to_a_time_that_is_over_may_be_late_in_the_second_step() -> None:
    log = Log()
    log.reads(log.record(100), **relayed(MIN_MS, 100, 1))
    log.reads(log.record(105, silence(80)), 89, **relayed(89, 105, 2))
    log.fires(SILENCE, 80, 89, **relayed(89, 80, 3))


# --- checkpoints --------------------------------------------------------------------------------


def test_checker_reports_a_checkpoint_whose_partition_has_another_watermark() -> None:
    log = Log()
    log.record(100)
    log.record(50)
    with pytest.raises(Violation, match="has the watermark 39 of in-a-0, where 89 follows"):
        log.cut(2, 39)
    log.cut(2, 89)


def test_checker_reports_a_partition_that_is_no_longer_idle_without_a_record() -> None:
    log = Log(idle_after_ms=100)
    log.record(100)
    log.cut(1, 89, idle=True)
    with pytest.raises(Violation, match="in-a-0 is idle in a checkpoint and active in the next"):
        log.cut(1, 89, counter=2)
    log.record(200)
    log.cut(2, 189, counter=2)


def test_checker_reports_a_step_that_is_ahead_of_its_sources_or_goes_back() -> None:
    log = Log()
    log.record(100)
    with pytest.raises(Violation, match="has the watermark 90 of step watch, and the sources are"):
        log.cut(1, 89, step_ms=90)
    with pytest.raises(Violation, match="watermark 9223372036854775807 of step watch"):
        log.cut(1, 89, step_ms=MAX_MS, drained=True)
    log.cut(1, 89, step_ms=89)
    with pytest.raises(Violation, match="of step watch, and the one before it has 89"):
        log.cut(1, 89, attempt=2)


def test_checker_reports_a_checkpoint_that_forgets_what_a_key_has_seen() -> None:
    log = Log()
    first, second = log.record(100), log.record(120)
    with pytest.raises(Violation, match="and entry 2 of key k has seen 89"):
        log.cut(2, 109, log.hidden(first, 1), log.hidden(second, 2, 89), step_ms=50)


def test_checker_reports_that_a_drained_partition_is_read_further() -> None:
    log = Log()
    log.record(100)
    log.cut(1, 89, drained=True)
    log.record(200)
    with pytest.raises(Violation, match="in-a-0 has drained in a checkpoint, and was read further"):
        log.cut(2, 189, counter=2, drained=True)


def test_log_continues_from_the_restored_checkpoint() -> None:
    log = Log()
    first, second, third = (log.record(at_ms, silence(at_ms)) for at_ms in (100, 200, 300))
    log.reads(first)
    older = log.cut(1, 89)
    log.reads(second, 89)
    last = log.cut(3, 289, log.hidden(third, 3, 89), counter=2, step_ms=89)
    log.checker.start_attempt(last)
    log.checker.start_attempt(older)
    assert log.checker.missing() == 1, "the last checkpoint has an entry that is not visible yet"
    log.reads(third, 89)
    assert log.checker.missing() == 1, "the timer of the restored checkpoint is due"
    log.reads(second, MIN_MS, count=2)
    with pytest.raises(Violation, match="has number 4, where 3 follows"):
        log.reads(third, MIN_MS, count=4)


def test_log_begins_anew_without_a_checkpoint() -> None:
    log = Log()
    first = log.record(100)
    log.reads(first)
    log.cut(1, 89)
    log.checker.start_attempt(None)
    log.reads(first, count=1)


def test_checkpoint_of_a_new_generation_does_not_count_entries_of_the_one_before() -> None:
    log = Log()
    first, second = log.record(100), log.record(200)
    log.reads(first)
    older = log.cut(1, 89)
    log.cut(2, 189, log.hidden(second, 2), counter=2)
    log.checker.start_attempt(older)
    newer = log.cut(1, 89, log.hidden(second, 2), counter=3, attempt=2)
    log.reads(second)
    log.checker.start_attempt(newer)
    log.reads(second, count=2)
