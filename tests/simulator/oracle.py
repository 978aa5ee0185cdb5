"""The oracle: it checks the output that a `read_committed` reader of the job's sinks can see.

For each sink and each (source partition, key), the results must be in the order of their events,
without a gap from the first on and without duplicates. Then no result is lost before a visible one,
no result is duplicated, and a recovery never removes a visible result. After a keyed step, count
and total must also continue from the last visible result of the group. Then the state held each
event once, in any order in which the partitions were merged. At the end no result may be missing,
except those that were stated to be lost.

The oracle reads the partitions of the fake Kafka directly, each time a marker is written. It shares
no code with the product. When the user restarts a job from an older checkpoint, a new *generation*
begins (`rewind`). All results after the offsets of that checkpoint must then appear once more, and
no others. When a checkpoint is published, the oracle also checks the results that are not visible
yet (`cut`). A checkpoint whose restore would lose or duplicate a result is a bug even if no job
restores it.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from typing import NamedTuple

import msgspec

from tests.simulator.at_least_once_sinks import AtLeastOnceSinks
from tests.simulator.kafka.log import Marker, PartitionLog, StoredRecord
from tests.simulator.pipelines import OUT_A, Event, Result, Shape, Sided
from tests.simulator.result_groups import Group, Violation
from tests.simulator.timed_pipelines import Entry, EventTime
from tests.simulator.timed_results import TimedResults
from tidegate.checkpoint.manifest import Manifest
from tidegate.stream_elements import TopicPartition


class _Due(NamedTuple):
    """A result that is not visible yet."""

    name: str
    generation: int


class Oracle:
    """The checker of the output of one job."""

    def __init__(self, shape: Shape, event_time: EventTime | None = None) -> None:
        self._shape = shape
        self.timed = None if event_time is None else TimedResults(event_time)
        """The checker of a pipeline with event time."""
        self._exact = tuple(sink for sink in shape.sinks if sink not in shape.plain)
        self._lanes: dict[tuple[str, str, str], deque[_Due]] = {}
        """Results that are not visible yet, by sink, source partition and key."""
        self._groups: dict[tuple[int, str, str], Group] = {}
        """Checked groups, by generation, sink and group name."""
        self._seen: dict[TopicPartition, int] = {}
        self._offsets: dict[str, tuple[TopicPartition, int]] = {}
        """Partition and offset of each event, by its name."""
        self._events: list[tuple[TopicPartition, int, Event]] = []
        self._recreated: set[str] = set()
        """Recreated topics. The job may read them only after it starts again without state."""
        self._held: list[tuple[TopicPartition, int, Event]] = []
        """Events of the recreated topics since their recreation."""
        self._bases: list[Mapping[TopicPartition, int]] = [{}]
        """Start offsets of each generation."""
        self._published = 0
        """Generation of the last published checkpoint."""
        self.plain = AtLeastOnceSinks(shape, self._group_at)
        self._missing = 0
        self.visible = 0
        self.accepted_losses = 0
        """Number of results whose loss was stated and expected."""

    @property
    def missing(self) -> int:
        """Number of results that are still missing."""
        records = self._missing + len(self.plain.due)
        return records + (self.timed.missing() if self.timed is not None else 0)

    def expect(self, topic_partition: TopicPartition, event: Event, offset: int) -> None:
        """Add an event that was committed to a partition of a source."""
        self._offsets[event.name] = topic_partition, offset
        if self.timed is not None:
            self.timed.expect(topic_partition, event, offset)
        if topic_partition.topic in self._recreated:
            self._held.append((topic_partition, offset, event))
            return
        self._events.append((topic_partition, offset, event))
        self._expect_results(topic_partition, event)
        self.plain.expect(topic_partition, event, offset)

    def recreated(self, topic: str) -> None:
        """Record that a topic was deleted and created again.

        The job no longer reads events of the old topic. Events of the new topic are due after the
        job starts again without its checkpoint.
        """
        self._recreated.add(topic)
        self._events = [event for event in self._events if event[0].topic != topic]
        self._held = [event for event in self._held if event[0].topic != topic]

    def _expect_results(self, topic_partition: TopicPartition, event: Event) -> None:
        generation = len(self._bases) - 1
        for sink in self._exact:
            names = self._shape.sinks[sink](event)
            lane = (sink, f"{topic_partition.topic}-{topic_partition.partition}", event.key)
            due = self._lanes.setdefault(lane, deque())
            due.extend(_Due(name, generation) for name in names)
            self._missing += len(names)

    def rewind(
        self, covered: Mapping[TopicPartition, int], base: Mapping[TopicPartition, int]
    ) -> None:
        """Begin a new generation: the job starts again from the offsets `base`.

        Its last checkpoint covers all events before `covered`. The results of that checkpoint still
        become visible. Then all results from `base` on appear, even if they were visible before.
        """
        for lane, due in self._lanes.items():
            self._lanes[lane] = deque(
                each
                for each in due
                if each.generation <= self._published and self._is_before(covered, each.name)
            )
        self._missing = sum(map(len, self._lanes.values()))
        self._bases.append(base)
        self._recreated.clear()
        self._events += self._held
        self._held = []
        for topic_partition, offset, event in self._events:
            if offset >= base.get(topic_partition, 0):
                self._expect_results(topic_partition, event)
        self.plain.rewind(base)

    def check_partition(self, log: PartitionLog) -> None:
        """Check the records of a partition that have become visible. Raise Violation."""
        topic_partition = log.topic_partition
        if topic_partition.topic not in self._shape.sinks:
            return
        seen, end = self._seen.get(topic_partition, 0), log.last_stable
        if seen >= end:
            return
        entries = log.everything()
        for offset in range(seen, end):
            entry = entries[offset]
            if isinstance(entry, Marker) or entry.span.hidden:
                continue
            result, where = (
                _result(entry),
                f"{topic_partition.topic}-{topic_partition.partition} offset {offset}",
            )
            if self.timed is not None:
                self.visible += self.timed.judge(_entry(entry), where)
            if topic_partition.topic in self._exact:
                if result.name:
                    self._judge(topic_partition, result, where)
            else:
                lane = _lane(topic_partition, result)
                self.visible += self.plain.judge(lane, result, entry.span.producer, where)
        self._seen[topic_partition] = end

    def check_at_least_once_sinks(self, logs: Iterable[PartitionLog]) -> None:
        """Check the new records of all at-least-once sinks. Raise Violation."""
        if self._shape.plain:
            for log in logs:
                if log.topic_partition.topic in self._shape.plain:
                    self.check_partition(log)

    def cut(
        self,
        logs: Iterable[PartitionLog],
        offsets: Mapping[TopicPartition, int],
        producers: AbstractSet[tuple[int, int]],
        manifest: Manifest | None = None,
    ) -> None:
        """Check a checkpoint that was published. Raise Violation if it is not a consistent cut.

        The results of events before its `offsets` must be visible or written by `producers` (id and
        epoch). These are the producers that the checkpoint names, and those of committed
        transactions. Other results must not be. A transaction that the checkpoint names may have
        timed out. The loss is checked when it is stated, or at the end. `manifest` is that of the
        checkpoint.
        """
        self._published = generation = len(self._bases) - 1
        earlier = Counter(
            (sink, each.name)
            for (sink, _, _), due in self._lanes.items()
            for each in due
            if each.generation < generation
        )
        hidden = list(self._hidden(logs, producers))
        inside: set[tuple[str, str]] = set()
        for topic, stored in hidden:
            place = topic, _result(stored).name
            if not place[1]:  # the result of a timer
                continue
            if earlier[place]:  # committed before the generation began
                earlier[place] -= 1
                continue
            inside.add(place)
            if not self._is_before(offsets, place[1]):
                message = f"a checkpoint names a transaction with {place[1]} from behind it"
                raise Violation(message)
        self._check_nothing_missing(offsets, inside, earlier)
        if self.timed is not None and manifest is not None:
            self.timed.cut(manifest, [_entry(stored) for _, stored in hidden])

    def _hidden(
        self, logs: Iterable[PartitionLog], producers: AbstractSet[tuple[int, int]]
    ) -> Iterator[tuple[str, StoredRecord]]:
        """Yield the topic and the record of all results by these producers that are still due."""
        for log in logs:
            topic_partition = log.topic_partition
            if topic_partition.topic not in self._exact:
                continue
            seen = self._seen.get(topic_partition, 0)
            for offset, entry in enumerate(log.everything()):
                if isinstance(entry, Marker) or entry.span.producer not in producers:
                    continue
                if offset >= seen or entry.span.hidden:  # otherwise it is visible
                    yield topic_partition.topic, entry

    def _check_nothing_missing(
        self,
        offsets: Mapping[TopicPartition, int],
        inside: AbstractSet[tuple[str, str]],
        earlier: Counter[tuple[str, str]],
    ) -> None:
        for (sink, _, key), due in self._lanes.items():
            for name, generation in due:
                if generation < self._published:
                    lacks = earlier[sink, name] > 0
                elif self._is_before(offsets, name):
                    lacks = (sink, name) not in inside
                else:
                    break  # all following events are after the offsets, too
                if lacks:
                    message = f"a checkpoint is behind {name} (key {key}), and lacks it in {sink}"
                    raise Violation(message)

    def _is_before(self, offsets: Mapping[TopicPartition, int], result: str) -> bool:
        topic_partition, offset = self._offsets[result.partition("/")[0]]
        return offset < offsets.get(topic_partition, 0)

    def accept_data_loss(
        self, logs: Iterable[PartitionLog], producers: AbstractSet[tuple[int, int]]
    ) -> None:
        """Accept the stated loss of all results written by these producers (id and epoch).

        These results will not appear. The counts of their groups continue after them.
        """
        for log in logs:
            if log.topic_partition.topic not in self._exact:
                continue
            for entry in log.everything():
                if not isinstance(entry, Marker) and entry.span.producer in producers:
                    self._accept_data_loss(log.topic_partition, _result(entry))

    def _accept_data_loss(self, topic_partition: TopicPartition, result: Result) -> None:
        lane = self._lanes.get(_lane(topic_partition, result), deque())
        lost = next((each for each in lane if each.name == result.name), None)
        if lost is None:
            message = f"{result.name} was stated to be lost, and is visible or belongs nowhere"
            raise Violation(message)
        lane.remove(lost)
        self._missing -= 1
        self.accepted_losses += 1
        group = self._group(topic_partition, result, lost.generation)
        if group is not None:
            group.pass_over(result)

    def complete(
        self, *, fires: bool = True, ended_at: Mapping[TopicPartition, int] | None = None
    ) -> None:
        """Raise Violation if a result is still missing at the end of the run.

        With `fires`, this also holds for the timers that are due. A job that has drained has read
        its sources up to the offsets `ended_at`.
        """
        for (sink, partition, key), due in self._lanes.items():
            if due and (ended_at is None or self._is_before(ended_at, due[0].name)):
                message = (
                    f"{self._missing} results are missing at the end, the first of them "
                    f"{due[0].name} (key {key} of {partition}) in {sink}"
                )
                raise Violation(message)
        self.plain.complete()
        if self.timed is not None and fires:
            self.timed.complete(ended_at)

    def _judge(self, topic_partition: TopicPartition, result: Result, where: str) -> None:
        lane = self._lanes.get(_lane(topic_partition, result))
        if not lane or lane[0].name != result.name:
            expected = lane[0].name if lane else "nothing more"
            skipped = any(each.name == result.name for each in lane or ())
            what = "was skipped" if skipped else "stands there a second time"
            message = (
                f"{where}: {result.name} of key {result.key}, where {expected} must come next: "
                f"{expected if what == 'was skipped' else result.name} {what}"
            )
            raise Violation(message)
        generation = lane.popleft().generation
        self._missing -= 1
        self.visible += 1
        group = self._group(topic_partition, result, generation)
        if group is None:
            return
        if self._shape.pipeline is Sided:
            # The results of the two sinks become visible one shortly after the other.
            group.take_in_any_order(result, where)
        else:
            group.take(result, where)

    def _group(
        self, topic_partition: TopicPartition, result: Result, generation: int
    ) -> Group | None:
        """Return the group of a result, or None if its sink is stateless.

        Two sinks that share one state have one group.
        """
        if self._shape.pipeline is Sided:
            sink = OUT_A
        elif topic_partition.topic in self._shape.stateful:
            sink = topic_partition.topic
        else:
            return None
        place = generation, sink, result.group
        if place not in self._groups:
            self._groups[place] = self._group_at(self._bases[generation], result.group)
        return self._groups[place]

    def _group_at(self, base: Mapping[TopicPartition, int], group: str) -> Group:
        """Return the group as a checkpoint at these offsets holds it."""
        amounts = [
            event.amount
            for topic_partition, offset, event in self._events
            if offset < base.get(topic_partition, 0) and self._shape.group(event) == group
        ]
        return Group(len(amounts), sum(amounts))


def _result(entry: StoredRecord) -> Result:
    return msgspec.json.decode(entry.value() or b"", type=Result)


def _entry(entry: StoredRecord) -> Entry:
    return msgspec.json.decode(entry.value() or b"", type=Entry)


def _lane(topic_partition: TopicPartition, result: Result) -> tuple[str, str, str]:
    return topic_partition.topic, result.name.rsplit(":", 1)[0], result.key
