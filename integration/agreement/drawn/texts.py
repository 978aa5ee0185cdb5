"""The module of a drawn pipeline, as text. A failed test prints it.

The class is `Drawn`. `load` imports the module, so that a test has the class in its own process.
"""

from __future__ import annotations

import importlib.util
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from integration.agreement.drawn.draws import (
    CALENDAR,
    GLOBAL,
    HEADER,
    KAFKA,
    MONOTONOUS,
    ORDERED,
    PUNCTUATED,
    REDUCED,
    SESSION,
    SESSION_OF,
    SIDES,
    SLIDING,
    TIMERS,
    Draw,
    Firing,
    SourceDraw,
    StepDraw,
    Windows,
)
from integration.agreement.drawn.parts import Event, Row
from tidegate import Pipeline

HEADER_NAME: Final = "at"
IDLE_AFTER: Final = "500 ms"

_AGGREGATES: Final = {
    "names": "Names()",
    "collected": "Collect(at_most=NAMES_MAX)",
    "count": "Count()",
    "sum": "Sum(lambda event: event.amount)",
    "weights": "Sum(lambda event: event.weight)",
    "mean": "Mean(lambda event: event.amount)",
    "min": "Min(lambda event: event.weight)",
    "max": "Max(lambda event: event.amount)",
    "first": "First(lambda event: event.name)",
    "last": "Last(lambda event: event.name)",
    "top": "TopN(2, lambda event: event.amount)",
}

_HEAD: Final = '''"""The pipeline that seed {seed} draws, {bound} the bound."""

from integration.agreement.drawn.parts import (
    NAMES_MAX,
    Event,
    Names,
    Pass,
    Row,
    Sorting,
    SortingSides,
    Whole,
    combined,
    event_ms,
    first_letter,
    gap_of,
    kept,
    key_of,
    mark_ms,
    rows,
)
from tidegate import (
    AfterWatermark,
    BoundedOutOfOrderness,
    Calendar,
    Collect,
    Count,
    Every,
    EveryCount,
    First,
    Global,
    HeaderTime,
    Json,
    KafkaSink,
    KafkaSource,
    Last,
    Max,
    Mean,
    Min,
    Monotonous,
    Pipeline,
    Punctuated,
    Repeatedly,
    Session,
    Sliding,
    Sum,
    TopN,
    Tumbling,
)


class Drawn(Pipeline, name="drawn-{seed}"):
'''


def text_of(draw: Draw) -> str:
    """Return the module of a pipeline."""
    head = _HEAD.format(seed=draw.seed, bound="beyond" if draw.beyond else "within")
    lines = [
        *(_source(draw, source) for source in draw.sources),
        *_sinks(draw),
        "",
        "def define(self) -> None:",
        *(f"    {line}" for line in _body(draw)),
    ]
    return head + textwrap.indent("\n".join(lines), "    ") + "\n"


def sinks_of(draw: Draw) -> dict[str, type]:
    """Return the sinks of a pipeline, with the types of their records."""
    found: dict[str, type] = {}
    for step in draw.steps:
        found[f"{step.uid}_rows"] = Event if step.parts == (REDUCED,) else Row
        found[f"{step.uid}_late"] = Event
        if step.wider_ms:
            found[f"{step.uid}_wider"] = found[f"{step.uid}_wider_late"] = Row
    if draw.stamped_ms is not None:
        found["rejected"] = Event
    return found


def load(draw: Draw, folder: Path) -> type[Pipeline]:
    """Write the module into a folder, import it, and return the class."""
    name = f"drawn_{draw.seed}_{'beyond' if draw.beyond else 'within'}"
    path = folder / f"{name}.py"
    path.write_text(text_of(draw))
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module: Any = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    found: type[Pipeline] = module.Drawn
    return found


def _source(draw: Draw, source: SourceDraw) -> str:
    strategy = source.strategy
    options = [f'"{source.name}"', "value=Json(Event)"]
    if draw.stamped_ms is None:
        if strategy.time == HEADER:
            options.append(f'event_time=HeaderTime("{HEADER_NAME}")')
        elif strategy.time != KAFKA:
            options.append("event_time=event_ms")
        options.append(f"watermarks={_strategy(source)}")
        if source.bad:
            options.append('on_bad_record="skip"')
    return f"{source.name} = KafkaSource({', '.join(options)})"


def _strategy(source: SourceDraw) -> str:
    kind, delay_ms = source.strategy.kind, source.strategy.delay_ms
    idle = f'idle_after="{IDLE_AFTER}"' if source.strategy.idle else ""
    if kind == MONOTONOUS:
        return f"Monotonous({idle})"
    first = "mark_ms" if kind == PUNCTUATED else f'"{delay_ms} ms"'
    name = "Punctuated" if kind == PUNCTUATED else "BoundedOutOfOrderness"
    return f"{name}({first}{f', {idle}' if idle else ''})"


def _sinks(draw: Draw) -> Iterator[str]:
    for name, of in sinks_of(draw).items():
        topic, key = name.replace("_", "-"), "lambda record: record.key"
        yield f'{name} = KafkaSink("{topic}", value=Json({of.__name__}), record_key={key})'


def _body(draw: Draw) -> Iterator[str]:
    names = [source.name for source in draw.sources]
    for name in names:
        yield f"{name} = self.{name}"
        if draw.stamped_ms is not None:
            delay = f'watermarks=BoundedOutOfOrderness("{draw.stamped_ms} ms")'
            yield f'{name} = {name}.with_timestamps(event_ms, {delay}, uid="stamp-{name}")'
            yield f"{name}.rejected.to(self.rejected)"
        if draw.filtered:
            yield f"{name} = {name}.filter(kept)"
    first, *others = names
    yield f"stream = {first}.union({others[0]})" if others else f"stream = {first}"
    if draw.passes:
        yield 'stream = stream.key_by(first_letter).process(Pass(), uid="pass")'
    for step in draw.steps:
        yield from _step(step, names)


def _step(step: StepDraw, sources: list[str]) -> Iterator[str]:
    uid = step.uid
    if step.kind == TIMERS:
        yield f'{uid} = stream.key_by(key_of).process(Sorting(), uid="{uid}")'
        late = "side_output(Sorting.late)"
    elif step.kind == SIDES:
        left, right = (f"{name}.key_by(key_of)" for name in sources)
        yield f'{uid} = {left}.connect({right}).process(SortingSides(), uid="{uid}")'
        late = "side_output(SortingSides.late)"
    else:
        yield f"{uid} = {_windowed(step)}"
        late = "late"
    yield f"{uid}.to(self.{uid}_rows)"
    yield f"{uid}.{late}.to(self.{uid}_late)"
    if step.wider_ms:
        by_letter = f"{uid}.key_by(lambda row: row.key[:1], returns=str)"
        wider = f'{by_letter}.window(Tumbling("{step.wider_ms} ms"))'
        aggregates = 'Count(), Sum(lambda row: row.total), into=rows("count", "sum")'
        yield f'wider = {wider}.aggregate({aggregates}, uid="{uid}-wider", returns=Row)'
        yield f"wider.to(self.{uid}_wider)"
        yield f"wider.late.to(self.{uid}_wider_late)"


def _windowed(step: StepDraw) -> str:
    assert step.windows is not None
    stream = "stream.key_by(key_of).window" if step.by_key else "stream.window_all"
    options = [_assigner(step.windows)]
    if step.firing is not None:
        options.append(f"trigger={_trigger(step.firing)}")
    if step.lateness_ms:
        options.append(f'allowed_lateness="{step.lateness_ms} ms"')
    windows = f"{stream}({', '.join(options)})"
    if step.parts == (ORDERED,):
        return f'{windows}.process(Whole(), uid="{step.uid}")'
    if step.parts == (REDUCED,):
        return f'{windows}.reduce(combined, uid="{step.uid}")'
    aggregates = ", ".join(_AGGREGATES[part] for part in step.parts)
    names = ", ".join(f'"{part}"' for part in step.parts)
    return f'{windows}.aggregate({aggregates}, into=rows({names}), uid="{step.uid}", returns=Row)'


def _assigner(windows: Windows) -> str:
    size, offset = f'"{windows.size_ms} ms"', f'offset="{windows.offset_ms} ms"'
    return {
        SLIDING: f'Sliding({size}, "{windows.every_ms} ms", {offset})',
        SESSION: f"Session({size})",
        SESSION_OF: "Session(gap_of)",
        CALENDAR: f'Calendar("{windows.unit}", zone="{windows.zone}")',
        GLOBAL: "Global()",
    }.get(windows.kind, f"Tumbling({size}, {offset})")


def _trigger(firing: Firing) -> str:
    options = [
        f"{name}={_repeat(of)}"
        for name, of in (("early", firing.early), ("late", firing.late))
        if of
    ]
    if not firing.accumulate:
        options.append("accumulate=False")
    if firing.repeatedly:
        return f"Repeatedly({', '.join([_repeat(firing.repeatedly), *options])})"
    return f"AfterWatermark({', '.join(options)})"


def _repeat(repeat: str) -> str:
    if repeat.endswith("ms"):
        return f'Every("{repeat}", time="event")'
    return f"EveryCount({repeat})"
