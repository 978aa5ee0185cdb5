"""The checker of windows, given logs that are wrong: it must name each, and no right one.

A log is of the key "k". Its records are in one or two partitions, and the job writes firings and
late records. The bound of the strategy is 10 ms, and windows have 100 ms if a test does not say
otherwise.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import msgspec
import pytest

from tests.simulator.pipelines import IN_A
from tests.simulator.result_groups import Violation
from tests.simulator.timed_pipelines import Entry, EventTime, TimedEvent, WindowSettings
from tests.simulator.timed_results import TimedResults
from tests.simulator.window_model import FOREVER
from tests.simulator.window_pipelines import (
    GLOBAL,
    LATE,
    SESSION,
    SETTINGS,
    SLIDING,
    TOGETHER,
    TUMBLING,
    WINDOW,
    firing_name,
)
from tidegate.stream_elements import MAX_MS, MIN_MS, TopicPartition

DELAY_MS = 10
WINDOWS = replace(SETTINGS, kind=TUMBLING, size_ms=100, every_ms=100)


@dataclass
class Log:
    """The records of a source, and the log that a job writes for their key."""

    windows: WindowSettings = WINDOWS
    partitions: int = 1
    idle_after_ms: int | None = None
    count: int = 0
    offsets: dict[int, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.checker = TimedResults(
            EventTime(
                delay_ms=DELAY_MS,
                idle_after_ms=self.idle_after_ms,
                alarms=False,
                drains=False,
                partitions=tuple((IN_A, number) for number in range(self.partitions)),
                limits={},
                windows=self.windows,
            )
        )

    def record(self, at_ms: int, *, partition: int = 0, key: str = "k") -> TimedEvent:
        """A record that is written to the source."""
        offset = self.offsets.get(partition, 0)
        self.offsets[partition] = offset + 1
        event = TimedEvent(f"{IN_A}-{partition}:{offset}", key, 1, at_ms)
        self.checker.expect(TopicPartition(IN_A, partition), event, offset)
        return event

    def fires(
        self,
        start_ms: int,
        end_ms: int,
        /,
        *events: TimedEvent,
        firing: str = "on_time",
        number: int = 0,
        watermark_ms: int = MIN_MS,
        **fields: object,
    ) -> Entry:
        """The entry of a firing."""
        entry = Entry(
            "",
            "k",
            sum(event.amount for event in events),
            "k",
            total=len(events),
            kind=WINDOW,
            stage=1,
            start_ms=start_ms,
            end_ms=end_ms,
            firing=firing,
            number=number,
            names=tuple(event.name for event in events),
            timestamp_ms=end_ms - 1,
            watermark_ms=watermark_ms,
        )
        return self._judge(entry, fields)

    def late(self, event: TimedEvent, **fields: object) -> Entry:
        """The entry of a late record."""
        entry = Entry("", "k", event.amount, "k", kind=LATE, stage=1, names=(event.name,))
        return self._judge(msgspec.structs.replace(entry, timestamp_ms=event.at_ms), fields)

    def second(self, firing: Entry, start_ms: int, end_ms: int, **fields: object) -> Entry:
        """The entry of a second window that has one firing of a first one."""
        entry = Entry("", "k", firing.amount, "k", total=1, kind=WINDOW, stage=2, firing="on_time")
        entry = msgspec.structs.replace(
            entry,
            count=1,
            names=(firing_name(firing),),
            start_ms=start_ms,
            end_ms=end_ms,
            timestamp_ms=end_ms - 1,
            watermark_ms=MIN_MS,
        )
        return self._judge(entry, fields)

    def _judge(self, entry: Entry, fields: dict[str, object]) -> Entry:
        if entry.stage == 1:
            self.count += 1
            entry = msgspec.structs.replace(entry, count=self.count, watermark_ms=MIN_MS)
        entry = msgspec.structs.replace(entry, **fields)
        self.checker.judge(entry, "out")
        return entry


def with_settings(**changes: object) -> Log:
    return Log(replace(WINDOWS, **changes))  # type: ignore[arg-type]


def closed(log: Log, *times: int) -> list[TimedEvent]:
    """Records, and then one that ends their windows."""
    events = [log.record(at_ms) for at_ms in times]
    log.record(10_000)
    return events


# --- rules 9 and 10: the firings of a window ----------------------------------------------------


def test_a_window_that_fires_on_time_and_again_is_right() -> None:
    log = with_settings(lateness_ms=50_000)
    (first,) = closed(log, 5)
    log.fires(0, 100, first)
    late = log.record(7)
    log.fires(0, 100, first, late, firing="late", number=1)
    log.record(200_000)
    with pytest.raises(Violation, match="is in no window and not late"):
        log.checker.complete()  # the two records that have ended the windows


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"number": 1}, "is firing 1 of its window, where 0 follows"),
        ({"count": 2}, "has number 2, where 1 follows"),
        ({"timestamp_ms": 100}, "has the event time 100, and ends at 100"),
        ({"total": 2}, "has the aggregates 2, 1"),
        ({"amount": 7}, "has the aggregates 1, 7"),
        ({"names": ()}, "has a record twice, or none"),
        ({"end_ms": 200, "timestamp_ms": 199}, "is of 0 to 200, and has records of"),
        ({"start_ms": 100, "end_ms": 200, "timestamp_ms": 199}, "is of 100 to 200"),
        ({"names": ("in-a-0:9",)}, "which is not a record of the key"),
        ({"window_watermark_ms": 3}, "no record has this watermark"),
    ],
)
def test_a_firing_that_contradicts_itself_is_named(fields: dict[str, Any], message: str) -> None:
    log = Log()
    (first,) = closed(log, 5)
    with pytest.raises(Violation, match=message):
        log.fires(0, 100, first, **fields)


def test_a_record_of_another_key_is_in_no_window_of_this_key() -> None:
    log = Log()
    other = log.record(5, key="other")
    log.record(10_000)
    with pytest.raises(Violation, match="which is not a record of the key"):
        log.fires(0, 100, other)


def test_a_firing_has_all_records_of_the_one_before_it_and_a_new_one() -> None:
    log = with_settings(lateness_ms=50_000, early=1)
    first, second = closed(log, 5, 7)
    log.fires(0, 100, first, firing="early")
    with pytest.raises(Violation, match="lacks"):
        log.fires(0, 100, second, firing="early", number=1)
    log.count -= 1
    with pytest.raises(Violation, match="has no new record"):
        log.fires(0, 100, first, firing="early", number=1)


def test_an_early_firing_has_no_more_new_records_than_its_trigger_says() -> None:
    log = with_settings(early=1)
    first, second = closed(log, 5, 7)
    with pytest.raises(Violation, match="is early and has 2 new records, not 1"):
        log.fires(0, 100, first, second, firing="early")


def test_an_early_firing_after_a_period_has_any_number_of_records() -> None:
    log = with_settings(early_ms=40)
    first, second = closed(log, 5, 7)
    log.fires(0, 100, first, second, firing="early", window_watermark_ms=9_989)


def test_an_early_firing_under_a_watermark_that_ends_its_window_is_named() -> None:
    log = with_settings(early=2)
    first, second = closed(log, 5, 7)
    with pytest.raises(Violation, match="is early under the watermark 9989"):
        log.fires(0, 100, first, second, firing="early", window_watermark_ms=9_989)


def test_firings_on_time_come_in_the_order_of_their_ends() -> None:
    log = Log()
    first, second = closed(log, 5, 105)
    log.fires(100, 200, second)
    with pytest.raises(Violation, match="is on time, and a window that ends at 200 has fired"):
        log.fires(0, 100, first)


def test_a_window_does_not_fire_after_it_was_removed() -> None:
    log = with_settings(lateness_ms=20, late=2)
    first, second, third = closed(log, 5, 7, 205)
    log.fires(0, 100, first)
    log.fires(200, 300, third)
    with pytest.raises(Violation, match="fires, and the watermark was 299 before"):
        log.fires(0, 100, first, second, firing="late", number=1)


def test_a_late_firing_needs_a_watermark_that_came_before_its_record() -> None:
    log = with_settings(lateness_ms=50_000)
    first, second = closed(log, 5, 7)
    log.fires(0, 100, first)
    with pytest.raises(Violation, match="is late, and no watermark had reached 99"):
        log.fires(0, 100, first, second, firing="late", number=1)


def test_records_come_by_event_time() -> None:
    log = Log()
    first, second = closed(log, 5, 7)
    with pytest.raises(Violation, match="not by event time"):
        log.fires(0, 100, second, first)


# --- without accumulation -----------------------------------------------------------------------


def test_firings_that_do_not_accumulate_have_each_record_once() -> None:
    log = with_settings(early=1, accumulates=False)
    first, second = closed(log, 5, 7)
    log.fires(0, 100, first, firing="early")
    log.fires(0, 100, second, number=1)
    with pytest.raises(Violation, match="of a firing before it"):
        log.fires(0, 100, first, number=2)


# --- rule 11: in windows or late ----------------------------------------------------------------


def test_a_late_record_is_late_once_and_in_no_window() -> None:
    log = with_settings(lateness_ms=0)
    closed(log, 205)
    record = log.record(5)
    log.late(record)
    with pytest.raises(Violation, match="is late for a second time"):
        log.late(record)
    log.count -= 1
    with pytest.raises(Violation, match="which was late"):
        log.fires(0, 100, record)


def test_a_record_of_a_window_is_not_late() -> None:
    log = Log()
    (first,) = closed(log, 5)
    log.fires(0, 100, first)
    with pytest.raises(Violation, match="is late, and in a window"):
        log.late(first)


def test_a_record_is_not_late_while_its_window_may_be_open() -> None:
    log = with_settings(lateness_ms=20)
    log.record(128)  # its watermark is 117, and the window is removed at 119
    record = log.record(5)
    with pytest.raises(Violation, match="its windows are open until the watermark is 119"):
        log.late(record)


def test_a_record_at_the_end_of_the_allowed_lateness_is_late() -> None:
    log = with_settings(lateness_ms=20)
    log.record(130)
    log.late(log.record(5))


def test_another_partition_that_is_behind_keeps_a_record_in_time() -> None:
    log = Log(partitions=2)
    log.record(10_000)
    log.record(50, partition=1)
    record = log.record(5)
    with pytest.raises(Violation, match="its windows are open"):
        log.late(record)


def test_an_idle_partition_does_not_keep_a_record_in_time() -> None:
    log = Log(partitions=2, idle_after_ms=100)
    log.record(10_000)
    log.record(50, partition=1)
    log.late(log.record(5))


def test_a_record_is_in_all_sliding_windows_from_the_first_that_was_open() -> None:
    log = with_settings(kind=SLIDING, every_ms=50)
    first = log.record(139)  # the watermark is 128: the window to 100 has ended
    record = log.record(60)
    log.record(10_000)
    log.fires(50, 150, record, first)
    log.fires(100, 200, first)
    log.checker.complete()


def test_a_sliding_window_that_was_open_lacks_no_record() -> None:
    log = with_settings(kind=SLIDING, every_ms=50)
    (first,) = closed(log, 139)
    log.fires(100, 200, first)
    with pytest.raises(Violation, match="of 139 is not in the window to 150"):
        log.checker.complete()


def test_a_record_within_the_bound_is_in_its_first_sliding_window_too() -> None:
    log = with_settings(kind=SLIDING, every_ms=50)
    (record,) = closed(log, 60)
    log.fires(50, 150, record)
    with pytest.raises(Violation, match=r"of 60 is not in the window to 100|is in no window"):
        log.checker.complete()


# --- rule 12: sessions --------------------------------------------------------------------------


def test_a_merged_session_continues_with_the_numbers_of_its_parts() -> None:
    log = with_settings(kind=SESSION, lateness_ms=50_000)
    first, third = closed(log, 0, 150)
    log.fires(0, 100, first)
    log.fires(150, 250, third)
    between = log.record(80)
    with pytest.raises(Violation, match="is firing 1 of its window, where 2 follows"):
        log.fires(0, 250, first, between, third, firing="late", number=1)
    log.count -= 1
    log.fires(0, 250, first, between, third, firing="late", number=2)


def test_a_session_ends_after_the_gap_of_its_last_record() -> None:
    log = with_settings(kind=SESSION)
    first, second = closed(log, 0, 80)
    with pytest.raises(Violation, match="is of 0 to 100, and has records of"):
        log.fires(0, 100, first, second)


def test_records_that_are_further_apart_than_the_gap_are_no_session() -> None:
    log = with_settings(kind=SESSION)
    first, second = closed(log, 0, 101)
    with pytest.raises(Violation, match="has records of"):
        log.fires(0, 201, first, second)


def test_a_record_is_in_one_session() -> None:
    log = with_settings(kind=SESSION, lateness_ms=50_000)
    first, second = closed(log, 0, 50)
    log.fires(0, 150, first, second)
    with pytest.raises(Violation, match=r"lacks|another session"):
        log.fires(50, 150, second, number=1, firing="late")


def test_a_late_record_that_touches_an_open_session_is_named() -> None:
    log = with_settings(kind=SESSION)
    first = log.record(300)
    log.record(295)
    log.record(390)  # the watermark is 379: the session to 400 is open
    record = log.record(250)
    log.record(10_000)
    log.fires(300, 400, first)
    with pytest.raises(Violation, match=r"shows .* of 250 as late, and a session to 400 was open"):
        log.late(record)


def test_sessions_that_touch_were_not_open_at_the_same_time() -> None:
    log = with_settings(kind=SESSION)
    first, second = closed(log, 0, 50)
    log.fires(0, 100, first)
    log.fires(50, 150, second)
    with pytest.raises(Violation, match=r"touch|is in no window"):
        log.checker.complete()


# --- rule 13: second windows --------------------------------------------------------------------


def test_a_firing_on_time_is_not_late_for_second_windows() -> None:
    log = with_settings(twice=True)
    (first,) = closed(log, 5)
    firing = log.fires(0, 100, first)
    late = Entry("", "k", 0, "k", 1, kind=LATE, stage=2, names=(firing_name(firing),))
    late = msgspec.structs.replace(late, timestamp_ms=99, watermark_ms=MIN_MS)
    with pytest.raises(Violation, match="is a firing on time, and late for the second windows"):
        log.checker.judge(late, "out")


def test_a_second_window_has_the_time_of_its_firings() -> None:
    log = with_settings(twice=True)
    (first,) = closed(log, 5)
    firing = log.fires(0, 100, first)
    with pytest.raises(Violation, match="is of 400 to 800"):
        log.second(firing, 400, 800)
    log.second(firing, 0, 400)


# --- rule 14: the end ---------------------------------------------------------------------------


def test_a_record_that_is_nowhere_at_the_end_is_named() -> None:
    log = Log()
    closed(log, 5)
    assert log.checker.missing() == 1
    with pytest.raises(Violation, match="of 5 is in no window and not late"):
        log.checker.complete()


def test_a_window_that_is_open_at_the_end_need_not_have_fired() -> None:
    log = Log()
    log.record(5)
    assert log.checker.missing() == 0
    log.checker.complete()


def test_after_a_drain_every_window_has_fired() -> None:
    log = Log()
    first = log.record(5)
    log.checker.begin_drain()
    with pytest.raises(Violation, match="is in no window and not late"):
        log.checker.complete()
    log.fires(0, 100, first, watermark_ms=MAX_MS)
    log.checker.complete()


def test_late_records_that_wait_for_others_are_due_when_the_window_is_removed() -> None:
    log = with_settings(lateness_ms=100, late=2)
    log.record(150)
    log.record(5)
    assert log.checker.missing() == 0, "the watermark is 139, and the window is removed at 199"
    log.record(250)
    assert log.checker.missing() == 1


# --- other windows ------------------------------------------------------------------------------


def test_a_global_window_fires_for_each_number_of_records() -> None:
    log = with_settings(kind=GLOBAL, early=2, repeats=True)
    events = closed(log, 5, 7)
    assert log.checker.missing() == 2, "the third record waits for a fourth"
    log.fires(*FOREVER, *events, firing="early")
    log.checker.complete()


def test_a_global_window_has_no_other_bounds() -> None:
    log = with_settings(kind=GLOBAL, early=1, repeats=True)
    (first,) = closed(log, 5)
    with pytest.raises(Violation, match="is of 0 to 100, and has records of"):
        log.fires(0, 100, first, firing="early")


def test_a_window_that_fires_repeatedly_need_not_fire_at_its_end() -> None:
    log = with_settings(early=3, repeats=True, lateness_ms=50_000)
    closed(log, 5)
    assert log.checker.missing() == 0


def test_windows_of_all_records_have_those_of_every_key() -> None:
    log = with_settings(together=True)
    first, other = log.record(5), log.record(7, key="other")
    log.record(10_000, key="third")
    assert log.checker.missing() == 2
    log.fires(0, 100, first, other, key=TOGETHER, group=TOGETHER)
    assert log.checker.missing() == 0
    log.checker.complete()
