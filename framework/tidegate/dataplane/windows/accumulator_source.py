"""The source of the functions that fold records into windows, from the templates of the aggregates.

`accumulators.py` compiles it, and describes the functions. In it, `w` is a window in state, `value`
a record and `time` its time.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The templates of one aggregate. `w` is the window, `value` the record, `time` its time."""

    fields: list[str]
    start: list[str]
    """The first value of each field."""
    add: list[str]
    """Statements that fold one more record in."""
    combine: list[str]
    """Each field of a combination. `x_NAME` is the earlier value, `y_NAME` the later one."""
    result: str
    """The result, of the fields `x_NAME`."""
    empty: list[str]
    """Each field of a window without records. Without fields, there is no result of no records."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """The parts of the declaration on which the source depends, except for the aggregates."""

    by_key: bool
    always_on_time: bool
    """Whether a window fires at its end also if it has no new records."""
    fires_empty: bool
    """Whether it then may have no records at all."""

    @property
    def fires_last(self) -> str:
        """The condition under which the window `w` fires when it is removed."""
        if not self.always_on_time:
            return "w.pending"
        # A window without records can fire only if the trigger discards (`always_fires`).
        return f"w.pending or not w.past{'' if self.fires_empty else ' and w.filled'}"


_OWN: Final = ("start_ms", "end_ms", "number", "pending", "filled", "past", "at_ms")
"""The fields of a window that are not of its aggregates."""

_FIRST: Final = "start, end, 0, 1, True, False, None"
"""Begin and end of a new window, the number of its firing, its new records, whether it is filled,
whether it is past, and the next firing of `Every`.
"""

FUNCTIONS: Final = (
    "add_all",
    "add_to_table",
    "add_to_sessions",
    "add_to_session_table",
    "start",
    "add",
    "purge",
    "merge",
    "parts",
    "combine",
    "results",
    "window_results",
    "finish_all",
    "finish_table",
    "finish_sessions",
    "finish_several",
    "demoted",
)


def source_of(plans: Sequence[Plan], shape: Shape) -> str:
    """Return the source of all functions of a step."""
    starts = [value for plan in plans for value in plan.start]
    adds = [line for plan in plans for line in plan.add]
    fields = [name for plan in plans for name in plan.fields]
    set_first = [f"w.{name} = {value}" for name, value in zip(fields, starts, strict=True)]
    demoted = f"OPEN({', '.join('w.' + name for name in [*_OWN, *fields])})"
    loops = _loops(starts, adds)
    functions = _functions(plans, set_first, adds, shape)
    loops += _session_loops(plans, starts, adds)
    functions += _session_firings(plans, shape)
    return "\n".join([*loops, "def demoted(w):", f"    return {demoted}", *functions, ""])


def _loops(starts: list[str], adds: list[str]) -> list[str]:
    """Return the source of the functions that take a whole batch."""
    return [
        "def add_all(cells, keys, values, times, begin):",
        "    for cell, key, value, time in zip(cells, keys, values, times):",
        "        w = cell.value",
        "        if w is None or not w.pending:",
        "            begin(cell, key, value, time)",
        "            continue",
        *_indented(adds, 2),
        "def add_to_table(windows, keys, values, times, start, end, begin_again):",
        # The lookup comes after the records before it, because a key may come twice.
        "    rows = zip(keys, values, times, map(windows.get, keys))",
        "    for key, value, time, w in rows:",
        "        if w is None:",
        f"            windows[key] = OPEN(key, {_FIRST}, {', '.join(starts)})",
        "            continue",
        "        if not w.pending:",
        "            begin_again(w, value, time)",
        "            continue",
        *_indented(adds, 2),
    ]


def _session_loops(plans: Sequence[Plan], starts: list[str], adds: list[str]) -> list[str]:
    """Return the source of the functions that add a whole batch to sessions, in rows and tables."""
    fields = [name for plan in plans for name in plan.fields]
    first = [f"w.{name} = {value}" for name, value in zip(fields, starts, strict=True)]

    def body(new: str, join: str, timer: list[str]) -> list[str]:
        return [
            # Records of one time share an object for the end, so more of them are in the cache.
            "        if time != start:",
            "            start, end = time, time + gap_ms",
            "        if w is None and end > past_ms:",
            f"            w = {new} = ROW(key, {_FIRST}, {', '.join(starts)}, NO_OTHERS)",
            *_indented(timer, 3),
            "            continue",
            "        if w is None or w.past or not w.pending:",
            f"            {join}",
            "            continue",
            "        last = w.end_ms",
            "        if last < time and end > past_ms:",  # a gap: a later session begins
            "            if w.others:",
            "                w.others.append(demoted(w))",
            "            else:",
            "                w.others = [demoted(w)]",  # `NO_OTHERS` is never changed
            "            w.start_ms, w.end_ms, w.number, w.at_ms = start, end, 0, None",
            *_indented(first, 3),
            "            continue",
            # `start_ms` is not read: it is in memory that no cache holds. See `back_ms`.
            "        if not last - back_ms <= time <= last:",
            f"            {join}",
            "            continue",
            "        w.end_ms = end",
            *_indented(adds, 2),
        ]

    more = "gap_ms, back_ms, past_ms, join, add_timer, before_end"
    return [
        f"def add_to_sessions(cells, keys, values, times, {more}):",
        "    start = None",
        "    for cell, key, value, time in zip(cells, keys, values, times):",
        "        w = cell.value",
        *body("cell.value", "join(cell, key, value, time)", ["add_timer(end - before_end, key)"]),
        f"def add_to_session_table(windows, keys, values, times, {more}, tick_ms):",
        "    start = None",
        # The lookup comes after the records before it, as in `add_to_table`.
        "    rows = zip(keys, values, times, map(windows.get, keys))",
        "    for key, value, time, w in rows:",
        *body("windows[key]", "join(key, value, time)", _session_timer("end")),
    ]


def _session_timer(end: str) -> list[str]:
    """Return the source that adds a timer at the tick before an end, or at the end if the clock has
    passed this tick.
    """
    return [
        f"at = {end} - before_end",
        "tick = at - at % tick_ms",
        "add_timer(tick if tick >= past_ms else at, w)",
    ]


def _functions(
    plans: Sequence[Plan], set_first: list[str], adds: list[str], shape: Shape
) -> list[str]:
    """Return the source of the functions of one window, and of the windows that end together."""
    fields = [name for plan in plans for name in plan.fields]
    combined = [value for plan in plans for value in plan.combine]
    of_window = ", ".join(map(_of_window, plans))
    of_last = "*window_results(w)" if shape.fires_empty else of_window
    shown, shown_last = _shown(by_key=shape.by_key)
    return [
        *_empty_window(plans, shape),
        "def start(w, value, time):",
        *_indented(set_first, 1),
        "def add(w, value, time):",
        *_indented(adds, 1),
        "def purge(w):",
        f"    {' = '.join(f'w.{name}' for name in fields)} = None",
        "def parts(w):",
        f"    return {_tuple('w.', fields)}{' if w.filled else empty()' * shape.fires_empty}",
        "def combine(x, y):",
        f"    {_tuple('x_', fields)} = x",
        f"    {_tuple('y_', fields)} = y",
        f"    return ({', '.join(combined)},)",
        "def merge(w, earlier):",
        f"    {_tuple('w.', fields)} = combine(parts(earlier), parts(w))",
        "def results(x):",
        f"    {_tuple('x_', fields)} = x",
        f"    return ({', '.join(plan.result for plan in plans)},)",
        "def finish_all(cells, keys, end_ms, into, append, left):",
        "    for cell, key in zip(cells, keys):",
        "        w = cell.value",
        "        if w is None:",
        "            continue",
        "        if w.others or w.end_ms != end_ms or not w.pending:",
        "            left.append((cell, key))",
        "            continue",
        f"        append(into({shown}, {of_window}))",
        "        cell.clear()",
        "def finish_table(items, into, append):",
        "    for key, w in items:",
        f"        if {shape.fires_last}:",
        f"            append(into({shown_last}, {of_last}))",
        "def window_results(w):",
        f"    return ({of_window},){' if w.filled else results(empty())' * shape.fires_empty}",
    ]


def _empty_window(plans: Sequence[Plan], shape: Shape) -> list[str]:
    """Return the source of the function that makes the parts of a window without records."""
    if not shape.fires_empty:
        return []
    return ["def empty():", f"    return ({', '.join(one for p in plans for one in p.empty)},)"]


def _session_firings(plans: Sequence[Plan], shape: Shape) -> list[str]:
    """Return the source of the functions that fire the sessions of rows of a table."""
    of_window = ", ".join(map(_of_window, plans))
    of_last = "*window_results(w)" if shape.fires_empty else of_window
    shown, shown_last = _shown(by_key=shape.by_key)
    timer = "add_timer, before_end, tick_ms"
    return [
        "def finish_sessions(",
        f"    rows, known, past_ms, into, append, append_time, end, leave, {timer}",
        "):",
        "    for w in rows:",
        "        if w.others or w.past or not w.pending:",
        "            leave(w)",
        "        elif w.end_ms > past_ms:",
        *_indented(_session_timer("w.end_ms"), 3),
        "        elif known(key := w.key) is w:",  # else it was removed, or is in the backend
        f"            append(into({shown}, {of_window}))",
        "            append_time(w.end_ms - 1)",
        "            end(key)",
        f"def finish_several(rows, past_ms, into, append, append_time, end, {timer}):",
        "    for row in rows:",
        "        key, later = row.key, []",
        "        for w in (*row.others, row):",
        "            if w.end_ms > past_ms:",
        "                later.append(w)",
        f"            elif {shape.fires_last}:",
        f"                append(into({shown_last}, {of_last}))",
        "                append_time(w.end_ms - 1)",
        "        if not later:",
        "            end(key)",
        "            continue",
        "        row.others, w = later[:-1] or NO_OTHERS, row",
        *_indented(_session_timer("later[0].end_ms"), 2),
    ]


def _shown(*, by_key: bool) -> tuple[str, str]:
    """Return the source of the window `w` as `into` sees it: at its end, and in its last firing."""
    owner = "key" if by_key else "None"
    shown = f"WINDOW({owner}, w.start_ms, w.end_ms, 'on_time', w.number)"
    return shown, shown.replace("'on_time'", "'late' if w.past else 'on_time'")


def _of_window(plan: Plan) -> str:
    """Return the result with the fields of a window in place of its parts."""
    result = plan.result
    for name in plan.fields:
        result = re.sub(rf"\bx_{name}\b", f"w.{name}", result)
    return result


def _tuple(prefix: str, fields: Iterable[str]) -> str:
    return f"({', '.join(prefix + name for name in fields)},)"


def _indented(lines: Iterable[str], depth: int) -> list[str]:
    return ["    " * depth + line for line in lines]
