"""One view of all record classes: dataclasses, msgspec Structs, pydantic models and TypedDicts.

For every kind, this module says which fields a class has and how an object is made from them. Type
facts, codecs and key bytes are built on that. pydantic is used only if the user has imported it.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import sys
import types
from collections.abc import Callable
from datetime import date, datetime
from typing import (
    Annotated,
    Any,
    ClassVar,
    Final,
    Generic,
    Literal,
    NewType,
    NotRequired,
    Required,
    TypeGuard,
    TypeVar,
    Union,
    cast,
    get_args,
    get_origin,
    get_type_hints,
)

import msgspec
from typing_extensions import TypeAliasType, is_typeddict

from tidegate.errors import PipelineError

MISSING: Final[Any] = type("Missing", (), {"__repr__": lambda _: "no default"})()
"""Marker for a keyword or a field that has no default."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class RecordField:
    """A field of a record class. At most one of `default` and `factory` is not MISSING.

    `in_key` is false for a field that the class leaves out of comparison.
    """

    name: str
    type: object
    default: object = MISSING
    factory: Callable[[], object] = MISSING
    in_key: bool = True

    @property
    def optional(self) -> bool:
        """Whether a record can be made without this field."""
        return self.default is not MISSING or self.factory is not MISSING


def plain_type(of: Any) -> Any:
    """Return a type without the names and the constraints that its values do not show.

    A NewType is its base type, `PositiveInt` (an Annotated) is int, and pydantic's `AwareDatetime`
    is datetime, at any depth. Formats and models still check the constraints when they decode.
    """
    if isinstance(of, NewType):
        return plain_type(of.__supertype__)
    if isinstance(of, TypeAliasType):
        try:
            return plain_type(of.__value__)
        except RecursionError:
            raise PipelineError(
                f"{of.__name__} contains itself. Recursive types are not supported."
            ) from None
    origin, arguments = get_origin(of), get_args(of)
    if origin is Annotated:
        return plain_type(arguments[0])
    if isinstance(of, type) and of.__module__ == "pydantic.types":
        return _PYDANTIC_TYPES.get(of.__name__, of)
    if not arguments or origin is Literal:
        return of
    plain = tuple(each if each is ... else plain_type(each) for each in arguments)
    if all(new is old for new, old in zip(plain, arguments, strict=True)):
        return of
    union = origin in (Union, types.UnionType)
    return Union[plain] if union else cast("Any", origin)[plain]  # noqa: UP007  # made at run time


_PYDANTIC_TYPES: Final = {
    "AwareDatetime": datetime,
    "PastDate": date,
    "FutureDate": date,
    "ByteSize": int,
}
"""Types of pydantic that are no Annotated, and the types of their values."""


def fields_of(of: object) -> tuple[RecordField, ...] | None:
    """Return the fields of a record class in declaration order; None if `of` is not one.

    The arguments of a generic class are filled in. Fields that the class computes itself
    (init=False) are left out.
    """
    of = plain_type(of)
    origin = get_origin(of)
    if isinstance(origin, type):
        generic = fields_of(origin)
        if generic is None:
            return None
        bound = dict(zip(getattr(origin, "__parameters__", ()), get_args(of), strict=False))
        return tuple(dataclasses.replace(f, type=_substitute(f.type, bound)) for f in generic)
    if not isinstance(of, type):
        return None
    if is_model(of):  # not cached, because `model_rebuild` may change the fields
        return _model_fields(of)
    return _class_fields(of)


def record_class(of: object) -> type:
    """Return the class of a type that has a schema, without a generic's arguments."""
    return cast("type", get_origin(of) or of)  # `type_info` has refused types without a class


def is_model(of: object) -> TypeGuard[type[Any]]:
    """Check whether a type is a pydantic model; false if pydantic was never imported."""
    pydantic = sys.modules.get("pydantic")
    return pydantic is not None and isinstance(of, type) and issubclass(of, pydantic.BaseModel)


def is_frozen(of: object) -> bool:
    """Check whether objects of a record class refuse assignment to their fields."""
    found = get_origin(of) or of
    if isinstance(found, type) and issubclass(found, msgspec.Struct):
        return found.__struct_config__.frozen
    if is_model(found):
        return bool(found.model_config.get("frozen"))
    parameters = getattr(found, "__dataclass_params__", None)
    return bool(parameters is not None and parameters.frozen)


def compares_fields(of: object) -> bool:
    """Check that two records with equal fields are equal; false for a class with eq=False."""
    found = get_origin(of) or of
    if isinstance(found, type) and issubclass(found, msgspec.Struct):
        return found.__struct_config__.eq
    parameters = getattr(found, "__dataclass_params__", None)
    return parameters is None or bool(parameters.eq)


def compares_otherwise(of: object) -> str:
    """Return how a record class compares objects, if not by its fields alone.

    The text is empty if it compares exactly the fields.
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
    return "" if is_generated(found.__eq__) else "has an __eq__ of its own"


def is_generated(method: Any) -> bool:
    """Check whether dataclasses have made a method of a class."""
    code = getattr(method, "__code__", None)
    return code is not None and code.co_filename == "<string>"  # as dataclasses compile it


def takes_positions(of: object) -> bool:
    """Check whether a record class takes its fields by position."""
    known = record_class(of)
    if is_typeddict(known) or is_model(known):
        return False
    parameters = inspect.signature(known).parameters.values()
    return all(parameter.kind is parameter.POSITIONAL_OR_KEYWORD for parameter in parameters)


def allocator(kind: Any) -> Callable[[Any], Any]:
    """Return the function of Python itself that makes an empty object of a class."""
    for base in kind.__mro__:
        new = vars(base).get("__new__")
        if new is not None and not isinstance(new, staticmethod):
            return new  # type: ignore[no-any-return]
    return object.__new__


def model_maker(kind: Any) -> Callable[[dict[str, Any]], Any]:
    """Return a function that makes a pydantic model from the values of its fields, as if all of
    them had been set.
    """
    allocate, set_part = allocator(kind), object.__setattr__
    extra = kind.model_config.get("extra") == "allow"
    with_extra, with_private = (
        has_slot(kind, part) for part in ("__pydantic_extra__", "__pydantic_private__")
    )

    def made(values: dict[str, Any]) -> Any:
        record = allocate(kind)
        set_part(record, "__dict__", values)
        set_part(record, "__pydantic_fields_set__", set(values))
        if extra or with_extra:
            set_part(record, "__pydantic_extra__", {} if extra else None)
        if with_private:
            set_part(record, "__pydantic_private__", None)
        return record

    return made


def has_slot(kind: Any, name: str) -> bool:
    """Check whether a class has a slot for an attribute. A RootModel has none for extra fields."""
    return isinstance(getattr(kind, name, None), types.MemberDescriptorType)


def initialised_model_maker(kind: Any) -> Callable[[dict[str, Any]], Any]:
    """Return a function that makes a pydantic model from the values of its fields, with new private
    attributes.
    """
    make = model_maker(kind)
    if not kind.__pydantic_post_init__:
        return make

    def made(values: dict[str, Any]) -> Any:
        record = make(values)
        record.model_post_init(None)
        return record

    return made


def type_name(of: object) -> str:
    """Return the type as a user wrote it, without module and without memory address."""
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
    """Return the annotations of a class at run time.

    PipelineError, with the remedy, if a name is imported for type checkers only.
    """
    try:
        return get_type_hints(of, include_extras=extras)
    except NameError as error:
        raise PipelineError(
            f"{type_name(of)}: {error} at run time; import it outside TYPE_CHECKING (ruff's TC "
            "rules move such imports: switch them off for pipelines)."
        ) from None


@functools.lru_cache(maxsize=1024)
def _class_fields(of: type) -> tuple[RecordField, ...] | None:
    """Return the fields of a class whose annotations never change.

    The result is cached, because evaluating annotations takes 100 us, and the plan of a pipeline
    needs the same classes many times.
    """
    if issubclass(of, msgspec.Struct):
        fields = _struct_fields(of)
    elif dataclasses.is_dataclass(of):
        fields = _dataclass_fields(of)
    elif is_typeddict(of):
        fields = _typed_dict_fields(of)
    else:
        return None
    bound = _bound_by_bases(of)
    return tuple(
        dataclasses.replace(field, type=plain_type(_substitute(field.type, bound)))
        for field in fields
    )


def _bound_by_bases(of: type) -> dict[Any, Any]:
    """Return the arguments that a class gives to the parameters of its generic bases."""
    bound: dict[Any, Any] = {}
    for base in getattr(of, "__orig_bases__", ()):
        origin: Any = get_origin(base)
        if origin is None or origin is Generic:
            continue
        inner = _bound_by_bases(origin)
        given = dict(zip(getattr(origin, "__parameters__", ()), get_args(base), strict=False))
        bound |= {parameter: _substitute(part, given) for parameter, part in inner.items()}
        bound |= given
    return bound


def _struct_fields(of: type[msgspec.Struct]) -> tuple[RecordField, ...]:
    hints = type_hints(of)
    return tuple(
        RecordField(
            name=f.name,
            type=hints[f.name],
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
            type=hints[f.name],
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
            "make it required and its type `... | None`."
        )
    return tuple(RecordField(name=name, type=hint) for name, hint in type_hints(of).items())


def _model_fields(of: type[Any]) -> tuple[RecordField, ...]:
    found = []
    for name, info in of.model_fields.items():
        required = info.is_required()
        factory = info.default_factory
        found.append(
            RecordField(
                name=name,
                type=plain_type(info.annotation),
                default=MISSING if required or factory is not None else info.default,
                factory=MISSING if factory is None else factory,
            )
        )
    return tuple(found)


def _substitute(hint: Any, bound: dict[Any, Any]) -> object:
    if isinstance(hint, TypeVar):
        return bound.get(hint, hint)
    hint = plain_type(hint)
    parameters = getattr(hint, "__parameters__", ())
    if not parameters or isinstance(hint, type):
        return hint
    return hint[tuple(bound.get(parameter, parameter) for parameter in parameters)]
