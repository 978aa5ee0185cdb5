"""A pipeline's graph as a drawing, and the drawing as text, JSON or Mermaid.

A drawing has only names: it is what all pictures of a graph show. `graph_svg` draws the same boxes
and arrows.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

from tidegate.api.connectors.kafka_names import kafka_nodes, topic_of
from tidegate.api.connectors.sink import Sink
from tidegate.api.records.record_fields import type_name
from tidegate.api.windows.triggers import Every, EveryCount, Repeat, Trigger
from tidegate.api.windows.window_step import Reduced, WindowStep
from tidegate.api.windows.windows import Assigner, Calendar, Session, Sliding, Tumbling
from tidegate.config import Config
from tidegate.graph.stream_graph import (
    MAIN,
    UNKNOWN,
    Edge,
    Node,
    StreamGraph,
    function_name,
)
from tidegate.message_text import counted


class Box(NamedTuple):
    """A step. `detail` is its topic, its windows or the name of its function."""

    id: str
    kind: str
    detail: str
    records: str
    """The type of its results; empty if it is not declared."""
    location: str


class Arrow(NamedTuple):
    """The way of records from one step to another, by the positions of the boxes."""

    source: int
    target: int
    label: str
    dead_letters: bool


class Drawing(NamedTuple):
    """A graph as people see it."""

    name: str
    boxes: tuple[Box, ...]
    arrows: tuple[Arrow, ...]


def drawing(graph: StreamGraph, config: Config) -> Drawing:
    """Return the drawing of a graph, with the topics that the configuration gives."""
    topics = {node.id: topic_of(config, node) for node in kafka_nodes(graph)}
    nodes = list(graph)
    place = {node.id: number for number, node in enumerate(nodes)}
    arrows = tuple(
        Arrow(place[edge.node], place[node.id], _label(edge), graph.carries_dead_letters(edge))
        for node in nodes
        for edge in node.inputs
    )
    boxes = tuple(_box(node, topics, _result_type(graph, node)) for node in nodes)
    return Drawing(graph.name, boxes, arrows)


def plain_text(picture: Drawing) -> str:
    """Return a line per step, and a line per input below it."""
    lines = [f"{picture.name}: {counted(len(picture.boxes), 'step')}"]
    kinds, ids = (
        max(len(value) for value in column)
        for column in zip(*((box.kind, box.id) for box in picture.boxes), strict=True)
    )
    for number, box in enumerate(picture.boxes):
        records = f"  -> {box.records}" if box.records else ""
        line = f"  {box.kind:<{kinds}}  {box.id:<{ids}}  {box.detail}{records}  {box.location}"
        lines.append(line.rstrip())
        for arrow in picture.arrows:
            if arrow.target == number:
                label = f", {arrow.label}" if arrow.label else ""
                lines.append(f"  {'':<{kinds}}    from {picture.boxes[arrow.source].id}{label}")
    return "\n".join(lines)


def drawing_json(picture: Drawing) -> dict[str, Any]:
    """Return the drawing as JSON. Arrows name the ids of steps."""
    return {
        "name": picture.name,
        "steps": [box._asdict() for box in picture.boxes],
        "edges": [
            {
                "from": picture.boxes[arrow.source].id,
                "to": picture.boxes[arrow.target].id,
                "label": arrow.label,
                "dead_letters": arrow.dead_letters,
            }
            for arrow in picture.arrows
        ],
    }


def mermaid_text(picture: Drawing) -> str:
    """Return a Mermaid flowchart. Sources and sinks are rounded, and dead letters are dotted."""
    lines = ["flowchart TD"]
    for number, box in enumerate(picture.boxes):
        label = "<br/>".join(_mermaid(text) for text in (box.id, describe_box(box)) if text)
        ends = ("([", "])") if box.kind in {"source", "sink"} else ("[", "]")
        lines.append(f'    n{number}{ends[0]}"{label}"{ends[1]}')
    for arrow in picture.arrows:
        line = "-.->" if arrow.dead_letters else "-->"
        label = f'|"{_mermaid(arrow.label)}"|' if arrow.label else ""
        lines.append(f"    n{arrow.source} {line}{label} n{arrow.target}")
    return "\n".join(lines)


def describe_box(box: Box) -> str:
    """Return the second line of a box: the kind of the step, and its topic or function."""
    kind = box.kind.replace("_", " ")
    return f"{kind} {box.detail}" if box.detail else kind


def _box(node: Node, topics: dict[str, str], of: object) -> Box:
    if node.id in topics:
        detail = f"topic {topics[node.id]}"
    elif isinstance(node.function, WindowStep):
        detail = windows_text(node.function)
    else:
        detail = short_name(node.function if node.declaration is None else node.declaration)
    records = "" if of is UNKNOWN else type_name(of)
    file, colon, line = node.location.rpartition(":")
    location = f"{Path(file).name}{colon}{line}" if colon else node.location
    return Box(node.id, node.kind, detail, records if node.kind != "sink" else "", location)


def _result_type(graph: StreamGraph, node: Node) -> object:
    """Return the type of the results of a step. If the step does not declare it, it is the one that
    all sinks which read the results declare.
    """
    if node.record_type is not UNKNOWN:
        return node.record_type
    sinks = [sink.declaration for sink, edge in graph.consumers(node.id) if edge.port == MAIN]
    types = [sink.record_type() for sink in sinks if isinstance(sink, Sink)]
    return types[0] if types and all(of == types[0] for of in types) else UNKNOWN


def windows_text(step: WindowStep) -> str:
    """Return the windows of a step and what becomes of their records, for example "Tumbling 1 h,
    lateness 2 h: Sum, Count".
    """
    parts = [_assigner_text(step.assigner), *_trigger_texts(step.trigger)]
    if step.lateness_ms:
        parts.append(f"lateness {span_text(step.lateness_ms)}")
    names = [
        "reduce" if isinstance(each, Reduced) else type(each).__name__ for each in step.aggregates
    ]
    made = ", ".join(names) if step.function is None else short_name(step.function)
    return f"{', '.join(parts)}: {made}"


def _assigner_text(assigner: Assigner[Any]) -> str:
    text = type(assigner).__name__
    match assigner:
        case Tumbling():
            text += f" {span_text(assigner.size_ms)}"
        case Sliding():
            text += f" {span_text(assigner.size_ms)} every {span_text(assigner.every_ms)}"
        case Session(gap_ms=int(gap_ms)):
            text += f" {span_text(gap_ms)}"
        case Session():
            text += " with a gap of each record"
        case Calendar():
            text += f" {assigner.unit} {assigner.zone_name}"
        case _:  # the global window has no size
            pass
    offset_ms = getattr(assigner, "offset_ms", 0)
    text += f" offset {span_text(offset_ms)}" if offset_ms else ""
    return text if assigner.time == "event" else f"{text} of processing time"


def _trigger_texts(trigger: Trigger[Any]) -> list[str]:
    """Return what differs from the default trigger."""
    texts = []
    if not trigger.on_time:
        texts.append(f"fires {_repeat_text(trigger.early)}")
    else:
        texts += [f"early {_repeat_text(trigger.early)}"] if trigger.early is not None else []
        texts += ["always on time"] if trigger.always_on_time else []
        if not (isinstance(trigger.late, EveryCount) and trigger.late.records == 1):
            texts.append(f"late {_repeat_text(trigger.late)}")
    return texts if trigger.accumulate else [*texts, "discarding"]


def _repeat_text(repeat: Repeat | None) -> str:
    if isinstance(repeat, Every):
        of_event = " of event time" if repeat.time == "event" else ""
        return f"every {span_text(repeat.period_ms)}{of_event}"
    count = 1 if repeat is None else repeat.records
    return "at each record" if count == 1 else f"at each {counted(count, 'record')}"


def span_text(ms: int) -> str:
    """Return a duration as a user writes it: "1 h", "90 s"."""
    units = (("d", 86_400_000), ("h", 3_600_000), ("min", 60_000), ("s", 1_000))
    unit, size = next((one for one in units if ms % one[1] == 0), ("ms", 1))
    return f"{ms // size} {unit}"


def _label(edge: Edge) -> str:
    parts = []
    if edge.partitioning == "key":
        name = short_name(edge.key)
        parts.append("by key" if name in {"", "lambda"} else f"by key {name}")
    if edge.port != MAIN:
        parts.append(edge.port.strip("-").replace("_", " ").replace("-", " "))
    if edge.side:
        parts.append("right input")
    return ", ".join(parts)


def short_name(function: object) -> str:
    """Return the name of a function or class without its module and the functions around it."""
    name = (function_name(function) or "").rpartition(":")[2].rpartition("<locals>.")[2]
    return name.replace("<lambda>", "lambda").rpartition(".")[2]


def _mermaid(text: str) -> str:
    for character, entity in (("#", "#35;"), ('"', "#quot;"), ("<", "#lt;"), (">", "#gt;")):
        text = text.replace(character, entity)
    return text
