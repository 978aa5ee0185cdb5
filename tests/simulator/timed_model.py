"""The model of a pipeline with event time: its sources, and what each key does with its timers.

`timed_results.py` has the rules, and repeats the log of each key with these models.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from tests.simulator.result_groups import Violation
from tests.simulator.timed_pipelines import (
    ALARM,
    CANCELED,
    CANCELS,
    DEADLINE,
    MOVE_MS,
    MOVED,
    MOVES,
    REPEAT_MS,
    SILENCE,
    Entry,
    EventTime,
    TimedEvent,
    has_time,
)
from tidegate.stream_elements import MAX_MS, MIN_MS, NEVER, TopicPartition

ORDER: Final = (SILENCE, DEADLINE)
"""The event timers in the order of their declaration."""

Timer = tuple[str, str]
"""A timer of a key: its declaration and its name."""


@dataclass(slots=True)
class SourcePartition:
    """The committed records of a partition of a source, in their order."""

    delay_ms: int
    offsets: list[int] = field(default_factory=list)
    watermarks: list[int] = field(default_factory=list)
    """The watermark after each record. It never goes back."""
    own: list[int] = field(default_factory=list)
    """The watermark that follows from each record alone."""
    of_key: dict[str, list[int]] = field(default_factory=dict)
    """The positions of the records of each key in the lists."""

    def add(self, event: TimedEvent, offset: int) -> None:
        self.of_key.setdefault(event.key, []).append(len(self.offsets))
        self.offsets.append(offset)
        self.own.append(event.at_ms - self.delay_ms - 1)
        self.watermarks.append(max(self.own[-1], self.last_ms))

    @property
    def last_ms(self) -> int:
        """The watermark after all records; MIN_MS without a record."""
        return self.watermarks[-1] if self.watermarks else MIN_MS

    def before(self, offset: int) -> int:
        """Return the watermark after the records before an offset; MIN_MS for the first offset."""
        count = bisect_left(self.offsets, offset)
        return self.watermarks[count - 1] if count else MIN_MS

    def highest_ms(self, start: int, end: int) -> int:
        """Return the highest watermark of the records between two offsets; MIN_MS without any."""
        found = self.own[bisect_left(self.offsets, start) : bisect_left(self.offsets, end)]
        return max(found, default=MIN_MS)

    def needed(self, watermark_ms: int, key: str) -> int | None:
        """Return how many records of a key are at or before the first record that makes a watermark
        possible; None if no record does.
        """
        first = bisect_left(self.watermarks, watermark_ms)
        if first == len(self.watermarks):
            return None
        return bisect_right(self.of_key.get(key, ()), first)

    def gives(self, watermark_ms: int) -> bool:
        """Return whether this is the watermark after some record."""
        first = bisect_left(self.watermarks, watermark_ms)
        return first < len(self.watermarks) and self.watermarks[first] == watermark_ms


class Sources:
    """The records of all sources, and what they say about watermarks."""

    def __init__(self, event_time: EventTime) -> None:
        self.partitions = {
            TopicPartition(*place): SourcePartition(event_time.delay_ms)
            for place in event_time.partitions
        }
        self.events: dict[str, tuple[TopicPartition, TimedEvent]] = {}
        self.offsets: dict[str, int] = {}
        """The offset of each record, by its name."""
        self.stamped = event_time.stamped
        self.idles = event_time.idle_after_ms is not None or self.stamped
        """Whether one partition alone can bring a watermark. With `with_timestamps` it can, because
        the others of its subtask do not hold it back.
        """
        self.drains = False
        """Whether the last job run drains, so that a partition may have ended anywhere."""

    def last_ms(self) -> int:
        """Return the last watermark, if all records are read and all partitions have had time to
        become idle. With `with_timestamps` none is sure: a restore takes the progress of a subtask
        that was ahead.
        """
        if self.stamped:
            return MIN_MS
        lasts = [each.last_ms for each in self.partitions.values()]
        return max(lasts) if self.idles else min(lasts)

    def sure_ms(self) -> int:
        """Return the watermark that is reached when all records are read, also if a job run stops
        before a partition becomes idle.
        """
        if self.drains:
            return MAX_MS
        return min(each.last_ms for each in self.partitions.values())

    def add(self, topic_partition: TopicPartition, event: TimedEvent, offset: int) -> None:
        """Add a record that was committed, if it has an event time."""
        if not has_time(event):
            return
        self.events[event.name] = topic_partition, event
        self.offsets[event.name] = offset
        self.partitions[topic_partition].add(event, offset)

    def is_before(self, name: str, other: str) -> bool:
        """Return whether a record is before another one of its partition."""
        same = self.events[name][0] == self.events[other][0]
        return same and self.offsets[name] < self.offsets[other]

    def can_precede(self, watermark_ms: int, name: str) -> bool:
        """Return whether a watermark can have been reached before a record came."""
        own, offset = self.events[name][0], self.offsets[name]
        reached = [
            (each.before(offset) if place == own else each.last_ms) >= watermark_ms
            for place, each in self.partitions.items()
        ]
        if self.idles:
            return any(reached)
        if self.drains:  # the others may have ended
            return self.partitions[own].before(offset) >= watermark_ms
        return all(reached)

    def why_not_at_all(self, watermark_ms: int) -> str:
        """Return why no step can have seen this watermark; empty if one can."""
        if watermark_ms == MIN_MS or (self.drains and watermark_ms == MAX_MS):
            return ""
        if not self._is_given(watermark_ms):
            return "no record has this watermark"
        reached = [each.last_ms >= watermark_ms for each in self.partitions.values()]
        if self.idles or self.drains or all(reached):
            return ""
        return "a partition is not so far"

    def why_not(self, watermark_ms: int, key: str, seen: Mapping[TopicPartition, int]) -> str:
        """Return why a key cannot have seen this watermark after `seen` of its records; empty if it
        can.
        """
        if watermark_ms == MIN_MS or (self.drains and watermark_ms == MAX_MS):
            return ""
        if not self._is_given(watermark_ms):
            return "no record has this watermark"
        reasons = []
        for topic_partition, partition in self.partitions.items():
            needed = partition.needed(watermark_ms, key)
            where = f"{topic_partition.topic}-{topic_partition.partition}"
            if needed is None:
                reasons.append(f"{where} is not so far")
            elif needed > seen.get(topic_partition, 0):
                reasons.append(f"it has overtaken records of {where}")
        if self.idles or self.drains:
            return "; ".join(reasons) if len(reasons) == len(self.partitions) else ""
        return reasons[0] if reasons else ""

    def _is_given(self, watermark_ms: int) -> bool:
        """Return whether this is the watermark after some record. With `with_timestamps` it may be
        behind an older record that another attempt has read.
        """
        if self.stamped:
            return any(watermark_ms in each.own for each in self.partitions.values())
        return any(each.gives(watermark_ms) for each in self.partitions.values())


class KeyModel:
    """The model of one key: what its log says so far."""

    def __init__(self) -> None:
        self.count = self.repeats = 0
        self.watermark_ms = self.relay_watermark_ms = MIN_MS
        self.seen: dict[TopicPartition, int] = {}
        """The number of records of each partition."""
        self.timers: dict[Timer, int] = {}
        self.over: set[Timer] = set()
        """The timers that were set to a time that the watermark had reached."""
        self.alarm_ms: int | None = None
        self.drained = False
        """Whether a timer has fired because the input has ended."""

    def due(self, until_ms: int) -> tuple[int, int, str] | None:
        """Return the time, the place of the declaration and the name of the first timer up to a
        time; None without such a timer.
        """
        timers = ((at, ORDER.index(timer), name) for (timer, name), at in self.timers.items())
        first = min(timers, default=(NEVER, 0, ""))
        return first if first[0] <= until_ms else None

    def take(self, entry: Entry, sources: Sources) -> int:
        """Check the next entry. Raise Violation if it breaks a rule. Return 0."""
        if entry.count != self.count + 1:
            again = " for a second time" if entry.count <= self.count else ""
            self._refuse(f"has number {entry.count}{again}, where {self.count + 1} follows")
        self._check_watermark(entry, sources)
        if entry.name:
            self._check_record(entry, sources)
        elif entry.timer == ALARM:
            self._check_alarm(entry)
        else:
            self._check_firing(entry)
        self.follow(entry, sources)
        return 0

    def follow(self, entry: Entry, sources: Sources) -> None:
        """Do what the function has done in this call."""
        self.count = entry.count
        # A restart during a drain begins with the last watermark before the end again.
        self.drained = self.drained or entry.watermark_ms == MAX_MS
        if entry.watermark_ms < MAX_MS:
            self.watermark_ms = entry.watermark_ms
        if entry.relay and entry.relay_watermark_ms < MAX_MS:
            self.relay_watermark_ms = entry.relay_watermark_ms
        if entry.name:
            topic_partition, event = sources.events[entry.name]
            self.seen[topic_partition] = self.seen.get(topic_partition, 0) + 1
            self._change(entry, event)
        elif entry.timer == ALARM:
            self.alarm_ms = None
        else:
            timer = entry.timer, entry.timer_name
            self.timers.pop(timer, None)
            self.over.discard(timer)
            if timer == (SILENCE, "") and self.repeats:
                self.repeats -= 1
                self._set(timer, entry.at_ms + REPEAT_MS, entry.watermark_ms)
            elif timer == (DEADLINE, CANCELS):
                self.timers.pop((DEADLINE, CANCELED), None)
            elif timer == (DEADLINE, MOVES):
                self._set((DEADLINE, MOVED), entry.at_ms + MOVE_MS, entry.watermark_ms)

    def _change(self, entry: Entry, event: TimedEvent) -> None:
        if event.repeats is not None:
            self.repeats = event.repeats
        for change in event.changes:
            if change.timer == ALARM:
                at_ms = change.at_ms
                self.alarm_ms = None if at_ms is None else entry.processing_ms + at_ms
            elif change.at_ms is None:
                self.timers.pop((change.timer, change.name), None)
            else:
                self._set((change.timer, change.name), change.at_ms, entry.watermark_ms)

    def _set(self, timer: Timer, at_ms: int, watermark_ms: int) -> None:
        self.timers[timer] = at_ms
        self.over.discard(timer)
        if at_ms <= watermark_ms:
            self.over.add(timer)

    def _check_watermark(self, entry: Entry, sources: Sources) -> None:
        seen = [("the watermark", entry.watermark_ms, self.watermark_ms)]
        if entry.relay:
            seen.append(
                ("the second step's watermark", entry.relay_watermark_ms, self.relay_watermark_ms)
            )
            if entry.relay_watermark_ms > entry.watermark_ms:
                self._refuse(
                    f"has the watermark {entry.relay_watermark_ms} in the second step, ahead of "
                    f"{entry.watermark_ms} in the first"
                )
        for what, watermark_ms, before_ms in seen:
            if watermark_ms < before_ms:
                self._refuse(f"sees {what} go back from {before_ms} to {watermark_ms}")
            reason = sources.why_not(watermark_ms, entry.group, self.seen)
            if reason:
                self._refuse(f"sees {what} {watermark_ms}, and {reason}")

    def _check_record(self, entry: Entry, sources: Sources) -> None:
        _, event = sources.events[entry.name]
        self._check_time(entry, event.at_ms)
        self._check_nothing_due(entry)
        if self.drained:
            self._refuse("comes after timers of its key that fired because the input had ended")

    def _check_alarm(self, entry: Entry) -> None:
        if entry.at_ms != self.alarm_ms:
            self._refuse(f"fires at {entry.at_ms}, and the processing timer is at {self.alarm_ms}")
        if entry.processing_ms < entry.at_ms:
            self._refuse(f"fires at {entry.processing_ms}, before its time {entry.at_ms}")
        self._check_time(entry, entry.watermark_ms + 1)
        self._check_nothing_due(entry)

    def _check_firing(self, entry: Entry) -> None:
        first = self.due(entry.watermark_ms)
        fired = (entry.at_ms, ORDER.index(entry.timer), entry.timer_name)
        if fired != first:
            expected = "no timer is due" if first is None else f"{timer_text(*first)} is next"
            self._refuse(
                f"is {timer_text(*fired)} under the watermark {entry.watermark_ms}, and {expected}"
            )
        self._check_time(entry, entry.at_ms)
        was_over = (entry.timer, entry.timer_name) in self.over
        if entry.relay and entry.at_ms <= entry.relay_watermark_ms and not was_over:
            self._refuse(
                f"is of {entry.at_ms} and late in the second step, whose watermark is "
                f"{entry.relay_watermark_ms}"
            )

    def _check_time(self, entry: Entry, at_ms: int) -> None:
        seen = [entry.timestamp_ms, *([entry.relay_timestamp_ms] if entry.relay else [])]
        if any(each != at_ms for each in seen):
            self._refuse(f"has the event time {seen}, not {at_ms}")

    def _check_nothing_due(self, entry: Entry) -> None:
        first = self.due(entry.watermark_ms)
        if first is not None:
            self._refuse(
                f"comes under the watermark {entry.watermark_ms}, and {timer_text(*first)} has not "
                "fired"
            )

    @staticmethod
    def _refuse(message: str) -> None:
        raise Violation(message)


@dataclass(slots=True)
class RelayModel:
    """The model of one key of the second step."""

    count: int = 0
    watermark_ms: int = MIN_MS

    def take(self, entry: Entry, _sources: Sources) -> int:
        if entry.relay_count != self.count + 1:
            message = f"has number {entry.relay_count} of {entry.relay}, after {self.count}"
            raise Violation(message)
        if entry.relay_watermark_ms < self.watermark_ms:
            message = (
                f"sees the watermark of {entry.relay} go back from {self.watermark_ms} to "
                f"{entry.relay_watermark_ms}"
            )
            raise Violation(message)
        self.follow(entry, _sources)
        return 0

    def follow(self, entry: Entry, _sources: Sources) -> None:
        self.count = entry.relay_count
        if entry.relay_watermark_ms < MAX_MS:
            self.watermark_ms = entry.relay_watermark_ms


def timer_text(at_ms: int, place: int, name: str) -> str:
    """Return the text of a timer for messages."""
    return f"the timer {ORDER[place]} {name}".strip() + f" at {at_ms}"
