"""Accumulators: the functions that fold records into the windows of a step.

The aggregates of a step become one set of functions, whose source is generated from templates. So a
record costs one pass of a loop and no call for a built-in aggregate, except the call of a function
of the user; a function that only reads a field is inlined too.

A window in state has one or two fields for each aggregate (`WindowStep.fields`). Windows of one key
that are combined do not overlap in time, and the first argument is the earlier one. So the first
and the last record of the combination follow without a comparison.

This module knows nothing of triggers and watermarks.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from heapq import nlargest
from operator import itemgetter
from typing import Any, Final, cast

from tidegate.api.records.copying import copy_value, immutable
from tidegate.api.records.record_fields import fields_of
from tidegate.api.records.type_inference import field_path
from tidegate.api.windows.aggregates import (
    ZEROS,
    Aggregate,
    Collect,
    Count,
    First,
    Last,
    Max,
    Mean,
    Min,
    Sum,
    TopN,
)
from tidegate.api.windows.window_step import NO_OTHERS, Records, Reduced, WindowStep
from tidegate.api.windows.windows import Window
from tidegate.dataplane.windows.accumulator_source import FUNCTIONS, Plan, Shape, source_of

Parts = tuple[Any, ...]
"""The fields of the aggregates of one window, without the window's own fields."""

SLACK: Final = 2
"""Factor by which a limited list may be longer than its limit before it is cut. So a record costs
the cut of one record on average.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Accumulators:
    """The functions of one step. Windows are objects of `WindowStep.window_class`."""

    add_all: Callable[..., None]
    """`add_all(cells, keys, values, times, begin)`: fold each record into the window of its cell.
    `begin(cell, key, value, time)` is called where a cell has no window with new records.
    """
    add_to_table: Callable[..., None]
    """`add_to_table(windows, keys, values, times, start, end, begin_again)`: fold each record into
    the window of its key in a dict. A key without window gets one. `begin_again(window, value,
    time)` is called where a window has no new records.
    """
    add_to_sessions: Callable[..., None]
    """`add_to_sessions(cells, keys, values, times, gap_ms, back_ms, past_ms, join, add_timer,
    before_end)`: extend the newest session of each cell, or begin a later one that ends after
    `past_ms`. For the first session of a key, `add_timer(end - before_end, key)` is called. The
    earliest timer is enough for a later one. `back_ms` is a time before the end of any session in
    which it was open. `join(cell, key, value, time)` is called where the record does not simply
    belong to the newest session, or may be late.
    """
    add_to_session_table: Callable[..., None]
    """`add_to_session_table(windows, keys, values, times, gap_ms, back_ms, past_ms, join,
    add_timer, before_end, tick_ms)`: the same with the windows of a dict. It calls `join(key,
    value, time)`. The timer of a row is at the multiple of `tick_ms` before the end, unless the
    clock has passed it, and `add_timer` gets the row in place of the key.
    """
    start: Callable[[Any, Any, int], None]
    """`start(window, value, time)`: make the record the first one of the window."""
    add: Callable[[Any, Any, int], None]
    """`add(window, value, time)`: fold one more record in."""
    purge: Callable[[Any], None]
    """`purge(window)`: drop the records."""
    merge: Callable[[Any, Any], None]
    """`merge(window, earlier)`: fold the records of another window in, whose times are earlier."""
    parts: Callable[[Any], Parts]
    """`parts(window)`. A window without records has those of no records, if it may fire so."""
    combine: Callable[[Parts, Parts], Parts]
    """`combine(parts, later)`: both arguments stay as they are."""
    finish_all: Callable[..., None]
    """`finish_all(cells, keys, end_ms, into, append, left)`: of each row whose only window ends
    now, append `into(window, *results)` and remove the window. Other rows that are not empty are
    left, as pairs of cell and key.
    """
    finish_table: Callable[..., None]
    """`finish_table(items, into, append)`: of each pair of key and window, append `into(window,
    *results)` if the window fires when it is removed.
    """
    finish_sessions: Callable[..., None]
    """`finish_sessions(rows, known, past_ms, into, append, append_time, end, leave, add_timer,
    before_end, tick_ms)`: of each row whose only session ends at `past_ms` or earlier, append
    `into(window, *results)` and its time, and call `end(key)`. If its only session ends later, call
    `add_timer` as `add_to_session_table` does. If there is more to do, call `leave(row)`. A row is
    skipped if it is not that of its key, `known(key)`.
    """
    finish_several: Callable[..., None]
    """`finish_several(rows, past_ms, into, append, append_time, end, add_timer, before_end,
    tick_ms)`: the same for rows with any sessions. Those that stay remain in their row, which is
    changed.
    """
    demoted: Callable[[Any], Any]
    """`demoted(row)`: a copy of the newest window of a key, for the list of the others."""
    window_results: Callable[[Any], Parts]
    """`window_results(window)`: the results of a window, as `results(parts(window))`."""
    results: Callable[[Parts], Parts]
    """`results(parts)`: the results, which may share objects with the parts."""
    copied_results: Callable[[Parts], Parts]
    """The results, which share nothing that can change with the parts."""
    source: str
    """The generated source, for display."""


def make_accumulators(step: WindowStep) -> Accumulators:
    """Return the functions of a step."""
    names: dict[str, Any] = {}
    plans = [
        _plan(each, [name for name, _ in fields], step, number, names)
        for number, (each, fields) in enumerate(zip(step.aggregates, step.fields, strict=True))
    ]
    names |= {"ROW": step.row_class, "OPEN": step.window_class, "WINDOW": Window}
    names |= {"NO_OTHERS": NO_OTHERS}
    names |= {"Decimal": Decimal}
    shape = Shape(
        by_key=step.by_key,
        always_on_time=step.trigger.always_on_time,
        fires_empty=step.fires_empty,
    )
    source = source_of(plans, shape)
    exec(compile(source, "<generated windows>", "exec"), names)  # noqa: S102 - our templates
    results = names["results"]
    plain = all(immutable(of) for fields in step.fields for _, of in fields)

    def copied_results(parts: Parts) -> Parts:
        return tuple(map(copy_value, results(parts)))

    return Accumulators(
        **{name: names[name] for name in FUNCTIONS},
        copied_results=results if plain else copied_results,
        source=source,
    )


def _plan(
    aggregate: Aggregate[Any, Any, Any],
    fields: list[str],
    step: WindowStep,
    number: int,
    names: dict[str, Any],
) -> Plan:
    last = fields[-1]
    w, x, y = f"w.{last}", f"x_{last}", f"y_{last}"
    value, empty = _value(aggregate, step, number, names), list[str]()
    match aggregate:
        case Count():
            start, add, combine, result = ["1"], [f"{w} += 1"], [f"{x} + {y}"], x
            empty = ["0"]
        case Sum():
            # Not `+=`: it would change a value that can change in place, which others may hold.
            start, add, combine, result = [value], [f"{w} = {w} + {value}"], [f"{x} + {y}"], x
            empty = [ZEROS.get(dict(step.fields[number])[last], "None")]
        case Min() | Max():
            less = "v < {}" if isinstance(aggregate, Min) else "{} < v"
            nan = " or v != v" if dict(step.fields[number])[last] is float else ""
            start = [value]
            add = [f"v = {value}", f"if {less.format(w)}{nan}: {w} = v"]
            chosen = less.replace("v", y).format(x) + nan.replace("v", y)
            combine, result = [f"{y} if {chosen} else {x}"], x
        case Mean():
            total, count = fields
            start = [f"0.0 + {value}", "1"]
            add = [f"w.{total} = w.{total} + {value}", f"w.{count} += 1"]
            combine = [f"x_{total} + y_{total}", f"x_{count} + y_{count}"]
            result = f"x_{total} / x_{count}"
        case First() | Last():
            is_first, at = isinstance(aggregate, First), fields[0]
            compare = f"time < w.{at}" if is_first else f"time >= w.{at}"
            start = ["time", value]
            add = [f"if {compare}:", f"    w.{at} = time", f"    {w} = {value}"]
            combine, result = [f"{'x' if is_first else 'y'}_{name}" for name in fields], x
        case _:
            return _plan_of_call(aggregate, fields, step, number, names)
    return Plan(fields=fields, start=start, add=add, combine=combine, result=result, empty=empty)


def _plan_of_call(
    aggregate: Aggregate[Any, Any, Any],
    fields: list[str],
    step: WindowStep,
    number: int,
    names: dict[str, Any],
) -> Plan:
    """Return the templates of an aggregate that keeps records or calls a function of the user."""
    (name,) = fields
    w, x, y = f"w.{name}", f"x_{name}", f"y_{name}"
    kept = "" if immutable(dict(step.fields[number])[name]) else "copied"
    names["copied"] = copy_value
    empty = ["[]"]

    def named(function: object, stem: str) -> str:
        names[f"{stem}_{number}"] = function
        return f"{stem}_{number}"

    match aggregate:
        case Records():
            result = f"{named(_in_order, 'in_order')}({x})"
            start, add = ["[(time, value)]"], [f"{w}.append((time, value))"]
            combine = [f"{x} + {y}"]
        case Collect() | TopN():
            limit = cast("int", aggregate.limit)
            cut = named(_cut(aggregate), "cut")
            start = ["[(time, value)]"]
            add = [
                f"{w}.append((time, value))",
                f"if len({w}) > {SLACK * limit}: {w} = {cut}({w})",
            ]
            combine = [f"{cut}({x} + {y})"]
            result = f"[r for _, r in {cut}({x})]"
        case Reduced():
            function = named(aggregate.function, "reduce")
            start, add = ["value"], [f"{w} = {function}({w}, value)"]
            combine, result = [f"{function}({kept}({x}), {kept}({y}))"], x
        case _:
            create, add_one = named(aggregate.create, "create"), named(aggregate.add, "add_one")
            merge, result_of = (
                named(aggregate.merge, "merge_two"),
                named(aggregate.result, "result"),
            )
            empty = [f"{create}()"]
            start, add = [f"{add_one}({create}(), value)"], [f"{w} = {add_one}({w}, value)"]
            combine, result = [f"{merge}({kept}({x}), {kept}({y}))"], f"{result_of}({x})"
    return Plan(fields=fields, start=start, add=add, combine=combine, result=result, empty=empty)


def _value(
    aggregate: Aggregate[Any, Any, Any], step: WindowStep, number: int, names: dict[str, Any]
) -> str:
    """Return the source of the value that an aggregate takes from the record `value`."""
    of: Any = getattr(aggregate, "of", None)
    if of is None:
        return "value"
    path = field_path(of) if fields_of(step.record_type) else None
    if path is not None:
        return ".".join(["value", *path])
    names[f"of_{number}"] = of
    return f"of_{number}(value)"


def _in_order(pairs: list[tuple[int, Any]]) -> list[Any]:
    """Return records by time; of equal times, in the order in which they came."""
    return [record for _, record in sorted(pairs, key=_time_of)]


_time_of = itemgetter(0)


def _cut(aggregate: Collect[Any] | TopN[Any]) -> Callable[[list[Any]], list[Any]]:
    """Return the function that orders pairs of time and record, and cuts them at the limit."""
    if isinstance(aggregate, Collect):
        limit = aggregate.limit

        def earliest(pairs: list[Any]) -> list[Any]:
            return sorted(pairs, key=_time_of)[:limit]

        return earliest
    n, by = aggregate.n, aggregate.by

    def greatest(pairs: list[Any]) -> list[Any]:
        # `nlargest` is stable, so of equal values those that come first here stay first.
        return nlargest(n, sorted(pairs, key=_time_of), key=lambda pair: by(pair[1]))

    return greatest
