"""The check that a value is read back exactly as it is, after another slot or a restore.

Types are checked by class elsewhere (`api/records/values.py`), where a subclass often counts: a
Counter is a dict. But another slot would get a dict, so the output would depend on where a key is
processed. Before a `key_by`, and in state, only values count that come back with the same class,
zone and attributes. Others are refused, on every path.

`inexact` names the part that would change. `field_check.py` has the same rules as generated loops.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Any, Final, Literal, get_args, get_origin

from typing_extensions import is_typeddict

from tidegate.api.records.free_values import pack_free
from tidegate.api.records.moments import why_not_carried
from tidegate.api.records.record_fields import (
    MISSING,
    RecordField,
    fields_of,
    is_model,
    plain_type,
    record_class,
)
from tidegate.api.records.record_objects import Shape, has_initialiser
from tidegate.api.records.types import is_union
from tidegate.api.records.values import (
    CONTAINERS,
    ClassCheck,
    article,
    declared_name,
    has_schema,
    parts_of,
)
from tidegate.api.state.wire import shape_of_stored
from tidegate.graph.stream_graph import UNKNOWN
from tidegate.user_exceptions import text_of

_PLAIN_FACTORIES: Final = (list, dict, set, frozenset, tuple)


class ExactClassCheck(ClassCheck):
    """The check of classes, which accepts no subclass."""

    def _rule(self, kind: type) -> bool:
        return is_exactly(kind, self.type)


def is_exactly(kind: type, of: object) -> bool:
    """Check whether values of a class come back as values of the class."""
    of = plain_type(of)
    if of is Any or of is UNKNOWN:
        return True
    if of is None:
        return kind is type(None)
    if is_union(of):
        return any(is_exactly(kind, branch) for branch in get_args(of))
    origin = get_origin(of)
    if origin is Literal:
        return kind in {type(value) for value in get_args(of)}
    if origin in CONTAINERS:
        return kind in CONTAINERS[origin]
    if is_typeddict(record_class(of)):
        return kind is dict
    if not has_schema(of):
        return True  # such a value is never encoded
    return kind is record_class(of) or (of is float and kind is int)


def inexact(value: Any, of: object, path: str = "") -> str:
    """Describe the first part of a value that would not come back as it is; empty if all would.

    The value is of the type (`values.fault`).
    """
    where, of = path or "it", plain_type(of)
    if of is UNKNOWN or not has_schema(of):
        return ""
    kind = type(value)
    if of is Any:
        try:
            pack_free(value)
        except Exception as error:  # noqa: BLE001  # a class of the user may raise anything
            return f"{where} cannot be kept: {text_of(error)}"
        return ""
    if not is_exactly(kind, of):
        return f"{where} is {article(kind.__name__)}, and only {declared_name(of)} itself is kept"
    if is_union(of):
        branches = [branch for branch in get_args(of) if is_exactly(kind, branch)]
        reasons = [inexact(value, branch, path) for branch in branches]
        return "" if "" in reasons else reasons[0]
    if kind is datetime and value.tzinfo is not None:
        why_not = why_not_carried(value.tzinfo)
        return f"{where} cannot be kept: {why_not}" if why_not else ""
    parts = parts_of(value, of)
    inside = (found for at, part, inner in parts if (found := inexact(part, inner, path + at)))
    return next(inside, "") or _rest_fault(value, of, where)


def rest_check(shape: Shape) -> Callable[[Any], bool]:
    """Return a function that checks whether the rest of an object can be kept."""

    def is_kept(record: Any) -> bool:
        try:
            shape.rest(record)
        except Exception:  # noqa: BLE001  # a class of the user may raise anything
            return False
        return True

    return is_kept


def is_uncertain(of: object) -> bool:
    """Check whether values of a type may be of the type, and not be read back as they are.

    Subclasses of text and of numbers do not count here. They come from errors in code, so a sample
    of the records finds them.
    """
    of = plain_type(of)
    if of in (datetime, Any):
        return True
    if get_origin(of) in CONTAINERS:
        return get_origin(of) is not tuple or any(map(is_uncertain, get_args(of)))
    fields = fields_of(of)
    if fields is None:
        return any(map(is_uncertain, get_args(of)))
    if shape_of_stored(of, fields).possible:
        return True
    return any(is_uncertain(field.type) for field in fields)


def is_made_by_users(of: object) -> bool:
    """Check whether code of users makes parts of a record while a format decodes it.

    Such parts are not checked by the format: initialisers, validators and defaults.
    """
    of = plain_type(of)
    fields = fields_of(of)
    if fields is None:
        return any(is_made_by_users(part) for part in get_args(of) if part is not ...)
    known = record_class(of)
    if is_model(known) or has_initialiser(known):
        return True
    return any(_has_odd_default(field) or is_made_by_users(field.type) for field in fields)


def _has_odd_default(field: RecordField) -> bool:
    if field.factory is not MISSING:
        return field.factory not in _PLAIN_FACTORIES
    if field.default is MISSING:
        return False
    return bool(inexact(field.default, field.type))


def _rest_fault(value: Any, of: object, where: str) -> str:
    fields = fields_of(of)
    if fields is None:
        return ""
    shape = shape_of_stored(of, fields)
    if not shape.possible:
        return ""
    try:
        shape.rest(value)
    except Exception as error:  # noqa: BLE001  # a class of the user may raise anything
        return f"{where} cannot be kept: {text_of(error)}"
    return ""
