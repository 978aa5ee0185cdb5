"""The search for the numbers that JSON cannot write: NaN and infinity, as float or as Decimal.

msgspec and pydantic write such a float as `null`, and such a Decimal as text, without an error. The
format `Json` refuses them.

`FiniteCheck` has the check of a type, a generated condition such as `x.value - x.value == 0.0`. A
type with lists, dicts or `Any` takes longer to check, so its encoder looks for texts in the encoded
bytes first. `not_finite` walks a value of any class, and says where the number is.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from decimal import Decimal
from typing import Any, Final, get_args, get_origin

import msgspec
from typing_extensions import is_typeddict

from tidegate.api.records.record_fields import fields_of, is_model, plain_type, record_class
from tidegate.api.records.types import is_union

_SEQUENCES: Final = (list, tuple, set, frozenset, Sequence)


def holds(of: object, *parts: object) -> bool:
    """Check whether a type is one of these types, or has one at any depth."""
    of = plain_type(of)
    if of in parts:
        return True
    inside = [field.type for field in fields_of(of) or ()]
    return any(holds(part, *parts) for part in (*inside, *get_args(of)))


def suspicious(data: bytes) -> bool:
    """Check whether JSON may be that of a value with such a number, by a search for texts.

    `in` takes twice as long as `find`, because it tries to read the text as one byte first.
    """
    return data.find(b"null") >= 0 or data.find(b"NaN") >= 0 or data.find(b"Infinity") >= 0


class FiniteCheck:
    """The check that the values of a type have no such number."""

    def __init__(self, of: object) -> None:
        conditions = _Conditions()
        self._condition = conditions.of(of, "x")
        self._is_flat = conditions.is_flat
        self.is_finite: Callable[[Any], bool] = self._function("return fine", {})

    def guarded(self, encode: Callable[[Any], bytes]) -> Callable[[Any], bytes]:
        """Return an encoder that raises ValueError for a value with such a number."""
        if self._is_flat:
            names = {"refuse": check_finite, "encode": encode}
            return self._function("if not fine: refuse(x)\n    return encode(x)", names)
        is_finite = self.is_finite

        def guarded(value: Any) -> bytes:
            data = encode(value)
            if suspicious(data) and not is_finite(value):
                check_finite(value)
            return data

        return guarded

    def _function(self, end: str, names: dict[str, Any]) -> Callable[[Any], Any]:
        scope: dict[str, Any] = {**names, "finite": _finite}
        source = (
            f"def checked(x):\n    try:\n        fine = {self._condition}\n"
            f"    except Exception:\n        fine = finite(x)\n    {end}\n"
        )  # a value that is not of the type may raise anything
        exec(compile(source, "<generated checked>", "exec"), scope)  # noqa: S102 - our template
        function: Callable[[Any], Any] = scope["checked"]
        return function


def check_finite(value: Any) -> None:
    """Raise ValueError, with the place, if a value has such a number."""
    if found := not_finite(value):
        raise ValueError(f"{found}, and JSON has no such number; give a finite one or None")


def not_finite(value: Any, at: str = "") -> str:
    """Return the place of the first such number and the number; empty if every number is finite."""
    if isinstance(value, float):
        return "" if math.isfinite(value) else f"{at or 'it'} is {value}"
    if isinstance(value, Decimal):
        return "" if value.is_finite() else f"{at or 'it'} is {value}"
    return next(
        (found for part, name in _parts(value, at) if (found := not_finite(part, name))), ""
    )


def _finite(value: Any) -> bool:
    return not not_finite(value)


def _parts(value: Any, at: str) -> Iterable[tuple[Any, str]]:
    """Return the parts of a value that JSON shows, with their paths."""
    if isinstance(value, str | bytes | int | None):
        return ()
    if isinstance(value, Mapping):
        return [(part, f"{at}[{key!r}]") for key, part in value.items()]
    if isinstance(value, list | tuple | set | frozenset):
        return [(part, f"{at}[{index}]") for index, part in enumerate(value)]
    if is_model(type(value)):
        if value.model_config.get("ser_json_inf_nan") == "strings":
            return ()  # the user's own choice, and pydantic reads these texts
        names = [*type(value).model_fields, *(value.__pydantic_extra__ or ())]
    elif isinstance(value, msgspec.Struct):
        names = [*value.__struct_fields__]
    elif dataclasses.is_dataclass(value):
        names = [field.name for field in dataclasses.fields(value)]
    else:
        return ()
    dotted = f"{at}." if at else ""
    return [(getattr(value, name, None), f"{dotted}{name}") for name in names]


def json_of_any(value: Any, other: Callable[[Any], Any]) -> bytes:
    """Return JSON of a value that no format encodes. It is for people, and has no wrong null.

    A model is the object that `Json` writes, NaN and infinity are texts, and `other` converts
    objects that JSON has no form for.
    """

    def convert(part: Any) -> Any:
        return _with_texts(part.model_dump(by_alias=True)) if is_model(type(part)) else other(part)

    def encode(part: Any) -> Any:
        if is_model(type(part)):
            return msgspec.Raw(part.model_dump_json(by_alias=True, warnings=False).encode())
        return other(part)

    try:
        data = msgspec.json.encode(value, enc_hook=encode)
    except ValueError:  # pydantic has no JSON for an object in the model
        return msgspec.json.encode(value, enc_hook=convert)
    if b"null" not in data or not not_finite(value):
        return data
    return msgspec.json.encode(_with_texts(msgspec.to_builtins(value, enc_hook=convert)))


def _with_texts(plain: Any) -> Any:
    """Return a value with the text of each float that is NaN or infinity."""
    if isinstance(plain, float) and not math.isfinite(plain):
        return str(Decimal(plain))  # NaN and Infinity, as in most languages
    if isinstance(plain, dict):
        return {key: _with_texts(part) for key, part in plain.items()}
    if isinstance(plain, list | tuple | set | frozenset):
        return [_with_texts(part) for part in plain]
    return plain


class _Conditions:
    """The generator of the condition of a type."""

    def __init__(self) -> None:
        self.is_flat = True
        """Whether the condition takes no loop and no walk."""
        self._variables = 0

    def of(self, of: object, x: str) -> str:
        """Return the condition that the value `x` has no such number; it may read `x` twice."""
        of = plain_type(of)
        if not holds(of, float, Decimal, Any):
            return "True"
        if of is float:
            return f"({x} - {x} == 0.0 if {x}.__class__ is float else finite({x}))"
        if of is Decimal:
            return f"{x}.is_finite()"
        origin, arguments = get_origin(of), get_args(of)
        if is_union(of):
            types = [part for part in arguments if part is not type(None)]
            inner = self.of(types[0], x) if len(types) == 1 else self._walk(x)
            return f"({x} is None or {inner})"
        if origin is tuple and ... not in arguments:
            return self._all([self.of(part, f"{x}[{i}]") for i, part in enumerate(arguments)])
        if origin in _SEQUENCES:
            return self._each(arguments[0], x)
        if origin in (dict, Mapping):
            return self._each(arguments[1], f"{x}.values()")
        fields = fields_of(of)
        if fields is None or (is_model(record_class(of)) and _is_open(record_class(of))):
            return self._walk(x)
        form = "{}[{}]" if is_typeddict(record_class(of)) else "{}.{}"
        quoted = json.dumps if is_typeddict(record_class(of)) else str
        return self._all([self.of(f.type, form.format(x, quoted(f.name))) for f in fields])

    def _walk(self, x: str) -> str:
        self.is_flat = False
        return f"finite({x})"

    def _each(self, of: object, items: str) -> str:
        self.is_flat = False
        self._variables += 1
        item = f"i{self._variables}"
        inner = self.of(of, item)
        return inner if inner == "True" else f"all([{inner} for {item} in {items}])"

    @staticmethod
    def _all(conditions: list[str]) -> str:
        kept = [condition for condition in conditions if condition != "True"]
        return f"({' and '.join(kept)})" if kept else "True"


def _is_open(model: Any) -> bool:
    """Check whether objects of a pydantic model may have more fields, or write numbers as text."""
    config = model.model_config
    return bool(config.get("extra") == "allow" or config.get("ser_json_inf_nan") == "strings")
