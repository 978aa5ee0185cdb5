"""The differences between a checkpoint and the present code of its job, for `tidegate diff`.

The module only describes. Whether a restore is accepted is decided by `checkpoint/restore.py`,
for this command as for a run. The states come from the metadata that a restore compares. The
sources, sinks and steps come from the description of the graph, which every manifest has.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, Literal

import msgspec

from tidegate.api.state.stored import kind_of
from tidegate.checkpoint.manifest import Manifest
from tidegate.checkpoint.state_changes import SchemaRules, match_step, stored_schemas
from tidegate.checkpoint.state_metadata import StateMetadata, StepMetadata
from tidegate.graph.stream_graph import MAIN
from tidegate.protocol.subtask_snapshot import KEY_TYPE

What = Literal["added", "removed", "changed", "renamed", "moved", "dropped"]

_FUNCTIONS: Final = frozenset({"event_time", "into", "window_function"})
"""Options that are the name of a function, with its module."""

_NAMES_SHOWN: Final = 3
"""Number of moved functions that are named."""


_OF_STATE: Final = frozenset({"state", "key", "record", "timers", "dropped_states"})
"""Options of a step that the metadata of its state also has."""

REFUSED: Final = "the restore is refused"


class Change(msgspec.Struct, frozen=True, kw_only=True):
    """A difference between the checkpoint and the code."""

    kind: str
    """The kind of thing: a source, sink, step, state, timer, key, windows or a parallelism."""
    name: str
    change: What
    was: str = ""
    now: str = ""
    effect: str = ""
    """The consequence for a run that continues from the checkpoint."""


def code_changes(
    manifest: Manifest, plan: StateMetadata, graph: Mapping[str, Any], rules: SchemaRules
) -> tuple[Change, ...]:
    """Return every change. `graph` is the description of the present graph."""
    return (
        *_parallelism_changes(manifest.plan, plan),
        *_state_changes(manifest, plan, rules),
        *_graph_changes(manifest, plan, graph),
    )


def type_text(schema: Any) -> str:
    """Return a stored schema in a short form, such as `Order(id: string, cents: long)`."""
    match schema:
        case list():
            return " | ".join(type_text(branch) for branch in schema)
        case {"type": "record", "fields": fields, **rest}:
            inside = ", ".join(f"{each['name']}: {type_text(each['type'])}" for each in fields)
            return f"{rest.get('name', 'record')}({inside})"
        case {"type": "array", "items": items}:
            return f"list[{type_text(items)}]"
        case {"type": "map", "values": values}:
            return f"map[{type_text(values)}]"
        case {"logicalType": str(logical)}:
            return logical
        case {"type": inner}:
            return type_text(inner)
        case _:
            return str(schema)


# --- state --------------------------------------------------------------------------------------


def _parallelism_changes(old: StateMetadata, new: StateMetadata) -> Iterator[Change]:
    if old.parallelism != new.parallelism:
        yield Change(
            kind="parallelism",
            name="job.parallelism",
            change="changed",
            was=str(old.parallelism),
            now=str(new.parallelism),
            effect="the state is distributed over the new subtasks",
        )
    if old.max_parallelism != new.max_parallelism:
        yield Change(
            kind="max_parallelism",
            name="job.max_parallelism",
            change="changed",
            was=str(old.max_parallelism),
            now=str(new.max_parallelism),
            effect=REFUSED if old.steps else "no step has state that depends on it",
        )


def _state_changes(manifest: Manifest, plan: StateMetadata, rules: SchemaRules) -> Iterator[Change]:
    old = {step.uid: step for step in manifest.plan.steps}
    new = {step.uid: step for step in plan.steps}
    for uid in (uid for uid in old if uid not in new):
        states = ", ".join(sorted(old[uid].states)) or "none"
        yield Change(
            kind="keyed step", name=uid, change="removed", was=f"states: {states}", effect=REFUSED
        )
    for step in plan.steps:
        if step.uid in old:
            yield from _step_changes(manifest, old[step.uid], step, rules)
        else:
            states = ", ".join(sorted(step.states)) or "none"
            yield Change(
                kind="keyed step",
                name=step.uid,
                change="added",
                now=f"states: {states}",
                effect="it begins without state",
            )


def _step_changes(
    manifest: Manifest, old: StepMetadata, new: StepMetadata, rules: SchemaRules
) -> Iterator[Change]:
    stored = stored_schemas(manifest, old.uid)
    if old.key_type != new.key_type:
        yield Change(
            kind="key",
            name=old.uid,
            change="changed",
            was=old.key_type,
            now=new.key_type,
            effect=REFUSED,
        )
    for name in sorted({*old.fixed, *new.fixed}):
        if old.fixed.get(name) != new.fixed.get(name):
            yield Change(
                kind="windows",
                name=f"{old.uid}.{name}",
                change="changed",
                was=old.fixed.get(name, "not set"),
                now=new.fixed.get(name, "not set"),
                effect=REFUSED,
            )
    match = match_step({*old.states, *stored} - {KEY_TYPE}, new)
    for name in match.dropped:
        yield _state_change(old.uid, name, stored, "dropped", effect="its values are deleted")
    for name in match.unknown:
        yield _state_change(old.uid, name, stored, "removed", effect=REFUSED)
    for state, schema in sorted(new.states.items()):
        former = match.restored.get(state)
        kind, now = _kind(schema), _text(schema)
        if former is None:
            yield Change(
                kind=kind,
                name=f"{new.uid}.{state}",
                change="added",
                now=now,
                effect="it begins empty, or with its default",
            )
            continue
        if former != state:
            yield Change(
                kind=kind,
                name=f"{new.uid}.{state}",
                change="renamed",
                was=former,
                now=state,
                effect="its values are kept",
            )
        unreadable = any(
            rules.conflict(each, schema) is not None for each in stored.get(former, ())
        )
        known = [_text(each) for each in stored.get(former, ())] or _of_metadata(old, former)
        if known and now != known[-1]:
            yield Change(
                kind=kind,
                name=f"{new.uid}.{state}",
                change="changed",
                was=known[-1],
                now=now,
                effect=REFUSED if unreadable else "stored values are read as the new type",
            )


def _of_metadata(old: StepMetadata, state: str) -> list[str]:
    """Return the type in the metadata of a checkpoint in which the state has no values. Earlier
    versions wrote another form, which is not comparable.
    """
    schema = old.states.get(state, "")
    try:
        return [_text(schema)] if schema else []
    except json.JSONDecodeError:
        return []


def _state_change(
    uid: str, name: str, stored: Mapping[str, list[str]], change: What, *, effect: str
) -> Change:
    schemas = stored.get(name, [])
    return Change(
        kind=_kind(schemas[-1]) if schemas else "state",
        name=f"{uid}.{name}",
        change=change,
        was=_text(schemas[-1]) if schemas else "",
        effect=effect,
    )


def _kind(schema: str) -> str:
    """Return "timer" for the schema of a timer, and "state" for other schemas."""
    return "timer" if kind_of(json.loads(schema)).endswith(("_timer", "_timers")) else "state"


def _text(schema: str) -> str:
    parsed = json.loads(schema)
    kind = kind_of(parsed)
    if kind.endswith(("_timer", "_timers")):
        return kind
    return type_text(parsed) if kind == "value" else f"{kind} of {type_text(parsed)}"


# --- graph --------------------------------------------------------------------------------------


def _graph_changes(
    manifest: Manifest, plan: StateMetadata, graph: Mapping[str, Any]
) -> Iterator[Change]:
    old = _nodes(manifest.graph)
    new = _nodes(graph)
    if not old:  # a checkpoint of an early version
        return
    with_state = {step.uid for step in (*manifest.plan.steps, *plan.steps)}
    for name in (name for name in old if name not in new and name not in with_state):
        yield Change(
            kind=_node_kind(old[name]),
            name=name,
            change="removed",
            was=_node_text(old[name]),
            effect=REFUSED if old[name]["kind"] == "source" else "",
        )
    for name in (name for name in new if name not in old and name not in with_state):
        starts = "it begins where its starting_offsets= says"
        yield Change(
            kind=_node_kind(new[name]),
            name=name,
            change="added",
            now=_node_text(new[name]),
            effect=starts if new[name]["kind"] == "source" else "",
        )
    topics = {source.uid: source.topic for source in plan.sources}
    for source in manifest.plan.sources:
        if source.uid in topics and topics[source.uid] != source.topic:
            yield Change(
                kind="source",
                name=source.uid,
                change="changed",
                was=f"topic {source.topic}",
                now=f"topic {topics[source.uid]}",
                effect=REFUSED,
            )
    moved: dict[tuple[str, str], list[str]] = {}
    for name in (name for name in old if name in new):
        yield from _node_changes(name, old[name], new[name], moved)
    for (was, now), functions in sorted(moved.items()):
        unique = list(dict.fromkeys(functions))
        more = len(unique) - _NAMES_SHOWN
        yield Change(
            kind="functions" if len(unique) > 1 else "function",
            name=", ".join(unique[:_NAMES_SHOWN]) + (f" and {more} more" if more > 0 else ""),
            change="moved",
            was=was,
            now=now,
            effect="the names in the module are the same",
        )


def _is_moved(was: Any, now: Any, moved: dict[tuple[str, str], list[str]]) -> bool:
    """Return whether two names of functions differ in the module only, and note the move."""
    if not (isinstance(was, str) and isinstance(now, str)):
        return False
    (module, colon, name), (new_module, _, new_name) = was.partition(":"), now.partition(":")
    if was == now or not colon or name != new_name:
        return False
    moved.setdefault((module, new_module), []).append(name.rpartition("<locals>.")[2])
    return True


def _are_moved(
    was: Sequence[Sequence[Any]],
    now: Sequence[Sequence[Any]],
    moved: dict[tuple[str, str], list[str]],
) -> bool:
    """Return whether inputs differ in the modules of their key functions only."""
    if [[*each[:3], *each[4:]] for each in was] != [[*each[:3], *each[4:]] for each in now]:
        return False
    keys = [(one[3], other[3]) for one, other in zip(was, now, strict=True) if one[3] != other[3]]
    found: dict[tuple[str, str], list[str]] = {}
    if not all(_is_moved(one, other, found) for one, other in keys):
        return False
    for modules, names in found.items():
        moved.setdefault(modules, []).extend(names)
    return True


def _node_changes(
    name: str,
    old: Mapping[str, Any],
    new: Mapping[str, Any],
    moved: dict[tuple[str, str], list[str]],
) -> Iterator[Change]:
    """Yield the changes of a node, and note in `moved` the functions of which only the module has
    another name, by its old and new name.
    """
    kind = _node_kind(new)
    for what in ("kind", "function", "inputs"):
        is_moved = _are_moved if what == "inputs" else _is_moved
        if old[what] != new[what] and not is_moved(old[what], new[what], moved):
            shown = _inputs_text if what == "inputs" else _plain
            was, now = shown(old[what]), shown(new[what])
            yield Change(kind=kind, name=f"{name}.{what}", change="changed", was=was, now=now)
    for option in sorted({*old["options"], *new["options"]} - _left_out(kind)):
        was, now = old["options"].get(option), new["options"].get(option)
        if was != now and not (option in _FUNCTIONS and _is_moved(was, now, moved)):
            yield Change(
                kind=kind,
                name=f"{name}.{option}",
                change="changed",
                was=_plain(was),
                now=_plain(now),
            )


def _left_out(kind: str) -> frozenset[str]:
    """Return the options that another change reports: those of state, and the topic of a source."""
    if kind == "source":
        return frozenset({"topic"})
    return frozenset() if kind == "sink" else _OF_STATE


def _nodes(graph: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    # A stored graph has been through JSON, so the present one is compared in the same form.
    return {node["id"]: node for node in json.loads(json.dumps(graph.get("nodes", [])))}


def _node_kind(node: Mapping[str, Any]) -> str:
    return str(node["kind"]) if node["kind"] in {"source", "sink"} else "step"


def _node_text(node: Mapping[str, Any]) -> str:
    if node["kind"] in {"source", "sink"}:
        return f"topic {node['options'].get('topic', 'none')}"
    return str(node["function"] or node["kind"])


def _plain(value: Any) -> str:
    if value is None:
        return "not set"
    if isinstance(value, Mapping) and "schema" in value:
        return f"{value.get('format', '')} {type_text(value['schema'])}".strip()
    return value if isinstance(value, str) else json.dumps(value)


def _inputs_text(inputs: Sequence[Sequence[Any]]) -> str:
    """Return the inputs of a step, such as "orders by key job:Totals.customer"."""
    return ", ".join(
        name
        + ("" if port == MAIN else f".{port}")
        + (f" by key {key}" if partitioning == "key" else "")
        for name, port, partitioning, key, *_ in inputs
    )
