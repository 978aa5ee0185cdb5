"""The check of sinks with `guarantee="at_least_once"`, at any time and at a checkpoint.

Output of these sinks is never undone, so the guarantee holds for each attempt separately. An
attempt writes results only from the offsets that it has restored. It writes the results of a source
partition and key in order, none twice, and with the matching state. Therefore duplicates come only
from recoveries, and no result from before a checkpoint is written again after it. All results that
a published checkpoint covers were written before by its attempt, because sinks flush at the
barrier. After the last checkpoint of an attempt the output may have gaps, if a producer or a
process has failed.

`oracle.py` owns this checker, and checks the exactly-once sinks itself.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from tests.simulator.pipelines import Event, Result, Shape, Sided
from tests.simulator.result_groups import Group, Violation
from tidegate.stream_elements import TopicPartition

Producer = tuple[int, int]
"""A producer: its producer id and epoch."""
Lane = tuple[str, str, str]
"""A lane: sink topic, source partition and key."""


class _Place(NamedTuple):
    """The name of a result, and the partition and offset of its event."""

    name: str
    topic_partition: TopicPartition
    offset: int


@dataclass(slots=True)
class _Attempt:
    """The results that one attempt has written."""

    base: Mapping[TopicPartition, int]
    """Offsets that the attempt has restored."""
    last: dict[Lane, int] = field(default_factory=dict)
    """Index of the last written result of each lane."""
    written: set[tuple[str, str]] = field(default_factory=set)
    """The sink and the name of each written result."""
    groups: dict[tuple[str, str], Group] = field(default_factory=dict)


class AtLeastOnceSinks:
    """The checker of the at-least-once sinks of one job.

    `group_at` returns the state of a group at given offsets.
    """

    def __init__(
        self, shape: Shape, group_at: Callable[[Mapping[TopicPartition, int], str], Group]
    ) -> None:
        self._shape, self._group_at = shape, group_at
        self._lanes: dict[Lane, list[_Place]] = {}
        self._attempts: dict[int, _Attempt] = {}
        self._writers: dict[Producer, int] = {}
        self.due: set[tuple[str, str]] = set()
        """The sink and the name of each result not written since the job last started again."""

    def expect(self, topic_partition: TopicPartition, event: Event, offset: int) -> None:
        """Add an event that was committed to a partition of a source."""
        for sink in sorted(self._shape.plain):
            lane = (sink, f"{topic_partition.topic}-{topic_partition.partition}", event.key)
            for name in self._shape.sinks[sink](event):
                self._lanes.setdefault(lane, []).append(_Place(name, topic_partition, offset))
                self.due.add((sink, name))

    def start_attempt(self, attempt: int, base: Mapping[TopicPartition, int]) -> None:
        """Set the restored offsets of an attempt.

        The attempt has claimed the job, or has rolled back a checkpoint before it wrote anything.
        """
        self._attempts[attempt] = _Attempt(base)

    def record_producer(self, producer: Producer, attempt: int) -> None:
        """Record that a slot of an attempt has made a producer."""
        self._writers[producer] = attempt

    def rewind(self, base: Mapping[TopicPartition, int]) -> None:
        """Expect all results from these offsets on, also if they were written before."""
        self.due = {
            (sink, place.name)
            for (sink, _, _), places in self._lanes.items()
            for place in places
            if place.offset >= base.get(place.topic_partition, 0)
        }

    def judge(self, lane: Lane, result: Result, producer: Producer | None, where: str) -> bool:
        """Return whether a record was due. Raise Violation if it is not allowed."""
        number = self._writers.get(producer) if producer else None
        if number is None:
            raise Violation(f"{where}: {result.name} is of a producer that no slot has made")
        attempt, places = self._attempts[number], self._lanes.get(lane, [])
        at = next((at for at, place in enumerate(places) if place.name == result.name), None)
        if at is None:
            raise Violation(
                f"{where}: {result.name} of key {result.key}, which no event has caused"
            )
        place, last = places[at], attempt.last.get(lane, -1)
        what = f"{where}: attempt {number} has written {result.name} of key {result.key}"
        if place.offset < attempt.base.get(place.topic_partition, 0):
            raise Violation(f"{what}, from before what it has restored")
        if at <= last:
            raise Violation(f"{what} after {places[last].name}")
        attempt.last[lane] = at
        sink = lane[0]
        attempt.written.add((sink, result.name))
        group = self._group(attempt, sink, result.group)
        if group is not None:
            group.take_in_any_order(result, where)
        was_due = (sink, result.name) in self.due
        self.due.discard((sink, result.name))
        return was_due

    def cut(self, number: int, offsets: Mapping[TopicPartition, int]) -> None:
        """Check a checkpoint that an attempt has published.

        Raise Violation unless the attempt has written all results that the checkpoint covers.
        """
        attempt = self._attempts[number]
        for (sink, _, key), places in self._lanes.items():
            for name, topic_partition, offset in places:
                is_inside = (
                    attempt.base.get(topic_partition, 0) <= offset < offsets.get(topic_partition, 0)
                )
                if is_inside and (sink, name) not in attempt.written:
                    message = f"a checkpoint is behind {name} (key {key}), and lacks it in {sink}"
                    raise Violation(message)
        for (sink, name), group in attempt.groups.items():
            covered = self._group_at(offsets, name).count
            if group.count < covered:
                message = (
                    f"a checkpoint covers {covered} of group {name}, and {sink} has counted "
                    f"{group.count}"
                )
                raise Violation(message)

    def complete(self) -> None:
        """Raise Violation if a result is still missing at the end of the run."""
        for sink, name in sorted(self.due)[:1]:
            message = (
                f"{len(self.due)} results are missing at the end, the first of them {name} in "
                f"{sink}, which is written at least once"
            )
            raise Violation(message)

    def _group(self, attempt: _Attempt, sink: str, group: str) -> Group | None:
        """Return the group of a result, or None if its sink is stateless.

        Two sinks that share one state have one group.
        """
        if self._shape.pipeline is Sided:
            place = "both sinks", group
        elif sink in self._shape.stateful:
            place = sink, group
        else:
            return None
        if place not in attempt.groups:
            attempt.groups[place] = self._group_at(attempt.base, group)
        return attempt.groups[place]
