"""The check of pipelines with event time: a model of the timers repeats the log of each key.

Watermarks depend on batches, on time and on faults. So nothing here says when a timer fires. The
rules hold for every interleaving:

1. The entries of a key have the numbers 1, 2, 3, … So no call is lost, and none has happened twice,
   also after a restore or at another parallelism.
2. The watermark that a key sees never goes back, not by a restore either. A checkpoint has a
   watermark of the step that is not behind those that its entries have seen.
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
8. After a drain every event timer has fired. No record of a key comes after a timer that fired
   because the input had ended.

A step with windows has these rules for each key, in every interleaving (`window_model.py`):

9. The firings of a window have the numbers 0, 1, 2, … A merged session continues with
   the sum of those of its parts. Each firing has all records of the one before it, and a new one.
10. Firings on time come in the order of the ends of their windows. A window does not fire after the
   step's watermark is known to have removed it. With `accumulate=False` a firing has no record of
   those before it.
11. A record is in windows or late, and late once. It is late only if a watermark can have removed
   its last window before it came: for its own partition this follows from the records before it.
   With `idle_after`, one partition must make that watermark possible. A record is in all of its
   windows from the first that was still open. So a record within the bound is not late.
12. A record that touches a session that must be open is in it, and not late.
13. A firing on time is not late for a second step with windows.
14. At the end, each record is late, or in all of its windows that the last watermark has closed and
   had not removed before. Sessions that touch were not open at the same time. A global window has
   fired for each number of records that its trigger names.
15. After a drain, the last checkpoint stores no window (`stored_windows.py`).

No order holds between firings and late records, because they come through two channels.

With `with_timestamps` one partition alone can bring a watermark, and no last watermark is sure. So
these runs end with a drain. Records without a usable time come out once each, by a sink of their
own, which `oracle.py` checks.

A published checkpoint has more: the watermark of each partition follows exactly from the records
before its offset. A partition without a new record stays idle. A step's watermark is not ahead of
the partitions, and not behind an earlier checkpoint. A partition that has drained is not read any
further. `stamp_model.py` has the watermarks of `with_timestamps`.

When the user goes back to an older checkpoint, a new generation begins. The log of each key then
continues from what that checkpoint contains.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from tests.simulator.pipelines import Event
from tests.simulator.result_groups import Violation
from tests.simulator.stamp_model import Stamp, check_stamps, stamps_of
from tests.simulator.timed_model import KeyModel, RelayModel, Sources, timer_text
from tests.simulator.timed_pipelines import REJECTED, Entry, EventTime, TimedEvent, has_time
from tests.simulator.window_model import Item, WindowModel
from tests.simulator.window_pipelines import LATE, TOGETHER
from tidegate.checkpoint.manifest import Manifest
from tidegate.ids import CheckpointId
from tidegate.protocol.subtask_snapshot import SourceSplit
from tidegate.stream_elements import MAX_MS, MIN_MS, TopicPartition

Model = KeyModel | RelayModel | WindowModel
Log = tuple[bool, str]
"""A log: whether it is of the second step, and the key."""
WINDOW_STEPS: Final = ("number", "number-wider")
"""The steps that write the entries of the first and of the second windows."""


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
class _Step:
    """The watermark of a step in one subtask, in a published checkpoint."""

    uid: str
    key_groups: range
    watermark_ms: int

    def meets(self, other: _Step) -> bool:
        """Return whether both are of one step and have a key group in common."""
        mine, others = self.key_groups, other.key_groups
        return self.uid == other.uid and mine.start < others.stop and others.start < mine.stop


@dataclass(frozen=True, slots=True)
class _Cut:
    """The content of a published checkpoint."""

    generation: int
    counts: dict[Log, int]
    splits: dict[tuple[str, str, int], SourceSplit]
    ended: frozenset[tuple[str, str, int]]
    """The splits whose sources have drained."""
    steps: tuple[_Step, ...]
    stamps: tuple[Stamp, ...]

    def watermark_ms(self, uid: str) -> int:
        """Return the highest watermark of a step."""
        return max((each.watermark_ms for each in self.steps if each.uid == uid), default=MIN_MS)


class TimedResults:
    """The checker of the log of one job."""

    def __init__(self, event_time: EventTime) -> None:
        self._sources = Sources(event_time)
        self._windows = event_time.windows
        self._twice = event_time.windows is not None and event_time.windows.twice
        self._keys: set[str] = set()
        self._missing: int | None = None
        """The number that `missing` returns, unless something has changed."""
        self._generations = [_Generation()]
        self._at: dict[Log, int] = {}
        """The generation of the last visible entry of each log."""
        self._cuts: dict[CheckpointId, _Cut] = {}
        self._current: CheckpointId | None = None
        """The checkpoint from which the job continues."""
        self._began: CheckpointId | None = None
        """The checkpoint with which the attempt has begun."""
        self.fired = 0
        """The number of visible firings."""

    def expect(self, topic_partition: TopicPartition, event: Event, offset: int) -> None:
        """Add an event that was committed to a partition of a source."""
        if isinstance(event, TimedEvent) and has_time(event):
            self._sources.add(topic_partition, event, offset)
            together = self._windows is not None and self._windows.together
            self._keys.add(TOGETHER if together else event.key)
            self._missing = None

    def judge(self, entry: Entry, where: str) -> int:
        """Check an entry that has become visible. Raise Violation. Return how many records are
        in the log of their key for the first time, if it is one of windows.
        """
        if entry.kind == REJECTED:  # it has no event time, and belongs to no log
            return 0
        self.fired += not entry.name and entry.kind != LATE
        self._missing = None
        accounted = 0
        for log in _logs(entry):
            generation = self._advance(log)
            try:
                accounted += self._model(generation, log).take(entry, self._sources)
            except Violation as violation:
                what = entry.name or f"{entry.timer} {entry.timer_name}".strip()
                if entry.kind:
                    span = f"{entry.start_ms} to {entry.end_ms}"
                    what = f"{entry.kind} {entry.firing or entry.names} {span}"
                message = f"{where}: entry {entry.count} of key {entry.group} ({what}) {violation}"
                raise Violation(message) from None
            generation.logs.setdefault(log, []).append(entry)
        return accounted

    def missing(self) -> int:
        """Return the number of results that are still to come. These are timers that have to fire,
        records that have to be in windows or late, and entries that a rewind expects.
        """
        if self._missing is None:
            self._missing = self._count_missing()
        return self._missing

    def _count_missing(self) -> int:
        last_ms = self._sources.last_ms()
        missing = 0
        for log in self._known():
            generation = self._advance(log)
            model = self._model(generation, log)
            if generation.ends is not None:
                missing += generation.ends.get(log, 0) - model.count
            elif isinstance(model, WindowModel):
                missing += len(model.lacks(self._items(log).values(), last_ms))
            elif isinstance(model, KeyModel):
                missing += sum(at_ms <= last_ms for at_ms in model.timers.values())
                missing += model.alarm_ms is not None
        return missing

    def begin_drain(self) -> None:
        """Note that the last job run may end its input from now on, and then fire all timers."""
        self._sources.drains = True
        self._missing = None

    def complete(self, ended_at: Mapping[TopicPartition, int] | None = None) -> None:
        """Raise Violation if a timer that is due has not fired at the end of the run, or if the log
        of a key's windows does not have all records. After a drain each event timer and each window
        is due, and processing timers need not fire. A job that has drained before the end of its
        sources has read them up to the offsets `ended_at`.
        """
        last_ms = MAX_MS if self._sources.drains else self._sources.last_ms()
        for log in sorted(self._known()):
            model = self._model(self._advance(log), log)
            if isinstance(model, WindowModel):
                self._complete_windows(log, model, last_ms, ended_at)
            if not isinstance(model, KeyModel):
                continue
            first = model.due(last_ms)
            if first is not None:
                message = (
                    f"{timer_text(*first)} of key {log[1]} has not fired at the end, and the "
                    f"watermark is {last_ms}"
                )
                raise Violation(message)
            if model.alarm_ms is not None and not self._sources.drains:
                message = f"the processing timer of key {log[1]} has not fired at the end"
                raise Violation(message)

    def _complete_windows(
        self,
        log: Log,
        model: WindowModel,
        last_ms: int,
        ended_at: Mapping[TopicPartition, int] | None,
    ) -> None:
        items = self._items(log, ended_at)
        try:
            model.complete(items, last_ms, self._sources)
        except Violation as violation:
            message = f"at the end, key {log[1]} of windows {1 + log[0]}: {violation}"
            raise Violation(message) from None

    def _items(
        self, log: Log, ended_at: Mapping[TopicPartition, int] | None = None
    ) -> dict[str, Item]:
        """Return the records that the windows of a key have got."""
        second, key = log
        if not second:
            offsets = self._sources.offsets
            return {
                name: Item(name, event.at_ms, event.amount)
                for name, (place, event) in self._sources.events.items()
                if key in (event.key, TOGETHER)
                and (ended_at is None or offsets[name] < ended_at.get(place, 0))
            }
        found: dict[str, Item] = {}
        for each in self._known():
            if not each[0] and each[1][:1] == key:
                model = self._model(self._advance(each), each)
                if isinstance(model, WindowModel):
                    found |= model.firings
        return found

    # --- checkpoints ----------------------------------------------------------------------------

    def cut(self, manifest: Manifest, hidden: Iterable[Entry]) -> None:
        """Check a published checkpoint. `hidden` has its entries that are not visible yet."""
        splits: dict[tuple[str, str, int], SourceSplit] = {
            (split.source, split.topic, split.partition): split
            for subtask in manifest.subtasks
            for split in subtask.splits
        }
        ended = {
            (split.source, split.topic, split.partition)
            for subtask in manifest.subtasks
            for split in subtask.splits
            if subtask.drained
        }
        steps = tuple(
            _Step(
                uid=keyed.uid,
                key_groups=range(keyed.first_key_group, keyed.last_key_group + 1),
                watermark_ms=MIN_MS if keyed.watermark_ms is None else keyed.watermark_ms,
            )
            for subtask in manifest.subtasks
            for keyed in subtask.keyed
        )
        of_log: dict[Log, list[Entry]] = {log: [] for log in self._known()}
        for entry in hidden:
            for log in () if entry.kind == REJECTED else _logs(entry):
                of_log.setdefault(log, []).append(entry)
        ends = {log: self._end_of(log, entries) for log, entries in of_log.items()}
        number = len(self._generations) - 1
        counts = {log: count for log, (count, _) in ends.items()}
        stamps = stamps_of(manifest.subtasks)
        cut = _Cut(number, counts, splits, frozenset(ended), steps, stamps)
        for _, own in ends.values():
            for entry in own:
                self._check_hidden(entry, cut)
        self._check_splits(cut)
        if self._sources.stamped:
            base = self._cuts[self._began] if self._began else None
            check_stamps(stamps, () if base is None else base.stamps, self._sources)
        self._check_steps(cut)
        self._cuts[manifest.checkpoint] = cut
        self._current = manifest.checkpoint

    def _end_of(self, log: Log, hidden: Iterable[Entry]) -> tuple[int, list[Entry]]:
        """Return how many entries of a log a checkpoint of the last generation contains, and those
        of them that are not visible yet.
        """
        generation = self._advance(log)
        number, count = self._generations.index(generation), self._model(generation, log).count
        own: list[Entry] = []
        for entry in (*hidden, None):
            while (ends := self._generations[number].ends) is not None and count >= ends.get(
                log, 0
            ):
                number += 1
                base = self._generations[number].base
                count = 0 if base is None else base.counts.get(log, 0)
                own = []
            if entry is not None:
                count = entry.relay_count if log[0] and not entry.kind else entry.count
                own.append(entry)
        return count, own

    def start_attempt(self, checkpoint: CheckpointId | None) -> None:
        """Begin an attempt that continues from a checkpoint, or from the beginning (None)."""
        self._missing, self._began = None, checkpoint
        if checkpoint == self._current:
            return
        before = self._before()
        self._generations[-1].ends = {} if before is None else dict(before.counts)
        base = self._cuts[checkpoint] if checkpoint else None
        self._generations.append(_Generation(base=base))
        self._current = checkpoint

    def roll_back(self, checkpoint: CheckpointId | None) -> None:
        """Continue from an older checkpoint, because nothing of the last one became visible."""
        self._current = checkpoint

    def _before(self) -> _Cut | None:
        """Return the checkpoint from which the job continues."""
        return self._cuts[self._current] if self._current else None

    def _check_hidden(self, entry: Entry, cut: _Cut) -> None:
        seen = [(WINDOW_STEPS[entry.stage - 1] if entry.kind else "watch", entry.watermark_ms)]
        if entry.window_watermark_ms is not None:
            seen.append(("windows", entry.window_watermark_ms))
        if entry.stage == 1:
            self._check_covers(entry, cut)
        if entry.relay:
            seen.append(("relay", entry.relay_watermark_ms))
        for uid, watermark_ms in seen:
            if cut.watermark_ms(uid) < watermark_ms < MAX_MS:
                message = (
                    f"a checkpoint has the watermark {cut.watermark_ms(uid)} of step {uid}, and "
                    f"entry {entry.count} of key {entry.group} has seen {watermark_ms}"
                )
                raise Violation(message)

    def _check_covers(self, entry: Entry, cut: _Cut) -> None:
        """Check that the records of an entry are before the offsets of the checkpoint."""
        offsets = {(topic, number): each.offset for (_, topic, number), each in cut.splits.items()}
        for name in entry.names:
            place, _ = self._sources.events[name]
            if self._sources.offsets[name] >= offsets.get((place.topic, place.partition), 0):
                message = f"a checkpoint has a result of {name} from behind it"
                raise Violation(message)

    def _check_splits(self, cut: _Cut) -> None:
        before = self._before()
        for place, split in cut.splits.items():
            _, topic, number = place
            partition = self._sources.partitions[TopicPartition(topic, number)]
            expected = MIN_MS if self._sources.stamped else partition.before(split.offset)
            found = MIN_MS if split.watermark_ms is None else split.watermark_ms
            if found != expected:
                message = (
                    f"a checkpoint has the watermark {found} of {topic}-{number}, where {expected} "
                    f"follows from the records before offset {split.offset}"
                )
                raise Violation(message)
            old = before.splits.get(place) if before is not None else None
            if old is not None and old.offset != split.offset and self._has_ended(place):
                message = f"{topic}-{number} has drained in a checkpoint, and was read further"
                raise Violation(message)
            is_read = split.end_offset is None or split.offset >= split.end_offset
            stays = old is not None and old.idle and old.offset == split.offset and is_read
            if stays and not split.idle:
                message = (
                    f"{topic}-{number} is idle in a checkpoint and active in the next one, and no "
                    "record came"
                )
                raise Violation(message)

    def _has_ended(self, place: tuple[str, str, int]) -> bool:
        before = self._before()
        return before is not None and place in before.ended

    def _check_steps(self, cut: _Cut) -> None:
        sources = self._sources
        known = [
            MIN_MS if each.watermark_ms is None else each.watermark_ms
            for each in cut.splits.values()
        ]
        if sources.stamped:
            known = [
                sources.partitions[each.topic_partition].before(each.offset)
                for each in cut.splits.values()
            ]
        known += [MIN_MS] * (len(sources.partitions) - len(known))
        highest = max(known) if sources.idles or cut.ended else min(known)
        before = self._before()
        for step in cut.steps:
            message = f"a checkpoint has the watermark {step.watermark_ms} of step {step.uid}, and "
            if step.watermark_ms > highest:
                raise Violation(f"{message}the sources are at {highest}")
            older = () if before is None else before.steps
            least = max((each.watermark_ms for each in older if each.meets(step)), default=MIN_MS)
            if step.watermark_ms < least:
                raise Violation(f"{message}the one before it has {least}")

    # --- generations ----------------------------------------------------------------------------

    def _known(self) -> set[Log]:
        known = {log for generation in self._generations for log in generation.logs}
        if self._windows is not None:
            known |= {(False, key) for key in self._keys}
            if self._twice:
                known |= {(True, key[:1]) for key in self._keys}
        return known

    def _advance(self, log: Log) -> _Generation:
        """Return the generation of the next entry of a log."""
        while True:
            number = self._at.setdefault(log, 0)
            generation = self._generations[number]
            if generation.ends is None:
                return generation
            if self._model(generation, log).count < generation.ends.get(log, 0):
                return generation
            self._at[log] = number + 1
            self._begin(self._generations[number + 1], log)

    def _model(self, generation: _Generation, log: Log) -> Model:
        known = generation.models.get(log)
        if known is None:
            if self._windows is not None:
                known = WindowModel(2 if log[0] else 1, self._windows, log[1])
            else:
                known = RelayModel() if log[0] else KeyModel()
            generation.models[log] = known
        return known

    def _begin(self, generation: _Generation, log: Log) -> None:
        """Let a log begin with the entries that the base of the generation contains."""
        base = generation.base
        if base is None:
            return
        entries = self._generations[base.generation].logs.get(log, [])
        entries = entries[: base.counts.get(log, 0)]
        generation.logs[log] = list(entries)
        model = self._model(generation, log)
        for entry in entries:
            model.follow(entry, self._sources)


def _logs(entry: Entry) -> Iterator[Log]:
    if entry.kind:
        yield entry.stage == 2, entry.group
        return
    yield False, entry.group
    if entry.relay:
        yield True, entry.relay
