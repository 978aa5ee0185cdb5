"""What sinks with `guarantee="at_least_once"` may hold, at any moment and at a checkpoint.

Nothing of theirs is ever undone, so the promise is about each attempt by itself. What an attempt
writes are results from the positions on that it has restored, those of a source partition and key
in order and none twice, with the state that belongs to them: so doubles come by recoveries only,
and nothing from before a checkpoint comes again after it. And a published checkpoint covers nothing
that its attempt has not written before: flushed at the barrier, it is there. What lies behind the
last checkpoint of an attempt may have gaps, where a producer or a process has failed.

`oracle.py` owns it, and sees to the sinks that are exact.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from tidegate.stream_elements import TopicPartition
from tidegate.testing.sim.pipelines import Event, Result, Shape, Sided
from tidegate.testing.sim.result_groups import Group, Violation

Producer = tuple[int, int]
"""Its id and epoch."""
Lane = tuple[str, str, str]
"""Sink, source partition and key."""


class _Place(NamedTuple):
    """Where the event of a result stands."""

    name: str
    origin: TopicPartition
    offset: int


@dataclass(slots=True)
class _Attempt:
    """What one attempt has written."""

    base: Mapping[TopicPartition, int]
    """The positions that it has restored."""
    last: dict[Lane, int] = field(default_factory=dict)
    """By lane: which of its results came last."""
    written: set[tuple[str, str]] = field(default_factory=set)
    """Sinks and names."""
    groups: dict[tuple[str, str], Group] = field(default_factory=dict)


class PlainSinks:
    """Judges the at-least-once sinks of one job; `group_at` counts a group at some positions."""

    def __init__(
        self, shape: Shape, group_at: Callable[[Mapping[TopicPartition, int], str], Group]
    ) -> None:
        self._shape, self._group_at = shape, group_at
        self._lanes: dict[Lane, list[_Place]] = {}
        self._attempts: dict[int, _Attempt] = {}
        self._writers: dict[Producer, int] = {}
        self.due: set[tuple[str, str]] = set()
        """Sinks and names of results that nobody has written since the job was begun anew."""

    def expect(self, origin: TopicPartition, event: Event, offset: int) -> None:
        """An event was committed to a source's partition."""
        for sink in sorted(self._shape.plain):
            lane = (sink, f"{origin.topic}-{origin.partition}", event.key)
            for name in self._shape.sinks[sink](event):
                self._lanes.setdefault(lane, []).append(_Place(name, origin, offset))
                self.due.add((sink, name))

    def begins(self, attempt: int, base: Mapping[TopicPartition, int]) -> None:
        """An attempt has claimed the job, or taken a checkpoint back before it wrote anything."""
        self._attempts[attempt] = _Attempt(base)

    def writes(self, producer: Producer, attempt: int) -> None:
        """A slot of an attempt has a producer."""
        self._writers[producer] = attempt

    def rewind(self, base: Mapping[TopicPartition, int]) -> None:
        """All from these positions on is due, also a second time."""
        self.due = {
            (sink, place.name)
            for (sink, _, _), places in self._lanes.items()
            for place in places
            if place.offset >= base.get(place.origin, 0)
        }

    def judge(self, lane: Lane, result: Result, producer: Producer | None, where: str) -> bool:
        """Whether a record was due; Violation if it may not be there."""
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
        if place.offset < attempt.base.get(place.origin, 0):
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
        """An attempt has published a checkpoint: Violation unless it has written all of it."""
        attempt = self._attempts[number]
        for (sink, _, key), places in self._lanes.items():
            for name, origin, offset in places:
                is_inside = attempt.base.get(origin, 0) <= offset < offsets.get(origin, 0)
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
        """At the end: Violation if anything was never written."""
        for sink, name in sorted(self.due)[:1]:
            message = (
                f"{len(self.due)} results are missing at the end, the first of them {name} in "
                f"{sink}, which is written at least once"
            )
            raise Violation(message)

    def _group(self, attempt: _Attempt, sink: str, group: str) -> Group | None:
        """Both sinks of one row in one, where two share the state."""
        if self._shape.pipeline is Sided:
            place = "both sinks", group
        elif sink in self._shape.stateful:
            place = sink, group
        else:
            return None
        if place not in attempt.groups:
            attempt.groups[place] = self._group_at(attempt.base, group)
        return attempt.groups[place]
