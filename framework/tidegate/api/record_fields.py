"""Record classes, looked at alike: dataclasses, msgspec Structs, pydantic models, TypedDicts.

One question, which fields has it and how is it made again, answered for every kind; type facts,
codecs and key bytes are built on the answer. pydantic is looked at only where the user has imported
it.
"""

from __future__ import annotations

import dataclasses
import functools
import sys
from collections.abc import Callable
from typing import (
    Any,
    ClassVar,
    Final,
    NotRequired,
    Required,
    TypeGuard,
    TypeVar,
    cast,
    get_args,
    get_origin,
    get_type_hints,
    is_typeddict,
)

import msgspec

from tidegate.errors import PipelineError

MISSING: Final[Any] = type("Missing", (), {"__repr__": lambda _: "no default"})()
"""No default: what a keyword or a field has that was not given one."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class RecordField:
    """One field: at most one of `default` and `factory` is there, the other is MISSING.

    `in_key` is false for a field that the class leaves out of comparison.
    """

    name: str
    of: object
    default: object = MISSING
    factory: Callable[[], object] = MISSING
    in_key: bool = True

    @property
    def optional(self) -> bool:
        """Whether a record can be made without it."""
        return self.default is not MISSING or self.factory is not MISSING


def fields_of(of: object) -> tuple[RecordField, ...] | None:
    """The fields of a record class in declaration order, with a generic's arguments filled in; None
    if `of` is no record class. Fields that the class computes itself (init=False) are none of ours.
    """
    origin = get_origin(of)
    if isinstance(origin, type):
        generic = fields_of(origin)
        if generic is None:
            return None
        bound = dict(zip(getattr(origin, "__parameters__", ()), get_args(of), strict=False))
        return tuple(dataclasses.replace(f, of=_substitute(f.of, bound)) for f in generic)
    if not isinstance(of, type):
        return None
    if is_model(of):  # is read each time: `model_rebuild` may change it
        return _model_fields(of)
    return _class_fields(of)


def record_class(of: object) -> type:
    """The class behind a type that has a schema, without a generic's arguments."""
    return cast("type", get_origin(of) or of)  # `type_info` has refused what is none


def is_model(of: object) -> TypeGuard[type[Any]]:
    """Whether it is a pydantic model; if pydantic was never imported, nothing is."""
    pydantic = sys.modules.get("pydantic")
    return pydantic is not None and isinstance(of, type) and issubclass(of, pydantic.BaseModel)


def is_frozen(of: object) -> bool:
    """Whether objects of a record class refuse assignment to their fields."""
    found = get_origin(of) or of
    if isinstance(found, type) and issubclass(found, msgspec.Struct):
        return found.__struct_config__.frozen
    if is_model(found):
        return bool(found.model_config.get("frozen"))
    parameters = getattr(found, "__dataclass_params__", None)
    return bool(parameters is not None and parameters.frozen)


def compares_fields(of: object) -> bool:
    """Whether two records with equal fields are equal (a class may say eq=False)."""
    found = get_origin(of) or of
    if isinstance(found, type) and issubclass(found, msgspec.Struct):
        return found.__struct_config__.eq
    parameters = getattr(found, "__dataclass_params__", None)
    return parameters is None or bool(parameters.eq)


def compares_otherwise(of: object) -> str:
    """How a record class compares objects by more than its fields, or by other rules; empty if it
    does not.
    """
    found: Any = get_origin(of) or of
    if is_model(found):
        if found.__private_attributes__ or found.model_config.get("extra") == "allow":
            return "compares private attributes or extra fields"
        base: Any = sys.modules["pydantic"].BaseModel
        return "" if found.__eq__ is base.__eq__ else "has an __eq__ of its own"
    if isinstance(found, type) and issubclass(found, msgspec.Struct):
        return "" if found.__eq__ is msgspec.Struct.__eq__ else "has an __eq__ of its own"
    if not dataclasses.is_dataclass(found):
        return ""
    code = getattr(found.__eq__, "__code__", None)
    generated = code is not None and code.co_filename == "<string>"  # as dataclasses compile it
    return "" if generated else "has an __eq__ of its own"


def changer_of(of: object) -> Callable[[Any, dict[str, Any]], Any]:
    """The function that copies a record with other values of some fields."""
    found: Any = get_origin(of) or of
    if is_model(found):
        return lambda record, changes: record.model_copy(update=changes)
    if isinstance(found, type) and issubclass(found, msgspec.Struct):
        return lambda record, changes: msgspec.structs.replace(record, **changes)
    return lambda record, changes: dataclasses.replace(record, **changes)


def type_name(of: object) -> str:
    """The type as a user wrote it, without module and without memory address."""
    if isinstance(of, type) and not get_args(of):
        return of.__name__
    if get_args(of) and isinstance(get_origin(of), type):
        inner = ", ".join("..." if a is ... else type_name(a) for a in get_args(of))
        origin: Any = get_origin(of)
        if origin.__name__ not in ("UnionType", "Union"):
            return f"{origin.__name__}[{inner}]"
        return " | ".join(type_name(a) for a in get_args(of))
    if get_args(of):
        joined = [type_name(a) if not isinstance(a, str) else repr(a) for a in get_args(of)]
        text = str(of).replace("typing.", "").partition("[")[0]
        return (
            " | ".join(joined) if text in ("Union", "Optional") else f"{text}[{', '.join(joined)}]"
        )
    return str(of).replace("typing.", "")


def type_hints(of: type, *, extras: bool = False) -> dict[str, Any]:
    """Annotations at run time; PipelineError with the remedy where a name is imported for checkers
    only.
    """
    try:
        return get_type_hints(of, include_extras=extras)
    except NameError as error:
        raise PipelineError(
            f"{type_name(of)}: {error} at run time; import it outside TYPE_CHECKING (ruff's TC "
            "rules move such imports: switch them off for pipelines)"
        ) from None


@functools.lru_cache(maxsize=1024)
def _class_fields(of: type) -> tuple[RecordField, ...] | None:
    """The fields of a class whose annotations never change. Evaluating them takes 100 us, and the
    plan of a pipeline asks for the same classes many times.
    """
    if issubclass(of, msgspec.Struct):
        return _struct_fields(of)
    if dataclasses.is_dataclass(of):
        return _dataclass_fields(of)
    return _typed_dict_fields(of) if is_typeddict(of) else None


def _struct_fields(of: type[msgspec.Struct]) -> tuple[RecordField, ...]:
    hints = type_hints(of)
    return tuple(
        RecordField(
            name=f.name,
            of=hints[f.name],
            default=MISSING if f.default is msgspec.NODEFAULT else f.default,
            factory=MISSING if f.default_factory is msgspec.NODEFAULT else f.default_factory,
        )
        for f in msgspec.structs.fields(of)
    )


def _dataclass_fields(of: type) -> tuple[RecordField, ...]:
    hints = type_hints(of)
    found: Any = dataclasses.fields(of)
    return tuple(
        RecordField(
            name=f.name,
            of=hints[f.name],
            default=MISSING if f.default is dataclasses.MISSING else f.default,
            factory=MISSING if f.default_factory is dataclasses.MISSING else f.default_factory,
            in_key=f.compare,
        )
        for f in found
        if f.init and get_origin(hints[f.name]) is not ClassVar
    )


def _typed_dict_fields(of: type) -> tuple[RecordField, ...]:
    hints = type_hints(of, extras=True)
    optional = [
        name
        for name, hint in hints.items()
        if get_origin(hint) is NotRequired
        or (name in of.__dict__["__optional_keys__"] and get_origin(hint) is not Required)
    ]
    if optional:
        raise PipelineError(
            f"{of.__name__}.{optional[0]}: a key that may be missing has no schema; "
            "make it required and its type `... | None`"
        )
    return tuple(RecordField(name=name, of=hint) for name, hint in type_hints(of).items())


def _model_fields(of: type[Any]) -> tuple[RecordField, ...]:
    found = []
    for name, info in of.model_fields.items():
        required = info.is_required()
        factory = info.default_factory
        found.append(
            RecordField(
                name=name,
                of=info.annotation,
                default=MISSING if required or factory is not None else info.default,
                factory=MISSING if factory is None else factory,
            )
        )
    return tuple(found)


def _substitute(hint: Any, bound: dict[Any, Any]) -> object:
    if isinstance(hint, TypeVar):
        return bound.get(hint, hint)
    parameters = getattr(hint, "__parameters__", ())
    if not parameters or isinstance(hint, type):
        return hint
    return hint[tuple(bound.get(parameter, parameter) for parameter in parameters)]
