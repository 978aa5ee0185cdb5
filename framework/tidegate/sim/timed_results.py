"""The check of pipelines with event time: a model of the timers repeats the log of each key.

Watermarks depend on batches, on time and on faults. So nothing here says when a timer fires. The
rules hold for every interleaving:

1. The entries of a key have the numbers 1, 2, 3, … So no call is lost, and none has happened twice,
   also after a restore or at another parallelism.
2. The watermark that a key sees never goes back. After a restore it is not behind any watermark
   that an entry of the checkpoint has.
3. A watermark exists only if a record of each partition makes it possible, at the bound of the
   strategy. It comes behind that record, and so behind the records of the key before it in the same
   partition. Therefore no record within the bound is late. With `idle_after` this holds for one
   partition at least: the one that the watermark comes from.
4. A timer fires at the time for which it was set last, when the watermark has reached it, and never
   after it was cancelled. The timers of a key fire in order of time, then of declaration, then of
   name. All that are due have fired before the next record of the key.
5. A second step sees the watermark only after all results that it made due: no result of a timer is
   late there, unless the timer was set to a time that was over.
6. A processing timer fires once, and not before its time by the clock of its slot.
7. At the end, everything at or before the last watermark has fired. The last watermark is that of
   the slowest partition. With `idle_after` it is that of the fastest, because all become idle.

A published checkpoint has more: the watermark of each partition follows exactly from the records
before its offset. A partition without a new record stays idle. A step's watermark is not ahead of
the partitions, and not behind an earlier checkpoint.

When the user goes back to an older checkpoint, a new generation begins. The log of each key then
continues from what that checkpoint contains.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from tidegate.checkpoint.manifest import Manifest
from tidegate.ids import CheckpointId
from tidegate.protocol.subtask_snapshot import SourceSplit
from tidegate.sim.pipelines import Event
from tidegate.sim.result_groups import Violation
from tidegate.sim.timed_pipelines import (
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
)
from tidegate.stream_elements import MIN_MS, TopicPartition

NEVER: Final = 1 << 63
ORDER: Final = (SILENCE, DEADLINE)
"""The event timers in the order of their declaration."""

Timer = tuple[str, str]
"""A timer of a key: its declaration and its name."""


@dataclass(slots=True)
class _Partition:
    """The committed records of a partition of a source, in their order."""

    delay_ms: int
    offsets: list[int] = field(default_factory=list)
    watermarks: list[int] = field(default_factory=list)
    """The watermark after each record. It never goes back."""
    of_key: dict[str, list[int]] = field(default_factory=dict)
    """The positions of the records of each key in the two lists."""

    def add(self, event: TimedEvent, offset: int) -> None:
        self.of_key.setdefault(event.key, []).append(len(self.offsets))
        self.offsets.append(offset)
        self.watermarks.append(max(event.at_ms - self.delay_ms - 1, self.last_ms))

    @property
    def last_ms(self) -> int:
        """The watermark after all records; MIN_MS without a record."""
        return self.watermarks[-1] if self.watermarks else MIN_MS

    def before(self, offset: int) -> int:
        """Return the watermark after the records before an offset; MIN_MS if there are none."""
        count = bisect_left(self.offsets, offset)
        return self.watermarks[count - 1] if count else MIN_MS

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


class _Sources:
    """The records of all sources, and what they say about watermarks."""

    def __init__(self, event_time: EventTime) -> None:
        self.partitions = {
            TopicPartition(*place): _Partition(event_time.delay_ms)
            for place in event_time.partitions
        }
        self.events: dict[str, tuple[TopicPartition, TimedEvent]] = {}
        self.idles = event_time.idle_after_ms is not None

    def last_ms(self) -> int:
        """Return the last watermark, if all records are read and all partitions have had time to
        become idle.
        """
        lasts = [each.last_ms for each in self.partitions.values()]
        return max(lasts) if self.idles else min(lasts)

    def why_not(self, watermark_ms: int, key: str, seen: Mapping[TopicPartition, int]) -> str:
        """Return why a key cannot have seen this watermark after `seen` of its records; empty if it
        can.
        """
        if watermark_ms == MIN_MS:
            return ""
        if not any(each.gives(watermark_ms) for each in self.partitions.values()):
            return "no record has this watermark"
        reasons = []
        for topic_partition, partition in self.partitions.items():
            needed = partition.needed(watermark_ms, key)
            where = f"{topic_partition.topic}-{topic_partition.partition}"
            if needed is None:
                reasons.append(f"{where} is not so far")
            elif needed > seen.get(topic_partition, 0):
                reasons.append(f"it has overtaken records of {where}")
        if self.idles:
            return "; ".join(reasons) if len(reasons) == len(self.partitions) else ""
        return reasons[0] if reasons else ""


class _Key:
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

    def due(self, until_ms: int) -> tuple[int, int, str] | None:
        """Return the time, the place of the declaration and the name of the first timer up to a
        time; None if there is none.
        """
        timers = ((at, ORDER.index(timer), name) for (timer, name), at in self.timers.items())
        first = min(timers, default=(NEVER, 0, ""))
        return first if first[0] <= until_ms else None

    def take(self, entry: Entry, sources: _Sources) -> None:
        """Check the next entry. Raise Violation if it breaks a rule."""
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

    def follow(self, entry: Entry, sources: _Sources) -> None:
        """Do what the function has done in this call."""
        self.count = entry.count
        self.watermark_ms = entry.watermark_ms
        if entry.relay:
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

    def _check_watermark(self, entry: Entry, sources: _Sources) -> None:
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

    def _check_record(self, entry: Entry, sources: _Sources) -> None:
        _, event = sources.events[entry.name]
        self._check_time(entry, event.at_ms)
        self._check_nothing_due(entry)

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
            expected = "no timer is due" if first is None else f"{_named(*first)} is the next"
            self._refuse(
                f"is the timer {_named(*fired)} under the watermark {entry.watermark_ms}, and "
                f"{expected}"
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
                f"comes under the watermark {entry.watermark_ms}, and the timer {_named(*first)} "
                "has not fired"
            )

    @staticmethod
    def _refuse(message: str) -> None:
        raise Violation(message)


@dataclass(slots=True)
class _Relay:
    """The model of one key of the second step."""

    count: int = 0
    watermark_ms: int = MIN_MS

    def take(self, entry: Entry, _sources: _Sources) -> None:
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

    def follow(self, entry: Entry, _sources: _Sources) -> None:
        self.count, self.watermark_ms = entry.relay_count, entry.relay_watermark_ms


Model = _Key | _Relay
Log = tuple[bool, str]
"""A log: whether it is of the second step, and the key."""


@dataclass(slots=True)
class _Generation:
    """The logs since the job began, or since it went back to an older checkpoint."""

    logs: dict[Log, list[Entry]] = field(default_factory=dict)
    """All entries of each log, with those that its base contains."""
    models: dict[Log, Model] = field(default_factory=dict)
    base: _Cut | None = None
    """The checkpoint to which the job went back."""
    ends: dict[Log, int] | None = None
    """The number of entries of each log after which the next generation follows."""


@dataclass(frozen=True, slots=True)
class _Cut:
    """What a published checkpoint contains."""

    generation: int
    counts: dict[Log, int]
    attempt: int
    splits: dict[tuple[str, str, int], SourceSplit]
    steps: dict[tuple[str, int], int]
    """The watermark of each step in each subtask."""

    def watermark_ms(self, uid: str) -> int:
        """Return the watermark with which a step continues."""
        return max((at for (each, _), at in self.steps.items() if each == uid), default=MIN_MS)


class TimedResults:
    """The checker of the log of one job."""

    def __init__(self, event_time: EventTime) -> None:
        self._sources = _Sources(event_time)
        self._generations = [_Generation()]
        self._at: dict[Log, int] = {}
        """The generation of the last visible entry of each log."""
        self._cuts: dict[CheckpointId, _Cut] = {}
        self._current: CheckpointId | None = None
        """The checkpoint from which the job continues."""
        self.fired = 0
        """The number of visible firings."""

    def expect(self, topic_partition: TopicPartition, event: Event, offset: int) -> None:
        """Add an event that was committed to a partition of a source."""
        if isinstance(event, TimedEvent):
            self._sources.events[event.name] = topic_partition, event
            self._sources.partitions[topic_partition].add(event, offset)

    def judge(self, entry: Entry, where: str) -> None:
        """Check an entry that has become visible. Raise Violation."""
        self.fired += not entry.name
        for log in _logs(entry):
            generation = self._advance(log)
            try:
                _model(generation, log).take(entry, self._sources)
            except Violation as violation:
                what = entry.name or f"{entry.timer} {entry.timer_name}".strip()
                message = f"{where}: entry {entry.count} of key {entry.group} ({what}) {violation}"
                raise Violation(message) from None
            generation.logs.setdefault(log, []).append(entry)

    def missing(self) -> int:
        """Return how many timers have still to fire if all records are visible, and how many
        entries a rewind still expects.
        """
        last_ms = self._sources.last_ms()
        missing = 0
        for log in self._known():
            generation = self._advance(log)
            model = _model(generation, log)
            if generation.ends is not None:
                missing += generation.ends.get(log, 0) - model.count
            if isinstance(model, _Key):
                missing += sum(at_ms <= last_ms for at_ms in model.timers.values())
                missing += model.alarm_ms is not None
        return missing

    def complete(self) -> None:
        """Raise Violation if a timer that is due has not fired at the end of the run."""
        last_ms = self._sources.last_ms()
        for log in sorted(self._known()):
            model = _model(self._advance(log), log)
            first = model.due(last_ms) if isinstance(model, _Key) else None
            if first is not None:
                message = (
                    f"the timer {_named(*first)} of key {log[1]} has not fired at the end, and the "
                    f"watermark is {last_ms}"
                )
                raise Violation(message)
            if isinstance(model, _Key) and model.alarm_ms is not None:
                message = f"the processing timer of key {log[1]} has not fired at the end"
                raise Violation(message)

    # --- checkpoints ----------------------------------------------------------------------------

    def cut(self, manifest: Manifest, hidden: Iterable[Entry]) -> None:
        """Check a published checkpoint. `hidden` has its entries that are not visible yet."""
        number = len(self._generations) - 1
        counts: dict[Log, int] = {}
        for log in self._known():
            counts[log] = _model(self._advance(log), log).count
        splits: dict[tuple[str, str, int], SourceSplit] = {
            (split.source, split.topic, split.partition): split
            for subtask in manifest.subtasks
            for split in subtask.splits
        }
        steps: dict[tuple[str, int], int] = {
            (keyed.uid, subtask.index): MIN_MS if keyed.watermark_ms is None else keyed.watermark_ms
            for subtask in manifest.subtasks
            for keyed in subtask.keyed
        }
        cut = _Cut(number, counts, manifest.checkpoint.attempt, splits, steps)
        for entry in hidden:
            for log in _logs(entry):
                count = entry.relay_count if log[0] else entry.count
                counts[log] = max(counts.get(log, 0), count)
            self._check_hidden(entry, cut)
        self._check_splits(cut)
        self._check_steps(cut)
        self._cuts[manifest.checkpoint] = cut
        self._current = manifest.checkpoint

    def start_attempt(self, checkpoint: CheckpointId | None) -> None:
        """Begin an attempt that continues from a checkpoint, or from the beginning (None)."""
        if checkpoint == self._current:
            return
        last = self._generations[-1]
        before = self._cuts.get(self._current) if self._current else None
        last.ends = dict(before.counts) if before is not None else {}
        if before is None and last.base is not None:
            last.ends = dict(last.base.counts)
        base = self._cuts[checkpoint] if checkpoint else None
        self._generations.append(_Generation(base=base))
        self._current = checkpoint

    def _check_hidden(self, entry: Entry, cut: _Cut) -> None:
        seen = [("watch", entry.watermark_ms)]
        if entry.relay:
            seen.append(("relay", entry.relay_watermark_ms))
        for uid, watermark_ms in seen:
            if watermark_ms > cut.watermark_ms(uid):
                message = (
                    f"a checkpoint has the watermark {cut.watermark_ms(uid)} of step {uid}, and "
                    f"entry {entry.count} of key {entry.group} has seen {watermark_ms}"
                )
                raise Violation(message)

    def _check_splits(self, cut: _Cut) -> None:
        before = self._cuts.get(self._current) if self._current else None
        for place, split in cut.splits.items():
            _, topic, number = place
            partition = self._sources.partitions[TopicPartition(topic, number)]
            expected = partition.before(split.offset)
            found = MIN_MS if split.watermark_ms is None else split.watermark_ms
            if found != expected:
                message = (
                    f"a checkpoint has the watermark {found} of {topic}-{number}, where {expected} "
                    f"follows from the records before offset {split.offset}"
                )
                raise Violation(message)
            old = before.splits.get(place) if before is not None else None
            if old is not None and old.idle and old.offset == split.offset and not split.idle:
                message = (
                    f"{topic}-{number} is idle in a checkpoint and active in the next one, and no "
                    "record came"
                )
                raise Violation(message)

    def _check_steps(self, cut: _Cut) -> None:
        sources = self._sources
        known = [
            MIN_MS if each.watermark_ms is None else each.watermark_ms
            for each in cut.splits.values()
        ]
        known += [MIN_MS] * (len(sources.partitions) - len(known))
        highest = max(known) if sources.idles else min(known)
        before = self._cuts.get(self._current) if self._current else None
        for (uid, index), watermark_ms in cut.steps.items():
            if watermark_ms > highest:
                message = (
                    f"a checkpoint has the watermark {watermark_ms} of step {uid}, and the sources "
                    f"are at {highest}"
                )
                raise Violation(message)
            if before is None:
                continue
            if before.attempt == cut.attempt:
                least = before.steps.get((uid, index), MIN_MS)
            else:
                least = before.watermark_ms(uid)
            if watermark_ms < least:
                message = (
                    f"a checkpoint has the watermark {watermark_ms} of step {uid}, subtask {index},"
                    f" and the one before it has {least}"
                )
                raise Violation(message)

    # --- generations ----------------------------------------------------------------------------

    def _known(self) -> set[Log]:
        return {log for generation in self._generations for log in generation.logs}

    def _advance(self, log: Log) -> _Generation:
        """Return the generation of the next entry of a log."""
        while True:
            number = self._at.setdefault(log, 0)
            generation = self._generations[number]
            if generation.ends is None:
                return generation
            if _model(generation, log).count < generation.ends.get(log, 0):
                return generation
            self._at[log] = number + 1
            self._begin(self._generations[number + 1], log)

    def _begin(self, generation: _Generation, log: Log) -> None:
        """Let a log begin with the entries that the base of the generation contains."""
        base = generation.base
        if base is None:
            return
        entries = self._generations[base.generation].logs.get(log, [])
        entries = entries[: base.counts.get(log, 0)]
        generation.logs[log] = list(entries)
        model = _model(generation, log)
        for entry in entries:
            model.follow(entry, self._sources)


def _model(generation: _Generation, log: Log) -> Model:
    if log not in generation.models:
        generation.models[log] = _Relay() if log[0] else _Key()
    return generation.models[log]


def _logs(entry: Entry) -> Iterator[Log]:
    yield False, entry.group
    if entry.relay:
        yield True, entry.relay


def _named(at_ms: int, place: int, name: str) -> str:
    return f"{ORDER[place]} {name}".strip() + f" at {at_ms}"
