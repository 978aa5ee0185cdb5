"""The check whether a change of a stored type is safe, made from the two schemas alone.

The rule: a change is accepted only if every value of the old type can be read as a value of the new
one. A change that works for some stored values and fails for others is refused at submit. So an
`int` never becomes a `float` (a number above 2**53 would change). `bytes` never become a `str` (not
all bytes are text). A Literal never loses a value.

These changes are accepted:

- a field with a default is added, or a field is removed;
- `None`, union branches, enum members or Literal values are added;
- a Literal becomes its base type;
- `str` becomes `bytes`, or a Decimal or UUID becomes `str` (its text).

Names of record classes are not compared, so a class may be renamed.

The JobMaster calls `state_conflict` before it deploys anything; `api/state/resolving.py` reads the
values.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any

from tidegate.api.records.types import FACTORY, MAP, AvroSchema
from tidegate.api.state.stored import (
    CONTAINER,
    VALUES,
    kind_of,
    same_for_earlier_version,
    stored_schema,
)
from tidegate.errors import PipelineError

_INSIDE = {"array": ("items", "[]"), "map": ("values", "{}")}
_SETS = ("set", "frozenset")
_TEXTS = ("decimal-string", "uuid")
"""Logical types that are stored as text, so `str` can read them."""


def check_evolution(writer: AvroSchema, of: object, where: str) -> None:
    """Refuse a type that cannot read every value that was stored under `writer`.

    The PipelineError names the field. `where` names the state: "state 'total' of step
    'running-total'".
    """
    why_not = mismatch(writer, stored_schema(of))
    if why_not is not None:
        raise PipelineError(f"{where} cannot be read from the checkpoint: {why_not}. {REMEDY}")


REMEDY = "Restore its type, or start without this state under a new uid"


def mismatch(writer: AvroSchema, reader: AvroSchema) -> str | None:
    """Return why values stored as `writer` cannot be read as `reader`; None if all can be read."""
    return _mismatch(writer, reader, "")


def state_conflict(old: str, new: str) -> str | None:
    """Return why a state that was stored under schema `old` cannot be read under `new`.

    Both schemas are texts that `stored.state_text` has written. None if the state can be read.
    """
    written, wanted = json.loads(old), json.loads(new)
    was, now = kind_of(written), kind_of(wanted)
    if was != now:
        return f"it was a {was} state in the checkpoint and is declared as a {now} state now"
    if same_for_earlier_version(written, wanted):
        return None
    if now == "map" and not _same_bytes(_map_key(written), _map_key(wanted)):
        return "it had map keys of another type in the checkpoint; the type of a key cannot change"
    return mismatch(written, wanted)


def same_key_type(stored: str, now: str) -> bool:
    """Check that equal keys have the same canonical bytes under both schemas.

    Names of classes, defaults of fields and values of a Literal may differ, and enum members may
    have been added.
    """
    return _same_bytes(json.loads(stored), json.loads(now))


def pair_branches(
    writer: Sequence[AvroSchema], reader: Sequence[AvroSchema], path: str = ""
) -> list[int] | str:
    """Return the position of the reader's branch for each branch of the writer's union.

    If a branch has no match, or several, the result is a text with the reason. The first rule that
    leaves a branch decides:

    1. an equal branch;
    2. a fitting branch of the same kind and name;
    3. a fitting branch whose kind and name no branch of the writer has;
    4. any fitting branch.

    If several branches remain, the class of the values is unknown, and the change is refused.
    """
    known = [_identity(branch) for branch in writer]
    taken = {location for location, branch in enumerate(reader) if _identity(branch) in known}
    pairs: list[int] = []
    for number, branch in enumerate(writer):
        fitting = [i for i, each in enumerate(reader) if _mismatch(branch, each, path) is None]
        if not fitting:
            return _no_branch(branch, reader, path)
        equal = [i for i in fitting if reader[i] == branch]
        for preferred in (
            equal[list(writer[:number]).count(branch) :][:1],  # equal branches pair by position
            [i for i in fitting if _identity(reader[i]) == _identity(branch)],
            [i for i in fitting if i not in taken],
            fitting,
        ):
            if preferred:
                break
        if len(preferred) > 1:
            return f"{_at(path)}{_describe(branch)} was written and fits several of {_list(reader)}"
        pairs.append(preferred[0])
    return pairs


def _mismatch(writer: AvroSchema, reader: AvroSchema, path: str) -> str | None:
    """Return why `reader` cannot read `writer`, with the field's path; None if it can."""
    if writer == reader:
        return None
    if isinstance(reader, list):
        branches = writer if isinstance(writer, list) else [writer]
        pairs = pair_branches(branches, reader, path)
        return pairs if isinstance(pairs, str) else None
    if isinstance(writer, list):
        reasons = [_mismatch(branch, reader, path) for branch in writer]
        return next((reason for reason in reasons if reason is not None), None)
    kind = _kind(writer)
    if kind == "record" == _kind(reader):
        return _record_mismatch(writer, reader, path)
    if kind == "array" == _kind(reader) and (problem := _container_mismatch(writer, reader, path)):
        return problem
    if kind in _INSIDE and kind == _kind(reader):
        inside, mark = _INSIDE[kind]
        return _mismatch(writer[inside], reader[inside], path + mark)
    if kind == "enum" == _kind(reader):
        return _enum_mismatch(writer, reader, path)
    return _scalar_mismatch(writer, reader, path)


def _no_branch(writer: AvroSchema, reader: Sequence[AvroSchema], path: str) -> str:
    same_kind = [branch for branch in reader if _kind(branch) == _kind(writer)]
    if len(same_kind) == 1:  # the mismatch inside this branch says more
        return str(_mismatch(writer, same_kind[0], path))
    return f"{_at(path)}{_describe(writer)} was written and is not one of {_list(reader)}"


def _record_mismatch(writer: AvroSchema, reader: AvroSchema, path: str) -> str | None:
    written = {field["name"]: field for field in writer["fields"]}
    for field in reader["fields"]:
        name = f"{path}.{field['name']}" if path else field["name"]
        theirs = written.get(field["name"])
        if theirs is not None:
            why_not = _mismatch(theirs["type"], field["type"], name)
            if why_not is not None:
                return why_not
        elif "default" not in field and FACTORY not in field:
            return f"field {name!r} was added to {reader['name']} without a default"
    return None


def _container_mismatch(writer: AvroSchema, reader: AvroSchema, path: str) -> str | None:
    if bool(writer.get(MAP)) != bool(reader.get(MAP)):
        return f"{_at(path)}a list was written and a dict is declared, or the other way"
    was, now = writer.get(CONTAINER), reader.get(CONTAINER)
    if now in _SETS and was not in (None, *_SETS):
        return (
            f"{_at(path)}a {was} was written, a {now} is declared, which would lose the order and "
            "repeated items"
        )
    return None


def _enum_mismatch(writer: AvroSchema, reader: AvroSchema, path: str) -> str | None:
    at = _at(path)
    gone = [symbol for symbol in _written_members(writer) if symbol not in reader["symbols"]]
    if gone:
        return f"{at}the enum {reader['name']} has no {gone[0]} any more"
    if VALUES not in writer:  # an earlier version wrote no values of a Literal into the schema
        return None
    return _values_mismatch(writer, reader, path)


def _written_members(writer: AvroSchema) -> Iterable[str]:
    members: Iterable[str] = writer.get(VALUES, writer["symbols"])
    return members


def _scalar_mismatch(writer: AvroSchema, reader: AvroSchema, path: str) -> str | None:
    was, now = _logical(writer), _logical(reader)
    text_as_bytes = (_kind(writer), _kind(reader)) == ("string", "bytes") and not was
    as_text = _kind(writer) == _kind(reader) == "string" and was in _TEXTS and not now
    same = _kind(writer) == _kind(reader) and was == now
    if not (same or text_as_bytes or as_text):
        return f"{_at(path)}{_describe(writer)} was written, {_describe(reader)} is declared"
    earlier_version = not isinstance(writer, dict)
    return None if same and earlier_version else _values_mismatch(writer, reader, path)


def _values_mismatch(writer: AvroSchema, reader: AvroSchema, path: str) -> str | None:
    """Return why a Literal of the reader cannot read the writer; None if it can.

    A Literal reads only a Literal that has no other values.
    """
    allowed = reader.get(VALUES) if isinstance(reader, dict) else None
    if allowed is None:
        return None
    written = writer.get(VALUES) if isinstance(writer, dict) else None
    if written is None or _kind(writer) != _kind(reader):
        return f"{_at(path)}{_describe(writer)} was written, only {_values(allowed)} is declared"
    gone = [value for value in written if value not in allowed]
    if gone:
        return f"{_at(path)}{gone[0]!r} may have been written, only {_values(allowed)} is declared"
    return None


def _values(allowed: Iterable[object]) -> str:
    return f"Literal[{', '.join(map(repr, allowed))}]"


def _identity(schema: AvroSchema) -> tuple[object, ...]:
    """Return the properties by which a branch is recognised after its content has changed."""
    name = schema.get("name") if isinstance(schema, dict) else None
    container = schema.get(CONTAINER) if isinstance(schema, dict) else None
    return _kind(schema), _logical(schema), name, container


def _kind(schema: AvroSchema) -> str:
    return str(schema["type"] if isinstance(schema, dict) else schema)


def _logical(schema: AvroSchema) -> str:
    return str(schema.get("logicalType", "")) if isinstance(schema, dict) else ""


def _at(path: str) -> str:
    return f"field {path!r}: " if path else ""


def _describe(schema: AvroSchema) -> str:
    if isinstance(schema, list):
        return f"one of {_list(schema)}"
    if isinstance(schema, dict) and "name" in schema:
        return f"{schema['type']} {schema['name']}"
    return _logical(schema) or _kind(schema)


def _list(schemas: Iterable[AvroSchema]) -> str:
    return ", ".join(map(_describe, schemas))


def _map_key(schema: Any) -> Any:
    return schema["fields"][0]["type"]


def _same_bytes(old: Any, new: Any) -> bool:
    """Check that keys written under schema `old` have the same canonical bytes under `new`.

    Names of classes, defaults of fields and the values of a Literal are not in the bytes. An enum's
    member is in the bytes by its name, so members may be added.
    """
    if _kind(old) != _kind(new) or _logical(old) != _logical(new):
        return False
    if _kind(old) == "enum":
        return set(old["symbols"]) <= set(new["symbols"])
    if _kind(old) == "record":
        return [field["name"] for field in old["fields"]] == [
            field["name"] for field in new["fields"]
        ] and all(
            _same_bytes(mine["type"], theirs["type"])
            for mine, theirs in zip(old["fields"], new["fields"], strict=True)
        )
    return _kind(old) != "array" or _same_bytes(old["items"], new["items"])
