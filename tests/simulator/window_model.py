"""The model of a key's windows: what its log says so far, and what it must say at the end.

`timed_results.py` has the rules, and repeats the log of each key with these models.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from datetime import datetime, time, timedelta
from typing import Final
from zoneinfo import ZoneInfo

from tests.simulator.result_groups import Violation
from tests.simulator.timed_model import Sources
from tests.simulator.timed_pipelines import Entry, WindowSettings
from tests.simulator.window_pipelines import (
    CALENDAR,
    GLOBAL,
    LATE,
    SESSION,
    SLIDING,
    TUMBLING,
    WIDER,
    firing_name,
)
from tidegate.api.time.watermarks import TIME_MAX_MS
from tidegate.stream_elements import MAX_MS, MIN_MS, NEVER

ON_TIME: Final = "on_time"
ANY_NUMBER: Final = 1 << 60
"""The number of new records that a firing after a period may have."""
FOREVER: Final = (-TIME_MAX_MS, TIME_MAX_MS + 1)
"""The global window."""


def local_day(at_ms: int, zone: ZoneInfo) -> tuple[int, int]:
    """Return begin and end of the local day of a time, for zones whose clocks do not go back over
    midnight.
    """
    day = datetime.fromtimestamp(at_ms // 1000, zone).date()
    begin = datetime.combine(day, time.min, zone).timestamp()
    end = datetime.combine(day + timedelta(days=1), time.min, zone).timestamp()
    return int(begin) * 1000, int(end) * 1000


@dataclass(frozen=True, slots=True)
class Item:
    """A record that a step with windows gets."""

    name: str
    at_ms: int
    amount: int


@dataclass(slots=True)
class Firings:
    """A window that has fired, or a session with all that it was merged from."""

    start_ms: int
    end_ms: int
    count: int
    """The number of its firings, which is the number of the next one."""
    names: frozenset[str]


class WindowModel:
    """The model of the windows of one key in one step."""

    def __init__(self, stage: int, settings: WindowSettings, key: str) -> None:
        self.stage, self.key = stage, key
        self.kind = settings.kind if stage == 1 else TUMBLING
        self.size_ms = settings.size_ms * (1 if stage == 1 else WIDER)
        self.every_ms = settings.every_ms if self.kind == SLIDING else self.size_ms
        self.lateness_ms = settings.lateness_ms
        self.zone = ZoneInfo(settings.zone) if self.kind == CALENDAR else None
        own = stage == 1 and self.kind != SLIDING
        early = ANY_NUMBER if settings.early_ms else settings.early
        late = ANY_NUMBER if settings.late_ms else settings.late
        if settings.repeats:
            late = early
        self.early, self.late_count = (early, late) if own else (0, 1)
        self.by_period = own and bool(settings.early_ms)
        self.repeats = own and settings.repeats
        self.accumulates = settings.accumulates or not own
        self.together = settings.together
        self.count = 0
        self.watermark_ms = self.window_watermark_ms = MIN_MS
        self.known_ms = MIN_MS
        """The step's watermark is known to have reached this."""
        self.on_time_end = MIN_MS
        """The end of the last window that fired on time."""
        self.late: dict[str, Item] = {}
        self.items: dict[str, Item] = {}
        """The records that a firing has contained."""
        self.windows: list[Firings] = []
        self.firings: dict[str, Item] = {}
        """The firings, as records of the second windows."""

    # --- one entry ------------------------------------------------------------------------------

    def take(self, entry: Entry, sources: Sources) -> int:
        """Check the next entry, and return how many records are in the log for the first time.
        Raise Violation if it breaks a rule.
        """
        if entry.count != self.count + 1:
            self._refuse(f"has number {entry.count}, where {self.count + 1} follows")
        self._check_watermark(entry, sources)
        items = [self._item(name, sources) for name in entry.names]
        if entry.kind == LATE:
            self._check_late(entry, items[0], sources)
        else:
            self._check_firing(entry, items, sources)
        before = len(self.late) + len(self.items)
        self.follow(entry, sources)
        return len(self.late) + len(self.items) - before

    def follow(self, entry: Entry, sources: Sources) -> None:
        """Add an entry to the model."""
        self.count = entry.count
        if entry.watermark_ms < MAX_MS:
            self.watermark_ms = entry.watermark_ms
        items = {name: self._item(name, sources) for name in entry.names}
        if entry.kind == LATE:
            (item,) = items.values()
            self.late[item.name] = item
            return
        if entry.window_watermark_ms is not None and entry.window_watermark_ms < MAX_MS:
            self.window_watermark_ms = entry.window_watermark_ms
        if entry.firing == ON_TIME:
            self.on_time_end = max(self.on_time_end, entry.end_ms)
            self.known_ms = max(self.known_ms, entry.end_ms - 1)
        self.items |= items
        found = self._before(entry)
        self.windows = [each for each in self.windows if not any(each is one for one in found)]
        self.windows.append(
            Firings(
                entry.start_ms,
                entry.end_ms,
                entry.number + 1,
                frozenset(entry.names).union(*(each.names for each in found)),
            )
        )
        name = firing_name(entry)
        self.firings[name] = Item(name, entry.end_ms - 1, entry.amount)

    def _check_watermark(self, entry: Entry, sources: Sources) -> None:
        seen = [("the watermark", entry.watermark_ms, self.watermark_ms)]
        if entry.window_watermark_ms is not None:
            seen.append(
                ("the windows' watermark", entry.window_watermark_ms, self.window_watermark_ms)
            )
        for what, watermark_ms, before_ms in seen:
            if watermark_ms < before_ms:
                self._refuse(f"sees {what} go back from {before_ms} to {watermark_ms}")
            reason = sources.why_not_at_all(watermark_ms)
            if reason:
                self._refuse(f"sees {what} {watermark_ms}, and {reason}")

    def _check_late(self, entry: Entry, item: Item, sources: Sources) -> None:
        if entry.timestamp_ms != item.at_ms:
            self._refuse(f"has the event time {entry.timestamp_ms}, not {item.at_ms}")
        if item.name in self.late:
            self._refuse("is late for a second time")
        if item.name in self.items:
            self._refuse("is late, and in a window")
        gone_ms = self._gone_ms(self._last_end(item))
        if self.stage == 1 and not sources.can_precede(gone_ms, item.name):
            self._refuse(f"is late, and its windows are open until the watermark is {gone_ms}")
        if self.kind == SESSION:
            for each in self.windows:
                self._check_joined(item, [self.items[name] for name in each.names], sources)
        if self.stage == 2 and item.name.endswith(ON_TIME):
            self._refuse("is a firing on time, and late for the second windows")

    def _check_firing(self, entry: Entry, items: Sequence[Item], sources: Sources) -> None:
        if entry.timestamp_ms != entry.end_ms - 1:
            self._refuse(f"has the event time {entry.timestamp_ms}, and ends at {entry.end_ms}")
        if len(set(entry.names)) != len(items) or not items:
            self._refuse(f"has a record twice, or none: {entry.names}")
        if entry.total != len(items) or entry.amount != sum(each.amount for each in items):
            self._refuse(f"has the aggregates {entry.total}, {entry.amount} of {entry.names}")
        times = [each.at_ms for each in items]
        if times != sorted(times):
            self._refuse("has its records not by event time")
        self._check_span(entry, times)
        for item in items:
            if item.name in self.late:
                self._refuse(f"contains {item.name}, which was late")
        before = self._before(entry)
        known = frozenset[str]().union(*(each.names for each in before))
        new = [each for each in items if each.name not in known]
        self._check_new(entry, known, new)
        number = sum(each.count for each in before)
        if entry.number != number:
            self._refuse(f"is firing {entry.number} of its window, where {number} follows")
        self._check_label(entry, new, sources)
        if self.kind == SESSION:
            for late in self.late.values():
                self._check_joined(late, items, sources)

    def _check_span(self, entry: Entry, times: Sequence[int]) -> None:
        start_ms, end_ms = entry.start_ms, entry.end_ms
        if self.kind == SESSION:
            apart = max((b - a for a, b in itertools.pairwise(times)), default=0)
            right = start_ms == times[0] and end_ms == times[-1] + self.size_ms
            right = right and apart <= self.size_ms
        elif self.kind == GLOBAL:
            right = (start_ms, end_ms) == FOREVER
        elif self.zone is not None:
            right = {local_day(each, self.zone) for each in times} == {(start_ms, end_ms)}
        else:
            right = end_ms - start_ms == self.size_ms and not start_ms % self.every_ms
            right = right and start_ms <= times[0] and times[-1] < end_ms
        if not right:
            self._refuse(f"is of {start_ms} to {end_ms}, and has records of {times}")

    def _check_new(self, entry: Entry, known: frozenset[str], new: Sequence[Item]) -> None:
        if not self.accumulates and not known.isdisjoint(entry.names):
            self._refuse(f"has {sorted(known & set(entry.names))} of a firing before it")
        if self.accumulates and not known <= set(entry.names):
            self._refuse(f"lacks {sorted(known - set(entry.names))} of a firing before it")
        if not new:
            self._refuse("has no new record")
        if self.kind == SESSION:
            again = {each.name for each in new} & self.items.keys()
            if again:
                self._refuse(f"contains {sorted(again)}, which is in another session")
        else:
            most = {"early": self.early, "late": self.late_count}.get(entry.firing, len(new))
            if len(new) > most:
                self._refuse(f"is {entry.firing} and has {len(new)} new records, not {most}")

    def _check_label(self, entry: Entry, new: Sequence[Item], sources: Sources) -> None:
        end_ms = entry.end_ms
        if entry.firing == ON_TIME and end_ms <= self.on_time_end:
            self._refuse(f"is on time, and a window that ends at {self.on_time_end} has fired")
        if entry.firing != "late" and end_ms - 1 <= self.known_ms:
            self._refuse(f"is {entry.firing}, and the watermark was {self.known_ms} before")
        by_itself = entry.firing == "late" and self.stage == 1 and self.late_count == 1
        if by_itself and not any(sources.can_precede(end_ms - 1, each.name) for each in new):
            self._refuse(f"is late, and no watermark had reached {end_ms - 1}")
        gone_ms = self._gone_ms(end_ms)
        if gone_ms < self.known_ms or (gone_ms == self.known_ms and self.late_count == 1):
            self._refuse(f"fires, and the watermark was {self.known_ms} before")
        seen_ms = entry.window_watermark_ms
        early = entry.firing == "early"
        if early and self.by_period:  # its time may come under a watermark that ends the window too
            return
        if seen_ms is not None and (seen_ms >= end_ms - 1) is early:
            self._refuse(f"is {entry.firing} under the watermark {seen_ms}")

    def _check_joined(self, late: Item, items: Iterable[Item], sources: Sources) -> None:
        """Check that a late record should not be in a session.

        Records that are before it in its partition, and touch it, were in the session when it came.
        So the session must have been removed: it has no record that came later, and a watermark can
        have reached its end.
        """
        before = [each for each in items if sources.is_before(each.name, late.name)]
        end_ms = MIN_MS
        for item in sorted(before, key=lambda each: each.at_ms):
            if abs(item.at_ms - late.at_ms) <= self.size_ms or (
                end_ms > MIN_MS and item.at_ms <= end_ms
            ):
                end_ms = item.at_ms + self.size_ms
        if end_ms == MIN_MS:
            return
        after = any(sources.is_before(late.name, each.name) for each in items)
        if after or not sources.can_precede(self._gone_ms(end_ms), late.name):
            self._refuse(
                f"shows {late.name} of {late.at_ms} as late, and a session to {end_ms} was open"
            )

    def _before(self, entry: Entry) -> list[Firings]:
        """Return the windows that the window of an entry was, or was merged from."""
        if self.kind == SESSION:
            names = set(entry.names)
            return [each for each in self.windows if not names.isdisjoint(each.names)]
        span = entry.start_ms, entry.end_ms
        return [each for each in self.windows if (each.start_ms, each.end_ms) == span]

    # --- the end --------------------------------------------------------------------------------

    def lacks(self, items: Iterable[Item], last_ms: int) -> list[Item]:
        """Return the records that neither a firing nor the late stream has, and must have under a
        watermark.
        """
        ends = self._due_ends([each for each in items if each.name not in self.late])
        lacking = [
            item
            for item, end_ms in ends
            if item.name not in self.items and self._due_ms(end_ms) <= last_ms
        ]
        if self.kind == GLOBAL and not lacking:  # it fires by the number of its records alone
            waiting = [item for item, _ in ends if item.name not in self.items]
            return waiting[: len(waiting) // self.early * self.early]
        return lacking

    def complete(self, items: Mapping[str, Item], last_ms: int, sources: Sources) -> None:
        """Check the log when all records were read and the watermark was `last_ms`."""
        for item in self.lacks(items.values(), last_ms):
            self._refuse(f"{item.name} of {item.at_ms} is in no window and not late")
        for name in (*self.items, *self.late):
            if name not in items:
                self._refuse(f"{name} is in the log and not in the input")
        if self.kind == SESSION:
            if self.stage == 1:
                self._check_apart(sources)
            return
        inside = {(each.end_ms, name) for each in self.windows for name in each.names}
        # A run ends as soon as each record is in one window. The next one may not be due yet.
        last_ms = min(last_ms, sources.sure_ms())
        for item in items.values():
            if item.name not in self.late:
                self._check_windows(item, inside, last_ms, sources)

    def _check_windows(
        self, item: Item, inside: AbstractSet[tuple[int, str]], last_ms: int, sources: Sources
    ) -> None:
        """Check that a record is in the windows that were open when it came: the last ones."""
        begun = False
        for end_ms in self._ends(item):
            if self._due_ms(end_ms) > last_ms:
                return
            if (end_ms, item.name) in inside:
                begun = True
                continue
            gone = self.stage == 2 or sources.can_precede(self._gone_ms(end_ms), item.name)
            if begun or end_ms == self._last_end(item) or not gone:
                self._refuse(f"{item.name} of {item.at_ms} is not in the window to {end_ms}")

    def _check_apart(self, sources: Sources) -> None:
        """Check that two sessions that touch were not open at the same time."""
        for one in self.windows:
            for other in self.windows:
                if one is other or not (
                    one.start_ms <= other.end_ms and other.start_ms <= one.end_ms
                ):
                    continue
                if not (self._follows(one, other, sources) or self._follows(other, one, sources)):
                    self._refuse(
                        f"the sessions of {one.start_ms} to {one.end_ms} and of "
                        f"{other.start_ms} to {other.end_ms} touch"
                    )

    def _follows(self, one: Firings, other: Firings, sources: Sources) -> bool:
        """Return whether all records of a session can have come after another was removed."""
        gone_ms = self._gone_ms(other.end_ms)
        return all(
            sources.can_precede(gone_ms, name)
            for name in one.names
            if other.start_ms - self.size_ms <= self.items[name].at_ms <= other.end_ms
        )

    # --- windows of a record --------------------------------------------------------------------

    def _ends(self, item: Item) -> Iterator[int]:
        """Yield the ends of the windows of a record, in order. A session may end later."""
        if self.kind == SESSION:
            yield item.at_ms + self.size_ms
            return
        if self.kind == GLOBAL:
            yield FOREVER[1]
            return
        if self.zone is not None:
            yield local_day(item.at_ms, self.zone)[1]
            return
        first = ((item.at_ms - self.size_ms) // self.every_ms + 1) * self.every_ms
        for start_ms in range(first, item.at_ms + 1, self.every_ms):
            yield start_ms + self.size_ms

    def _last_end(self, item: Item) -> int:
        return max(self._ends(item))

    def _due_ends(self, items: Sequence[Item]) -> list[tuple[Item, int]]:
        """Return the records, each with the end of the last window in which it must be."""
        if self.kind != SESSION:
            return [(each, self._last_end(each)) for each in items]
        found: list[tuple[Item, int]] = []
        start_ms = end_ms = NEVER
        for item in sorted(items, key=lambda each: each.at_ms, reverse=True):
            if item.at_ms + self.size_ms < start_ms:
                end_ms = item.at_ms + self.size_ms
            start_ms = item.at_ms
            found.append((item, end_ms))
        return found

    def _gone_ms(self, end_ms: int) -> int:
        """Return the watermark at which a window is removed."""
        return end_ms - 1 + self.lateness_ms

    def _due_ms(self, end_ms: int) -> int:
        """Return the watermark at which a window has given all of its results."""
        by_itself = self.late_count == 1 and not self.repeats
        return end_ms - 1 if by_itself else self._gone_ms(end_ms)

    def _item(self, name: str, sources: Sources) -> Item:
        if self.stage == 1:
            found = sources.events.get(name)
            if found is None or not (self.together or found[1].key == self.key):
                message = f"has {name}, which is not a record of the key"
                raise Violation(message)
            event = found[1]
            return Item(name, event.at_ms, event.amount)
        _, _, end_ms, _, amount, _ = name.split("/")
        return Item(name, int(end_ms) - 1, int(amount))

    @staticmethod
    def _refuse(message: str) -> None:
        raise Violation(message)
