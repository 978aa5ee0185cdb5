"""What may be visible, at any moment, to a `read_committed` reader of a simulated job's sinks.

For each sink and each (source partition, key) the results must stand in the order of their events,
without a gap from the first on and none twice: so nothing is lost before something that is visible,
nothing doubles, and what is visible once is never taken back by a recovery. Behind a keyed step the
count and the total must moreover go on from the last visible result of the group: so the state that
wrote it held each event once, in whatever order partitions came together. At the end nothing may
be missing but what was stated to be lost.

It looks at the partitions of the fake Kafka itself, each time a marker was written, and shares no
code with what it judges. A job that is begun anew from an older checkpoint, by hand, is a new
*generation* (`rewind`): what stands behind that checkpoint's positions must come once more, all of
it and nothing else. When a checkpoint is published it looks at what is not visible yet, too
(`cut`): what a restore would lose or double is a bug also where nobody restores.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Mapping
from collections.abc import Set as AbstractSet
from typing import NamedTuple

import msgspec

from tidegate.stream_elements import TopicPartition
from tidegate.testing.sim.at_least_once_sinks import PlainSinks
from tidegate.testing.sim.kafka.log import Marker, PartitionLog, StoredRecord
from tidegate.testing.sim.pipelines import OUT_A, Event, Result, Shape, Sided
from tidegate.testing.sim.result_groups import Group, Violation


class _Due(NamedTuple):
    """A result that is not visible yet."""

    name: str
    generation: int


class Oracle:
    """Judges the outputs of one job."""

    def __init__(self, shape: Shape) -> None:
        self._shape = shape
        self._exact = tuple(sink for sink in shape.sinks if sink not in shape.plain)
        self._lanes: dict[tuple[str, str, str], deque[_Due]] = {}
        """By sink, source partition and key: results that are not visible yet."""
        self._groups: dict[tuple[int, str, str], Group] = {}
        """By generation, sink and group."""
        self._seen: dict[TopicPartition, int] = {}
        self._offsets: dict[str, tuple[TopicPartition, int]] = {}
        """By event: where it stands."""
        self._events: list[tuple[TopicPartition, int, Event]] = []
        self._recreated: set[str] = set()
        """Topics that only a job that is begun anew may read."""
        self._held: list[tuple[TopicPartition, int, Event]] = []
        """Their events since then."""
        self._bases: list[Mapping[TopicPartition, int]] = [{}]
        """By generation: the positions that it began with."""
        self._published = 0
        """The generation of the last checkpoint."""
        self.plain = PlainSinks(shape, self._group_at)
        self._missing = 0
        self.visible = 0
        self.forgiven = 0
        """Results whose loss was stated by right."""

    @property
    def missing(self) -> int:
        """Results that are still to come."""
        return self._missing + len(self.plain.due)

    def expect(self, origin: TopicPartition, event: Event, offset: int) -> None:
        """An event was committed to a source's partition."""
        self._offsets[event.name] = origin, offset
        if origin.topic in self._recreated:
            self._held.append((origin, offset, event))
            return
        self._events.append((origin, offset, event))
        self._is_due(origin, event)
        self.plain.expect(origin, event, offset)

    def recreated(self, topic: str) -> None:
        """A topic was deleted and created again. No event of the old one is read any more, and
        those of the new one are due once the job is begun anew without its checkpoint.
        """
        self._recreated.add(topic)
        self._events = [event for event in self._events if event[0].topic != topic]
        self._held = [event for event in self._held if event[0].topic != topic]

    def _is_due(self, origin: TopicPartition, event: Event) -> None:
        generation = len(self._bases) - 1
        for sink in self._exact:
            names = self._shape.sinks[sink](event)
            lane = (sink, f"{origin.topic}-{origin.partition}", event.key)
            due = self._lanes.setdefault(lane, deque())
            due.extend(_Due(name, generation) for name in names)
            self._missing += len(names)

    def rewind(
        self, covered: Mapping[TopicPartition, int], base: Mapping[TopicPartition, int]
    ) -> None:
        """The job begins anew from `base`, where its last checkpoint covers all before `covered`:
        what that one holds becomes visible yet, then all from `base` on, also a second time.
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
        for origin, offset, event in self._events:
            if offset >= base.get(origin, 0):
                self._is_due(origin, event)
        self.plain.rewind(base)

    def look(self, log: PartitionLog) -> None:
        """Judge what has become visible in a partition; Violation."""
        origin = log.origin
        if origin.topic not in self._shape.sinks:
            return
        seen, end = self._seen.get(origin, 0), log.last_stable
        if seen >= end:
            return
        entries = log.everything()
        for offset in range(seen, end):
            entry = entries[offset]
            if isinstance(entry, Marker) or entry.span.hidden:
                continue
            result, where = _result(entry), f"{origin.topic}-{origin.partition} offset {offset}"
            if origin.topic in self._exact:
                self._judge(origin, result, where)
            else:
                lane = _lane(origin, result)
                self.visible += self.plain.judge(lane, result, entry.span.producer, where)
        self._seen[origin] = end

    def look_at_plain_sinks(self, logs: Iterable[PartitionLog]) -> None:
        """The same for all that is written at least once."""
        if self._shape.plain:
            for log in logs:
                if log.origin.topic in self._shape.plain:
                    self.look(log)

    def cut(
        self,
        logs: Iterable[PartitionLog],
        offsets: Mapping[TopicPartition, int],
        producers: AbstractSet[tuple[int, int]],
    ) -> None:
        """A checkpoint becomes what the job stands on: Violation unless it cuts all results in two.

        Results of events before its `offsets` are visible, or written by `producers` (id and
        epoch): those that it names, and those that are committed already. Others are not. What it
        names may have timed out meanwhile: its loss is judged when it is stated, or at the end.
        """
        self._published = generation = len(self._bases) - 1
        earlier = Counter(
            (sink, each.name)
            for (sink, _, _), due in self._lanes.items()
            for each in due
            if each.generation < generation
        )
        inside: set[tuple[str, str]] = set()
        for log in logs:
            origin = log.origin
            if origin.topic not in self._exact:
                continue
            seen = self._seen.get(origin, 0)
            for offset, entry in enumerate(log.everything()):
                if isinstance(entry, Marker) or entry.span.producer not in producers:
                    continue
                if offset < seen and not entry.span.hidden:
                    continue  # it is visible, and due no more
                place = origin.topic, _result(entry).name
                if earlier[place]:  # committed before the generation began
                    earlier[place] -= 1
                    continue
                inside.add(place)
                if not self._is_before(offsets, place[1]):
                    message = f"a checkpoint names a transaction with {place[1]} from behind it"
                    raise Violation(message)
        self._nothing_lacks(offsets, inside, earlier)

    def _nothing_lacks(
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
                    break  # as are all that follow
                if lacks:
                    message = f"a checkpoint is behind {name} (key {key}), and lacks it in {sink}"
                    raise Violation(message)

    def _is_before(self, offsets: Mapping[TopicPartition, int], result: str) -> bool:
        origin, offset = self._offsets[result.partition("/")[0]]
        return offset < offsets.get(origin, 0)

    def forgive(
        self, logs: Iterable[PartitionLog], producers: AbstractSet[tuple[int, int]]
    ) -> None:
        """The loss of what these producers (id and epoch) have written was stated: its results will
        not appear, and whatever counts them goes on behind them.
        """
        for log in logs:
            if log.origin.topic not in self._exact:
                continue
            for entry in log.everything():
                if not isinstance(entry, Marker) and entry.span.producer in producers:
                    self._forgive(log.origin, _result(entry))

    def _forgive(self, origin: TopicPartition, result: Result) -> None:
        lane = self._lanes.get(_lane(origin, result), deque())
        lost = next((each for each in lane if each.name == result.name), None)
        if lost is None:
            message = f"{result.name} was stated to be lost, and is visible or belongs nowhere"
            raise Violation(message)
        lane.remove(lost)
        self._missing -= 1
        self.forgiven += 1
        group = self._group(origin, result, lost.generation)
        if group is not None:
            group.pass_over(result)

    def complete(self) -> None:
        """At the end: Violation if anything is missing."""
        for (sink, partition, key), due in self._lanes.items():
            if due:
                message = (
                    f"{self._missing} results are missing at the end, the first of them "
                    f"{due[0].name} (key {key} of {partition}) in {sink}"
                )
                raise Violation(message)
        self.plain.complete()

    def _judge(self, origin: TopicPartition, result: Result, where: str) -> None:
        lane = self._lanes.get(_lane(origin, result))
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
        group = self._group(origin, result, generation)
        if group is None:
            return
        if self._shape.pipeline is Sided:
            # Two sinks become visible one shortly after the other.
            group.take_in_any_order(result, where)
        else:
            group.take(result, where)

    def _group(self, origin: TopicPartition, result: Result, generation: int) -> Group | None:
        """Where results are counted: those of both sinks in one row, where two share the state."""
        if self._shape.pipeline is Sided:
            sink = OUT_A
        elif origin.topic in self._shape.stateful:
            sink = origin.topic
        else:
            return None
        place = generation, sink, result.group
        if place not in self._groups:
            self._groups[place] = self._group_at(self._bases[generation], result.group)
        return self._groups[place]

    def _group_at(self, base: Mapping[TopicPartition, int], group: str) -> Group:
        """As a checkpoint at these positions holds it."""
        amounts = [
            event.amount
            for origin, offset, event in self._events
            if offset < base.get(origin, 0) and self._shape.group(event) == group
        ]
        return Group(len(amounts), sum(amounts))


def _result(entry: StoredRecord) -> Result:
    return msgspec.json.decode(entry.value() or b"", type=Result)


def _lane(origin: TopicPartition, result: Result) -> tuple[str, str, str]:
    return origin.topic, result.name.rsplit(":", 1)[0], result.key
