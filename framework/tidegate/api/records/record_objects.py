"""Records as objects: how one is made without its initialisers, and what it has besides fields.

Between slots and in state, a record is the array of its fields (`api/state/wire.py`). It must come
back as it was, so no code of its class runs again: no `__post_init__`, no validator, no `__init__`.

A record has more than its fields. A pydantic model has undeclared fields, the names of the fields
that were set, and private attributes. A dataclass has fields with `init=False` and cached
properties. A TypedDict has undeclared keys and an order of its keys. This is the rest of a record.
It is stored by name, behind the fields, and only if it is not empty.

`Shape` has both for one class. It is made once for each codec.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, ClassVar, Final, get_args, get_origin

import msgspec
from typing_extensions import is_typeddict

from tidegate.api.records.free_values import TYPED, encode_free, is_carried, unpack_free
from tidegate.api.records.record_fields import (
    RecordField,
    allocator,
    fields_of,
    has_slot,
    initialised_model_maker,
    is_frozen,
    is_generated,
    is_model,
    model_maker,
    record_class,
    takes_positions,
    type_hints,
)
from tidegate.api.records.types import type_info
from tidegate.errors import PipelineError
from tidegate.user_exceptions import text_of

Named = dict[str, msgspec.Raw]
"""Encoded values by name."""

CodecOf = Callable[[object], Any]
"""Function that returns the codec of a type: an object with `encode` and `decode`."""

_set: Final = object.__setattr__


class Shape:
    """The parts of the objects of one record class.

    `always` says that each stored record has a rest, which may be None. A record that has none was
    stored by an earlier version, which called the initialiser when it read it.
    """

    wire: ClassVar[Any] = Named
    """The type of a rest in msgpack."""

    def __init__(self, of: object, fields: Sequence[RecordField], codec_of: CodecOf) -> None:
        self.kind: Any = record_class(of)
        self.names = tuple(field.name for field in fields)
        self.codec_of = codec_of
        self.possible = False
        """Whether an object may have a rest."""
        self.private = False
        """Whether each object has private attributes, and so a rest."""
        self.always = False
        self.by_name: Callable[..., Any] = lambda *values: self.kind(
            **dict(zip(self.names, values, strict=True))
        )
        self.new: Callable[..., Any] = self.kind if takes_positions(of) else self.by_name
        """Function that makes an object from the values of its fields, without its initialisers.

        It is the class, or `by_name`, if the class runs no code of the user.
        """
        self.old = self.by_name
        """Function that makes an object as earlier versions did."""

    @property
    def calls_class(self) -> bool:
        """Whether a call of the class runs no code of the user."""
        return self.new == self.by_name or self.new is self.kind

    def has_rest(self, source: str, name: Callable[[object], str]) -> str:
        """Return the source that checks whether the object `source` has a rest."""
        return f"{name(self.rest)}({source}) is not None"

    def rest(self, record: Any) -> Any:
        """Return the rest of an object in a form that msgpack can encode; None if it has none."""
        named = self.attributes(record)
        return self.packed(named) if named else None

    def attributes(self, record: Any) -> dict[str, Any]:
        """Return what the object has in addition to its fields, by name."""
        raise NotImplementedError

    def restore(self, record: Any, rest: Any) -> Any:
        """Give an object its rest, and return it."""
        raise NotImplementedError

    def record(self, rest: Any, *values: Any) -> Any:
        """Return the object that has these values of its fields, and a rest.

        `rest` is UNSET for a record that has no place for one.
        """
        if rest is None:
            return self.new(*values)
        if rest is not msgspec.UNSET:
            return self.restore(self.new(*values), rest)
        return self.old(*values) if self.always or self.private else self.new(*values)

    def record_of_raw(self, stored: Any, *values: Any) -> Any:
        """Return the same object. `stored` is the rest as msgpack, or UNSET.

        The rest of a class of another kind is dropped, because this class has no place for it.
        """
        rest: Any = msgspec.UNSET
        if stored is not msgspec.UNSET and self.possible:
            with contextlib.suppress(msgspec.ValidationError):
                rest = msgspec.msgpack.decode(stored, type=self.wire | None)
        return self.record(rest, *values)

    def records(self, rests: list[Any], *columns: list[Any]) -> list[Any]:
        """Return the objects whose fields have the values of these columns."""
        made = list(map(self.new, *columns))
        if rests.count(None) == len(rests):
            return made
        return [
            record if rest is None else self.restore(record, rest)
            for record, rest in zip(made, rests, strict=True)
        ]

    def packed(self, named: Mapping[str, Any], of: object = None) -> Named:
        """Return encoded values; TypeError, with the name, for one that cannot be read back.

        `of` is the type of all values, if they have one.
        """
        found = {}
        for name, value in named.items():
            try:
                data = self._encoded(value, of or self.types.get(name))
            except Exception as error:
                raise TypeError(f"{self.kind.__name__}.{name}: {text_of(error)}") from error
            found[name] = msgspec.Raw(data)
        return found

    def unpacked(self, named: Named, of: object = None) -> dict[str, Any]:
        """Return the decoded values."""
        return {n: self._decoded(data, of or self.types.get(n)) for n, data in named.items()}

    def _encoded(self, value: Any, of: object) -> bytes:
        """Return the bytes of a value, which its type must not explain if that is possible.

        No schema has the type, so it may be another one when the bytes are read.
        """
        if of is None or is_carried(value):
            return encode_free(value)
        return msgspec.msgpack.encode(msgspec.msgpack.Ext(TYPED, self.codec_of(of).encode(value)))

    def _decoded(self, data: msgspec.Raw, of: object) -> Any:
        value = unpack_free(data)
        if not isinstance(value, msgspec.msgpack.Ext):
            return value
        return self.codec_of(Any if of is None else of).decode(value.data)

    @functools.cached_property
    def types(self) -> dict[str, object]:
        """The declared types of attributes that are no fields. Others have none."""
        try:
            hints = type_hints(self.kind)
        except (PipelineError, TypeError):
            return {}
        return {name: of for name, of in hints.items() if name not in self.names and _is_known(of)}


def shape_of(of: object, fields: Sequence[RecordField], codec_of: CodecOf) -> Shape:
    """Return the shape of a record class. `codec_of` returns the codec of a type."""
    kind: Any = record_class(of)
    if is_typeddict(kind):
        return _KeysShape(of, fields, codec_of)
    if is_model(kind):
        return _ModelShape(of, fields, codec_of)
    if issubclass(kind, msgspec.Struct):
        return _StructShape(of, fields, codec_of)
    return _DataclassShape(of, fields, codec_of)


def has_initialiser(kind: Any) -> bool:
    """Check whether code of the user runs when an object of a record class is made."""
    if is_typeddict(kind):
        return False
    if is_model(kind):
        return True
    if hasattr(kind, "__post_init__") or _user_new(kind):
        return True
    if issubclass(kind, msgspec.Struct):
        return False
    return not is_generated(kind.__init__) or not _sets_plainly(kind)


def may_have_rest(of: object) -> bool:
    """Check whether objects of a record class may have something in addition to their fields."""
    return shape_of(of, fields_of(of) or (), lambda _: None).possible


def changed(record: Any, changes: Mapping[str, Any]) -> Any:
    """Return a copy of a record with new values of some fields, without its initialisers."""
    kind = type(record)
    if issubclass(kind, msgspec.Struct):
        copied = copy_struct(record)
        for name, value in changes.items():
            msgspec.structs.force_setattr(copied, name, value)
        return copied
    copied = allocator(kind)(kind)
    if is_model(kind):
        copy_model(record, copied, {**record.__dict__, **changes})
        return copied
    for name, value in {**dict(attributes_of(record)), **changes}.items():
        _set(copied, name, value)
    return copied


def copy_struct(record: Any) -> Any:
    """Return a shallow copy of a Struct, with the attributes in its `__dict__`."""
    copied = record.__copy__()
    if hasattr(record, "__dict__"):
        copied.__dict__.update(record.__dict__)
    return copied


def copy_model(record: Any, copied: Any, values: dict[str, Any]) -> None:
    """Give the object `copied` these values, and the other parts of a pydantic model."""
    _set(copied, "__dict__", values)
    _set(copied, "__pydantic_fields_set__", set(record.__pydantic_fields_set__))
    for part in ("__pydantic_extra__", "__pydantic_private__"):
        held = getattr(record, part, None)
        if held is not None:
            _set(copied, part, dict(held))
        elif has_slot(type(record), part):
            _set(copied, part, None)


def attributes_of(record: Any) -> Iterable[tuple[str, Any]]:
    """Return the attributes of an object of a dataclass, in its `__dict__` and in slots."""
    yield from getattr(record, "__dict__", {}).items()
    for name in _slots(type(record)):
        try:
            yield name, getattr(record, name)
        except AttributeError:  # it was never set
            continue


class _StructShape(Shape):
    """A msgspec Struct. It has a rest only if it has a `__dict__`."""

    def __init__(self, of: object, fields: Sequence[RecordField], codec_of: CodecOf) -> None:
        super().__init__(of, fields, codec_of)
        self.possible = bool(self.kind.__dictoffset__)
        if hasattr(self.kind, "__post_init__"):
            self.new = self.old = _struct_maker(self.kind, self.names)

    def has_rest(self, source: str, name: Callable[[object], str]) -> str:
        del name
        return f"{source}.__dict__"

    def attributes(self, record: Any) -> dict[str, Any]:
        return getattr(record, "__dict__", {})

    def restore(self, record: Any, rest: Any) -> Any:
        record.__dict__.update(self.unpacked(rest))
        return record


class _DataclassShape(Shape):
    def __init__(self, of: object, fields: Sequence[RecordField], codec_of: CodecOf) -> None:
        super().__init__(of, fields, codec_of)
        kind = self.kind
        self._others = [name for name in _slots(kind) if name not in self.names]
        self._computed = [field for field in dataclasses.fields(kind) if not field.init]
        self.always = has_initialiser(kind) or bool(self._computed)
        free = bool(kind.__dictoffset__) and (not is_frozen(kind) or _caches(kind))
        self.possible = self.always or free or bool(self._others)
        if self.always:
            self.new = _maker(allocator(kind), kind, self.names)

    def has_rest(self, source: str, name: Callable[[object], str]) -> str:
        if self.always or self._others:
            return super().has_rest(source, name)
        return f"len({source}.__dict__) != {len(self.names)}"

    def attributes(self, record: Any) -> dict[str, Any]:
        return {name: value for name, value in attributes_of(record) if name not in self.names}

    def restore(self, record: Any, rest: Any) -> Any:
        named = self.unpacked(rest)
        for field in self._computed:  # a field may be new
            if field.name not in named and field.default_factory is not dataclasses.MISSING:
                _set(record, field.name, field.default_factory())
        for name, value in named.items():
            with contextlib.suppress(AttributeError):  # a slot that the class has no longer
                _set(record, name, value)
        return record


class _ModelShape(Shape):
    """A pydantic model. Its rest has four parts: fields that were set, extra, private, others."""

    wire = tuple[list[str] | None, Named | None, Named | None, Named | None]

    def __init__(self, of: object, fields: Sequence[RecordField], codec_of: CodecOf) -> None:
        super().__init__(of, fields, codec_of)
        self.possible = True
        self._all = frozenset(self.names)
        self._make = model_maker(self.kind)
        self.new = self.old = self._made
        self.private = bool(self.kind.__private_attributes__)
        if self.private:
            self.old = self._initialised

    def _made(self, *values: Any) -> Any:
        return self._make(dict(zip(self.names, values, strict=True)))

    def _initialised(self, *values: Any) -> Any:
        return initialised_model_maker(self.kind)(dict(zip(self.names, values, strict=True)))

    def has_rest(self, source: str, name: Callable[[object], str]) -> str:
        return (
            f"({source}.__pydantic_fields_set__ != {name(self._all)} or "
            f"{source}.__pydantic_extra__ or {source}.__pydantic_private__ is not None or "
            f"len({source}.__dict__) != {len(self.names)})"
        )

    def rest(self, record: Any) -> Any:
        given, others = record.__pydantic_fields_set__, self.attributes(record)
        extra, private = record.__pydantic_extra__, record.__pydantic_private__
        parts = (
            None if given == self._all else sorted(given),
            self.packed(extra, self._extra_type) if extra else None,
            None if private is None else self.packed(private),
            self.packed(others) if others else None,
        )
        return None if parts == (None, None, None, None) else parts

    def attributes(self, record: Any) -> dict[str, Any]:
        return {n: value for n, value in record.__dict__.items() if n not in self._all}

    def restore(self, record: Any, rest: Any) -> Any:
        given, extra, private, others = rest
        if extra is not None:
            _set(record, "__pydantic_extra__", self.unpacked(extra, self._extra_type))
        if private is not None:
            _set(record, "__pydantic_private__", self.unpacked(private))
        if given is not None:
            known = record.__dict__.keys() | (extra or {}).keys()
            _set(record, "__pydantic_fields_set__", known & set(given))
        if others is not None:
            record.__dict__.update(self.unpacked(others))
        return record

    @functools.cached_property
    def _extra_type(self) -> object:
        """The type of the undeclared fields, if the model declares `__pydantic_extra__`."""
        of = self.types.get("__pydantic_extra__")
        return get_args(of)[1] if get_origin(of) is dict and _is_known(get_args(of)[1]) else None


class _KeysShape(Shape):
    """A TypedDict. Its rest has the order of all keys, and the values of those not declared."""

    wire = tuple[list[str], Named]

    def __init__(self, of: object, fields: Sequence[RecordField], codec_of: CodecOf) -> None:
        super().__init__(of, fields, codec_of)
        self.possible = True
        self.new = self.old = self._made

    def _made(self, *values: Any) -> Any:
        return dict(zip(self.names, values, strict=False))

    def has_rest(self, source: str, name: Callable[[object], str]) -> str:
        return f"tuple({source}) != {name(self.names)}"

    def rest(self, record: Any) -> Any:
        others = {name: value for name, value in record.items() if name not in self.names}
        return list(record), self.packed(others)

    def restore(self, record: Any, rest: Any) -> Any:
        order, others = rest
        found = record | self.unpacked(others)
        return {n: found[n] for n in order if n in found} | found

    @property
    def types(self) -> dict[str, object]:  # no key has another type
        return {}


def _struct_maker(kind: Any, names: Sequence[str]) -> Callable[..., Any]:
    """Return a function that makes objects of a Struct class without its `__post_init__`.

    Only msgspec can make an object of a Struct class, and it would call the method. So the object
    is made from a subclass whose `__post_init__` does nothing, and then gets the right class. Both
    classes have the same layout.
    """
    namespace = {"__post_init__": lambda _: None, "__module__": kind.__module__}
    quiet = type(kind)(kind.__name__, (kind,), namespace)
    change_class = object.__dict__["__class__"].__set__  # a frozen Struct refuses an assignment

    def made(*values: Any) -> Any:
        record = quiet(**dict(zip(names, values, strict=False)))
        change_class(record, kind)
        return record

    return made


def _maker(allocate: Callable[[Any], Any], kind: Any, names: Sequence[str]) -> Callable[..., Any]:
    def made(*values: Any) -> Any:
        record = allocate(kind)
        for name, value in zip(names, values, strict=False):
            _set(record, name, value)
        return record

    return made


def _is_known(of: object) -> bool:
    try:
        type_info(of)
    except PipelineError:
        return False
    return True


def _slots(kind: Any) -> list[str]:
    found: list[str] = []
    for base in kind.__mro__:
        slots = vars(base).get("__slots__", ())
        for name in [slots] if isinstance(slots, str) else slots:
            if name in ("__dict__", "__weakref__"):
                continue
            mangled = name.startswith("__") and not name.endswith("__")
            found.append(f"_{base.__name__.lstrip('_')}{name}" if mangled else name)
    return found


def _caches(kind: Any) -> bool:
    return any(
        isinstance(part, functools.cached_property)
        for base in kind.__mro__
        for part in vars(base).values()
    )


def _user_new(kind: Any) -> bool:
    return any(isinstance(vars(base).get("__new__"), staticmethod) for base in kind.__mro__)


def _sets_plainly(kind: Any) -> bool:
    return kind.__setattr__ is object.__setattr__ or is_generated(kind.__setattr__)
