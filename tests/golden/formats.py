"""The form of everything that tidegate keeps in a checkpoint storage, as one text.

It has tags, names and types of fields, and says which of them have a default. It has no names of
Python classes and attributes, so a renamed class changes nothing here. `make golden` writes the
text next to the storages of a generation, and `test_storages.py` compares it with the newest one.
Control messages are not in it: all processes of a cluster have one version.
"""

from __future__ import annotations

from typing import Any, Final

from msgspec import inspect

from tidegate.checkpoint import envelope
from tidegate.checkpoint.manifest import Manifest
from tidegate.commit.initial_offsets import InitialOffsets
from tidegate.commit.journal.entries import AnyEntry
from tidegate.commit.journal.state import JournalState
from tidegate.controlplane.jobmanager.job_store import VERSION, _Decision
from tidegate.protocol.reports import JobReport
from tidegate.protocol.submission import Submission

FORMATS: Final = "formats.txt"

STORED: Final[dict[str, Any]] = {
    f"envelope of journal and manifests, version {envelope.VERSION}": envelope._Envelope,
    "journal/NUMBER.json": AnyEntry,
    "journal/NUMBER.hint": JournalState,
    "manifests/CHECKPOINT.json": Manifest,
    "beginnings/SUBMISSION.json": InitialOffsets,
    f"submissions/NUMBER/submission.json, version {VERSION}": Submission,
    f"submissions/NUMBER/decision.json, version {VERSION}": _Decision,
    f"submissions/NUMBER/result.json, version {VERSION}": JobReport,
}


def describe_formats() -> str:
    """Every format, in the order of `STORED`."""
    return "\n".join(_described(name, of) for name, of in STORED.items())


def _described(name: str, of: Any) -> str:
    lines = [name]
    _describe(inspect.type_info(of), 1, lines, ())
    return "\n".join(lines) + "\n"


def _describe(of: inspect.Type, depth: int, lines: list[str], above: tuple[type, ...]) -> None:
    """Add a line for each field of a struct, and below it those of the structs in its type."""
    indent = "  " * depth
    if isinstance(of, inspect.UnionType):
        for part in of.types:
            _describe(part, depth, lines, above)
    elif isinstance(of, inspect.StructType):
        if of.tag is not None:
            lines.append(f"{indent}{of.tag_field} = {of.tag!r}")
        for field in of.fields:
            optional = "" if field.required else ", optional"
            lines.append(f"{indent}{field.encode_name}: {_name(field.type)}{optional}")
            if of.cls not in above:
                _describe(field.type, depth + 1, lines, (*above, of.cls))
    else:
        for part in _parts(of):
            _describe(part, depth, lines, above)


def _parts(of: inspect.Type) -> list[inspect.Type]:
    if isinstance(of, inspect.NamedTupleType):
        return [field.type for field in of.fields]
    found: list[inspect.Type] = []
    for name in ("item_type", "key_type", "value_type"):
        part = getattr(of, name, None)
        found += [] if part is None else [part]
    return [*found, *getattr(of, "item_types", ())]


def _name(of: inspect.Type) -> str:
    if isinstance(of, inspect.UnionType):
        return " | ".join(map(_name, of.types))
    if isinstance(of, inspect.EnumType):
        return "one of " + ", ".join(sorted(str(member.value) for member in of.cls))
    if isinstance(of, inspect.StructType):
        return "object" if of.tag is None else f"object {of.tag!r}"
    name = type(of).__name__.removesuffix("Type").lower()
    inside = ", ".join(map(_name, _parts(of)))
    return f"{name} of {inside}" if inside else name
