"""What may be visible, at any moment, to a `read_committed` reader of a simulated job's sinks.

For each sink and each (source partition, key) the results must stand in the order of their events,
without a gap from the first on and none twice: so nothing is lost before something that is visible,
nothing doubles, and what is visible once is never taken back by a recovery. Behind a keyed step the
count and the total must moreover go on from the last visible result of the group: so the state that
wrote it held each event once, in whatever order partitions came together. At the end nothing may
be missing.

It looks at the partitions of the fake Kafka itself, each time a marker was written, and shares no
code with what it judges.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

import msgspec

from tidegate.elements import Origin
from tidegate.testing.sim.kafka.log import Marker, PartitionLog
from tidegate.testing.sim.pipelines import OUT_A, Event, Result, Shape, Sided


class Violation(Exception):
    """An invariant does not hold."""


@dataclass(slots=True)
class _Group:
    """What the last visible results of a group said."""

    count: int = 0
    total: int = 0
    ahead: dict[int, Result] = field(default_factory=dict)
    """Where two sinks share one count: results that became visible before those they follow."""


class Oracle:
    """Judges the outputs of one job."""

    def __init__(self, shape: Shape) -> None:
        self._shape = shape
        self._lanes: dict[tuple[str, str, str], deque[str]] = {}
        """By sink, source partition and key: the names of results that are not visible yet."""
        self._groups: dict[tuple[str, str], _Group] = {}
        self._seen: dict[Origin, int] = {}
        self.missing = 0
        self.visible = 0

    def expect(self, origin: Origin, event: Event) -> None:
        """An event was committed to a source's partition."""
        for sink, names_of in self._shape.sinks.items():
            names = names_of(event)
            lane = (sink, f"{origin.topic}-{origin.partition}", event.key)
            self._lanes.setdefault(lane, deque()).extend(names)
            self.missing += len(names)

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
            result = msgspec.json.decode(entry.value() or b"", type=Result)
            self._judge(origin, result, f"{origin.topic}-{origin.partition} offset {offset}")
        self._seen[origin] = end

    def complete(self) -> None:
        """At the end: Violation if anything is missing."""
        for (sink, partition, key), names in self._lanes.items():
            if names:
                message = (
                    f"{self.missing} results are missing at the end, the first of them "
                    f"{names[0]} (key {key} of {partition}) in {sink}"
                )
                raise Violation(message)

    def _judge(self, origin: Origin, result: Result, where: str) -> None:
        partition = result.name.rsplit(":", 1)[0]
        lane = self._lanes.get((origin.topic, partition, result.key))
        if not lane or lane[0] != result.name:
            expected = lane[0] if lane else "nothing more"
            what = "was skipped" if lane and result.name in lane else "stands there a second time"
            message = (
                f"{where}: {result.name} of key {result.key}, where {expected} must come next: "
                f"{expected if what == 'was skipped' else result.name} {what}"
            )
            raise Violation(message)
        lane.popleft()
        self.missing -= 1
        self.visible += 1
        if self._shape.pipeline is Sided:
            self._count_together(result, where)
        elif origin.topic in self._shape.stateful:
            group = self._groups.setdefault((origin.topic, result.group), _Group())
            _go_on(group, result, where)

    def _count_together(self, result: Result, where: str) -> None:
        """Both sinks' results of a group have one row of counts; two sinks become visible one
        shortly after the other.
        """
        group = self._groups.setdefault((OUT_A, result.group), _Group())
        if result.count <= group.count or result.count in group.ahead:
            message = f"{where}: count {result.count} of group {result.group} for a second time"
            raise Violation(message)
        group.ahead[result.count] = result
        while (following := group.ahead.pop(group.count + 1, None)) is not None:
            _go_on(group, following, where)


def _go_on(group: _Group, result: Result, where: str) -> None:
    count, total = group.count + 1, group.total + result.amount
    if (result.count, result.total) != (count, total):
        message = (
            f"{where}: {result.name} says count {result.count} and total {result.total} of group "
            f"{result.group}, where {count} and {total} follow"
        )
        raise Violation(message)
    group.count, group.total = count, total
