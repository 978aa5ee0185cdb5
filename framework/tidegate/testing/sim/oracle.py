"""What may be visible, at any moment, to a `read_committed` reader of a simulated job's sinks.

For each sink and each (source partition, key) the results must stand in the order of their events,
without a gap from the first on and none twice: so nothing is lost before something that is visible,
nothing doubles, and what is visible once is never taken back by a recovery. Behind a keyed step the
count and the total must moreover go on from the last visible result of the group: so the state that
wrote it held each event once, in whatever order partitions came together. At the end nothing may
be missing but what was stated to be lost.

It looks at the partitions of the fake Kafka itself, each time a marker was written, and shares no
code with what it judges. When a checkpoint is published it looks at what is not visible yet, too
(`cut`): what a restore would lose or double is a bug also where nobody restores.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field

import msgspec

from tidegate.elements import Origin
from tidegate.testing.sim.kafka.log import Marker, PartitionLog, StoredRecord
from tidegate.testing.sim.pipelines import OUT_A, Event, Result, Shape, Sided


class Violation(Exception):
    """An invariant does not hold."""


@dataclass(slots=True)
class _Group:
    """What the last visible results of a group said."""

    count: int = 0
    total: int = 0
    ahead: dict[int, Result] = field(default_factory=dict)
    """Results that came before those they follow: of two sinks with one count, and lost ones."""


class Oracle:
    """Judges the outputs of one job."""

    def __init__(self, shape: Shape) -> None:
        self._shape = shape
        self._lanes: dict[tuple[str, str, str], deque[str]] = {}
        """By sink, source partition and key: the names of results that are not visible yet."""
        self._groups: dict[tuple[str, str], _Group] = {}
        self._seen: dict[Origin, int] = {}
        self._offsets: dict[str, tuple[Origin, int]] = {}
        """By event: where it stands."""
        self.missing = 0
        self.visible = 0
        self.forgiven = 0
        """Results whose loss was stated by right."""

    def expect(self, origin: Origin, event: Event, offset: int) -> None:
        """An event was committed to a source's partition."""
        self._offsets[event.name] = origin, offset
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
            self._judge(
                origin, _result(entry), f"{origin.topic}-{origin.partition} offset {offset}"
            )
        self._seen[origin] = end

    def cut(
        self,
        logs: Iterable[PartitionLog],
        offsets: Mapping[Origin, int],
        producers: AbstractSet[tuple[int, int]],
    ) -> None:
        """A checkpoint becomes what the job stands on: Violation unless it cuts all results in two.

        Results of events before its `offsets` are visible, or written by `producers` (id and
        epoch): those that it names, and those that are committed already. Others are not.
        """
        inside: set[tuple[str, str]] = set()
        for log in logs:
            origin = log.origin
            if origin.topic not in self._shape.sinks:
                continue
            for entry in log.everything()[self._seen.get(origin, 0) :]:
                if not isinstance(entry, Marker) and entry.span.producer in producers:
                    name = _result(entry).name
                    inside.add((origin.topic, name))
                    if not self._is_before(offsets, name):
                        message = f"a checkpoint names a transaction with {name} from behind it"
                        raise Violation(message)
        for (sink, _, key), names in self._lanes.items():
            for name in names:
                if not self._is_before(offsets, name):
                    break  # as are all that follow
                if (sink, name) not in inside:
                    message = f"a checkpoint is behind {name} (key {key}), and lacks it in {sink}"
                    raise Violation(message)

    def _is_before(self, offsets: Mapping[Origin, int], result: str) -> bool:
        origin, offset = self._offsets[result.partition("/")[0]]
        return offset < offsets.get(origin, 0)

    def forgive(
        self, logs: Iterable[PartitionLog], producers: AbstractSet[tuple[int, int]]
    ) -> None:
        """The loss of what these producers (id and epoch) have written was stated: its results will
        not appear, and whatever counts them goes on behind them.
        """
        for log in logs:
            if log.origin.topic not in self._shape.sinks:
                continue
            for entry in log.everything():
                if not isinstance(entry, Marker) and entry.span.producer in producers:
                    self._forgive(log.origin, _result(entry))

    def _forgive(self, origin: Origin, result: Result) -> None:
        lane = self._lanes.get(_lane(origin, result))
        if lane is None or result.name not in lane:
            message = f"{result.name} was stated to be lost, and is visible or belongs nowhere"
            raise Violation(message)
        lane.remove(result.name)
        self.missing -= 1
        self.forgiven += 1
        group = self._group(origin, result)
        if group is not None:
            group.ahead[result.count] = result
            _catch_up(group, "lost")

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
        lane = self._lanes.get(_lane(origin, result))
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
        group = self._group(origin, result)
        if group is None:
            return
        if result.count <= group.count or result.count in group.ahead:
            message = f"{where}: count {result.count} of group {result.group} for a second time"
            raise Violation(message)
        if self._shape.pipeline is Sided:
            # Two sinks become visible one shortly after the other.
            group.ahead[result.count] = result
        else:
            _go_on(group, result, where)
        _catch_up(group, where)

    def _group(self, origin: Origin, result: Result) -> _Group | None:
        """Where results are counted: those of both sinks in one row, where two share the state."""
        if self._shape.pipeline is Sided:
            return self._groups.setdefault((OUT_A, result.group), _Group())
        if origin.topic in self._shape.stateful:
            return self._groups.setdefault((origin.topic, result.group), _Group())
        return None


def _result(entry: StoredRecord) -> Result:
    return msgspec.json.decode(entry.value() or b"", type=Result)


def _lane(origin: Origin, result: Result) -> tuple[str, str, str]:
    return origin.topic, result.name.rsplit(":", 1)[0], result.key


def _catch_up(group: _Group, where: str) -> None:
    """With what was there, or known to be lost, before those it follows."""
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
