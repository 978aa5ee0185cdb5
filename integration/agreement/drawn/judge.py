"""The judge of a drained run: its outputs against a batch over its input.

Within the bound, the final results of each window are those of the batch, and nothing is late.
Beyond it, each record is in all of its windows from the first that was open, or late, and never
both. The final results have the aggregates of exactly the records that they name.

The final result of a window is its last one. With `accumulate=False` it is all of them together. A
session that was merged continues in the merged one.
"""

from __future__ import annotations

import heapq
import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Final
from zoneinfo import ZoneInfo

import msgspec

from integration.agreement.drawn.draws import (
    CALENDAR,
    GLOBAL,
    NAMED,
    REDUCED,
    SESSION,
    SESSION_OF,
    SLIDING,
    TUMBLING,
    WINDOWS,
    Draw,
    StepDraw,
    Windows,
)
from integration.agreement.drawn.parts import ALL, Event, Row, combined, deadline_of, gap_ms_of
from integration.agreement.drawn.records import Partitions, usable

Span = tuple[int, int]
Outputs = Mapping[str, Sequence[Any]]
"""Records by sink, those of one key in their order."""

FOREVER: Final[Span] = (-(1 << 62), (1 << 62) + 1)
SHOWN: Final = 5
"""The number of differences that one message shows."""


@dataclass(slots=True)
class Found:
    """A window in the output: its last span, all its rows, and the records that they name."""

    key: str
    span: Span
    rows: list[Row]
    names: set[str]
    wrong: list[str] = field(default_factory=list)
    """The faults of results, compared with those before them."""


def problems(draw: Draw, partitions: Partitions, outputs: Outputs) -> list[str]:
    """Return what is wrong with the outputs of a drained run. The list is empty if nothing is."""
    events = usable(partitions, filtered=draw.filtered)
    found: list[str] = []
    if draw.stamped_ms is not None:
        found += _of_rejected(partitions, outputs["rejected"])
    for step in draw.steps:
        wrong = _of_windows if step.kind == WINDOWS else _of_timers
        found += [f"{step.uid}: {each}" for each in wrong(draw, step, events, outputs)]
    return found


def _of_rejected(partitions: Partitions, rejected: Sequence[Event]) -> Iterator[str]:
    events = (event for each in partitions.values() for events in each for event in events)
    expected = Counter(event.name for event in events if event.at_ms is None)
    found = Counter(event.name for event in rejected)
    if found != expected:
        yield f"rejected {_few(found - expected)} too much, {_few(expected - found)} too little"


# --- windows ------------------------------------------------------------------------------------


def _of_windows(
    draw: Draw, step: StepDraw, events: Sequence[Event], outputs: Outputs
) -> Iterator[str]:
    rows, late = outputs[f"{step.uid}_rows"], outputs[f"{step.uid}_late"]
    yield from _of_late(draw, events, late)
    names_late = {event.name for event in late}
    in_time = [event for event in events if event.name not in names_late]
    if step.parts == (REDUCED,):
        yield from _of_reduced(step, events, rows)
        return
    if not draw.beyond:
        yield from _as_batch(step, events, rows)
    if step.named is not None:
        yield from _of_fates(draw, step, in_time, rows)
    for each in _windows_found(step, rows):
        yield from each.wrong
    if step.wider_ms:
        yield from _of_wider(step, events, outputs)


def _of_late(draw: Draw, events: Sequence[Event], late: Sequence[Event]) -> Iterator[str]:
    names = Counter(event.name for event in late)
    if twice := [name for name, count in names.items() if count > 1]:
        yield f"late twice: {_few(twice)}"
    if foreign := names.keys() - {event.name for event in events}:
        yield f"late, and not in the input: {_few(foreign)}"
    if names and not draw.beyond:
        yield f"late, and within the bound: {_few(names)}"


def _as_batch(step: StepDraw, events: Sequence[Event], rows: Sequence[Row]) -> Iterator[str]:
    """Compare final results with the windows of a batch."""
    expected = {(key, span): inside for key, span, inside in batch_windows(step, events)}
    found = {(each.key, each.span): each for each in _windows_found(step, rows)}
    if more := found.keys() - expected.keys():
        yield f"windows that no batch has: {_few(more)}"
    if less := expected.keys() - found.keys():
        yield f"windows that only a batch has: {_few(less)}"
    for window in found.keys() & expected.keys():
        if step.accumulates:
            last = found[window].rows[-1]
            yield from _wrong_values(last, expected[window])


def _of_fates(
    draw: Draw, step: StepDraw, in_time: Sequence[Event], rows: Sequence[Row]
) -> Iterator[str]:
    """Check that each record that is not late is in its windows, and that no other record is."""
    by_name = {event.name: event for event in in_time}
    spans: dict[str, list[Span]] = defaultdict(list)
    for each in _windows_found(step, rows):
        if strangers := each.names - by_name.keys():
            yield f"{_few(strangers)} in {_where(each)}: late, or not in the input"
            return
        inside = [by_name[name] for name in each.names]
        yield from _wrong_window(step, each, inside)
        if step.accumulates:
            yield from _wrong_values(each.rows[-1], inside)
        for name in each.names:
            spans[name].append(each.span)
    assert step.windows is not None
    for event in in_time:
        expected = spans_of(step.windows, event)
        got = sorted(spans.get(event.name, []))
        if expected is None:
            right = len(got) == 1
        elif draw.beyond:
            right = bool(got) and got == expected[-len(got) :]
        else:
            right = got == expected
        if not right:
            yield f"{event} is in {got}, and its windows are {expected or 'sessions'}"


def _wrong_window(step: StepDraw, found: Found, inside: Sequence[Event]) -> Iterator[str]:
    if step.by_key and any(event.key != found.key for event in inside):
        yield f"{_where(found)} has records of other keys"
    if _has_sessions(step):
        merged = [span for _, span, _ in batch_windows(step, inside)]
        if merged != [found.span]:
            yield f"the records of {_where(found)} have the sessions {_few(merged)}"


def _windows_found(step: StepDraw, rows: Sequence[Row]) -> list[Found]:
    """Return the windows that the rows are of. A session contains those that it was merged from."""
    assert step.windows is not None
    by_key: dict[str, list[Found]] = defaultdict(list)
    for row in rows:
        names, span = set(_names(step, row)), (row.start_ms, row.end_ms)
        known = by_key[row.key]
        before = [each for each in known if _is_part(step, each, names, span)]
        merged = Found(row.key, span, [each for one in before for each in one.rows], set())
        merged.names = names.union(*(each.names for each in before))
        merged.wrong = [each for one in before for each in one.wrong]
        merged.wrong += _wrong_row(step, row, merged.rows, names, before)
        merged.rows.append(row)
        by_key[row.key] = [each for each in known if each not in before] + [merged]
    return [each for known in by_key.values() for each in known]


def _wrong_row(
    step: StepDraw, row: Row, rows: Sequence[Row], names: set[str], before: Sequence[Found]
) -> Iterator[str]:
    """Compare a result with those of its window before it."""
    seen = set[str]().union(*(each.names for each in before))
    if step.named is not None:
        if not names or len(names) != len(_names(step, row)):
            yield f"{row} has a record twice, or none"
        if step.accumulates and not seen < names:
            yield f"{row} lacks records of a result before it, or has no new one"
        if not step.accumulates and seen & names:
            yield f"{row} has records of a result before it"
    if row.number != len(rows):
        yield f"{row} follows {len(rows)} results"
    labels = ("early", "on_time", "late")
    late = any(labels.index(each.firing) > labels.index(row.firing) for each in rows)
    twice = row.firing == "on_time" and any(each.firing == "on_time" for each in rows)
    if (late or twice) and not _has_sessions(step):
        yield f"{row} follows {[each.firing for each in rows]}"


def _has_sessions(step: StepDraw) -> bool:
    return step.windows is not None and step.windows.kind in (SESSION, SESSION_OF)


def _is_part(step: StepDraw, each: Found, names: set[str], span: Span) -> bool:
    """Return whether a window that has fired is that of a result, or a session that is in it."""
    if not _has_sessions(step):
        return each.span == span
    if step.named is not None and step.accumulates:
        return not each.names.isdisjoint(names)
    return span[0] <= each.span[0] and each.span[1] <= span[1]


def _names(step: StepDraw, row: Row) -> list[str]:
    named = step.named
    found: list[str] = [] if named is None else msgspec.json.decode(row.values)[named]
    return found


def _of_reduced(step: StepDraw, events: Sequence[Event], rows: Sequence[Event]) -> Iterator[str]:
    expected: Counter[tuple[str, str, int]] = Counter()
    for _, _, inside in batch_windows(step, events):
        whole = inside[0]
        for event in inside[1:]:
            whole = combined(whole, event)
        expected["+".join(sorted(whole.name.split("+"))), whole.key, whole.amount] += 1
    found = Counter(("+".join(sorted(row.name.split("+"))), row.key, row.amount) for row in rows)
    if found != expected:
        yield f"{_few(found - expected)} too much, {_few(expected - found)} too little"


def _of_wider(step: StepDraw, events: Sequence[Event], outputs: Outputs) -> Iterator[str]:
    """Compare the windows behind a step with a batch over the results of its batch."""
    if outputs[f"{step.uid}_wider_late"]:
        yield "results on time are late for the windows behind"
    expected: dict[tuple[str, int], list[int]] = defaultdict(list)
    for key, (_, end_ms), inside in batch_windows(step, events):
        start_ms = (end_ms - 1) // step.wider_ms * step.wider_ms
        expected[key[:1], start_ms].append(sum(event.amount for event in inside))
    found: dict[tuple[str, int], list[Any]] = defaultdict(list)
    for row in outputs[f"{step.uid}_wider"]:
        found[row.key, row.start_ms].append(msgspec.json.decode(row.values))
    wanted = {window: [{"count": len(sums), "sum": sum(sums)}] for window, sums in expected.items()}
    if found != wanted:
        differ = [each for each in {*found, *wanted} if found.get(each) != wanted.get(each)]
        yield f"behind it, {_few((each, found.get(each), wanted.get(each)) for each in differ)}"


# --- the batch ----------------------------------------------------------------------------------


def batch_windows(
    step: StepDraw, events: Sequence[Event]
) -> Iterator[tuple[str, Span, list[Event]]]:
    """Yield key, span and records of each window of a batch."""
    assert step.windows is not None
    by_key: dict[str, list[Event]] = defaultdict(list)
    for event in sorted(events, key=lambda event: event.at_ms or 0):
        by_key[event.key if step.by_key else ALL].append(event)
    for key, theirs in by_key.items():
        if _has_sessions(step):
            for span, inside in _sessions(step.windows, theirs):
                yield key, span, inside
            continue
        windows: dict[Span, list[Event]] = defaultdict(list)
        for event in theirs:
            for span in spans_of(step.windows, event) or ():
                windows[span].append(event)
        for span, inside in windows.items():
            yield key, span, inside


def _sessions(windows: Windows, events: Sequence[Event]) -> Iterator[tuple[Span, list[Event]]]:
    inside: list[Event] = []
    start_ms = end_ms = 0
    for event in events:
        at_ms = _at(event)
        if inside and at_ms > end_ms:
            yield (start_ms, end_ms), inside
            inside = []
        if not inside:
            start_ms = end_ms = at_ms
        gap_ms = gap_ms_of(event) if windows.kind == SESSION_OF else windows.size_ms
        end_ms = max(end_ms, at_ms + gap_ms)
        inside.append(event)
    if inside:
        yield (start_ms, end_ms), inside


def spans_of(windows: Windows, event: Event) -> list[Span] | None:
    """Return the windows of an event, in order; None for sessions."""
    at_ms = _at(event)
    if windows.kind == GLOBAL:
        return [FOREVER]
    if windows.kind == CALENDAR:
        return [_local_span(windows.unit, windows.zone, at_ms)]
    if windows.kind in (TUMBLING, SLIDING):
        last = at_ms - (at_ms - windows.offset_ms) % windows.every_ms
        starts = range(last, at_ms - windows.size_ms, -windows.every_ms)
        return sorted((start_ms, start_ms + windows.size_ms) for start_ms in starts)
    return None


def _local_span(unit: str, zone: str, at_ms: int) -> Span:
    """Return the calendar unit around a time: it begins at the last time before, at which the
    local clock showed the begin of a unit. This looks at every quarter of an hour.
    """
    quarter_ms = 900_000
    start_ms = at_ms // quarter_ms * quarter_ms
    while not _begins(unit, zone, start_ms):
        start_ms -= quarter_ms
    end_ms = at_ms // quarter_ms * quarter_ms + quarter_ms
    while not _begins(unit, zone, end_ms):
        end_ms += quarter_ms
    return start_ms, end_ms


def _begins(unit: str, zone: str, at_ms: int) -> bool:
    now, before = (_unit_of(unit, zone, each) for each in (at_ms, at_ms - 1))
    return now != before


def _unit_of(unit: str, zone: str, at_ms: int) -> object:
    local = datetime.fromtimestamp(at_ms / 1000, ZoneInfo(zone))
    if unit == "hour":
        return local.date(), local.hour, local.utcoffset()
    if unit == "week":
        return local.date() - timedelta(days=local.weekday())
    return (local.year, local.month, local.day) if unit == "day" else (local.year, local.month)


def _wrong_values(row: Row, inside: Sequence[Event]) -> Iterator[str]:
    """Compare the aggregates of a result with its records."""
    values: dict[str, Any] = msgspec.json.decode(row.values)
    for part, value in values.items():
        if not _is_right(part, value, inside):
            yield f"{part} of {row}, and the records are {_few(event.name for event in inside)}"


def _is_right(part: str, value: Any, inside: Sequence[Event]) -> bool:
    amounts = [event.amount for event in inside]
    times = {event.name: _at(event) for event in inside}
    if part in NAMED:
        in_order = part == "names" or list(value) == sorted(
            value, key=lambda name: times.get(name, 0)
        )
        return sorted(value) == sorted(times) and in_order
    if part in ("weights", "mean"):
        exact = (
            math.fsum(event.weight for event in inside)
            if part == "weights"
            else (math.fsum(amounts) / len(amounts))
        )
        return math.isclose(value, exact, rel_tol=1e-9, abs_tol=1e-3)
    if part in ("first", "last"):
        edge = (min if part == "first" else max)(times.values())
        return times.get(value) == edge
    if part == "top":
        by_name = {event.name: event.amount for event in inside}
        best = sorted(amounts, reverse=True)[:2]
        return [by_name.get(name) for name in value] == best
    simple = {
        "count": len(inside),
        "sum": sum(amounts),
        "min": min(event.weight for event in inside),
        "max": max(amounts),
    }
    return bool(value == simple[part])


def _at(event: Event) -> int:
    assert event.at_ms is not None
    return event.at_ms


# --- timers -------------------------------------------------------------------------------------


def _of_timers(
    draw: Draw, step: StepDraw, events: Sequence[Event], outputs: Outputs
) -> Iterator[str]:
    rows, late = outputs[f"{step.uid}_rows"], outputs[f"{step.uid}_late"]
    yield from _of_late(draw, events, late)
    found: dict[str, list[Row]] = defaultdict(list)
    for row in rows:
        found[row.key].append(row)
    names_late = {event.name for event in late}
    in_time = [event for event in events if event.name not in names_late]
    expected = dict(_sorted_by_key(in_time))
    for key in found.keys() | expected.keys():
        got, wanted = found[key], expected.get(key, [])
        if got != wanted:
            place = next(
                (n for n, (a, b) in enumerate(zip(got, wanted, strict=False)) if a != b),
                min(len(got), len(wanted)),
            )
            yield (
                f"key {key} has {len(got)} rows, not {len(wanted)}: row {place} is "
                f"{got[place : place + 1]}, not {wanted[place : place + 1]}"
            )


def _sorted_by_key(events: Iterable[Event]) -> Iterator[tuple[str, list[Row]]]:
    """Yield the rows that `Sorting` writes for each key, if its events come in time."""
    by_key: dict[str, dict[int, list[Event]]] = defaultdict(lambda: defaultdict(list))
    for event in events:
        by_key[event.key][_at(event)].append(event)
    for key, times in by_key.items():
        yield key, list(_rows_of_key(key, times))


def _rows_of_key(key: str, times: Mapping[int, Sequence[Event]]) -> Iterator[Row]:
    due = [(at_ms, 0, "") for at_ms in times]
    heapq.heapify(due)
    deadlines: dict[str, int] = {}
    total = 0
    while due:
        at_ms, declared, name = heapq.heappop(due)
        if declared:
            if deadlines.get(name) == at_ms:
                del deadlines[name]
                yield _timer_row(key, at_ms, f"deadline {name}", [], total)
            continue
        records = sorted(times[at_ms], key=lambda event: event.name)
        for event in records:
            total += event.amount
            moved = deadline_of(event.amount, at_ms)
            if moved is None:
                continue
            deadlines.pop(moved[0], None)
            if moved[1] is not None:
                deadlines[moved[0]] = moved[1]
                heapq.heappush(due, (moved[1], 1, moved[0]))
        yield _timer_row(key, at_ms, "turn", [event.name for event in records], total)


def _timer_row(key: str, at_ms: int, what: str, names: list[str], total: int) -> Row:
    values = msgspec.json.encode({"names": names, "time": at_ms}).decode()
    return Row(key, at_ms, at_ms + 1, what, 0, values, total)


def _few(found: Iterable[object]) -> str:
    each = list(found)
    more = f" and {len(each) - SHOWN} more" if len(each) > SHOWN else ""
    return f"{each[:SHOWN]}{more}"


def _where(found: Found) -> str:
    return f"the window of {found.key} from {found.span[0]} to {found.span[1]}"
