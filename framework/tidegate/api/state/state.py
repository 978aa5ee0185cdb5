"""Keyed state, declared as attributes of a function class and typed there.

A declaration (`total = ValueState(Decimal, ...)`) is a non-data descriptor. On the class, the
attribute is the declaration; on an instance, its type is the cell of the current key. The loop that
calls the function sets the current key's cells as attributes of the instance. So an access in the
hot path is a plain attribute access and never a call. A cell is the state of one key. The backends
of the data plane make, load, save and drop cells.

A backend finds changes by these rules. A `ValueCell` has changed if `value` is not the same object
as `saved`. If the type can change in place (`State.types[0].immutable` is false), any access may
have changed the value, so the backend compares its encoded bytes. `ListCell.changed` and the
methods of `MapCell` show the changes of the other two kinds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from types import GenericAlias
from typing import (
    TYPE_CHECKING,
    Any,
    ClassVar,
    Final,
    Generic,
    Never,
    Self,
    TypeVar,
    cast,
    overload,
)

from typing_extensions import TypeForm

from tidegate.api.declarations.location import at_user_location, refuse_unsupported, user_location
from tidegate.api.records.copying import copy_value
from tidegate.api.records.record_fields import MISSING, type_name
from tidegate.api.records.types import TypeInfo, type_info
from tidegate.api.state.keys import key_encoder, key_normaliser
from tidegate.errors import PipelineError

V = TypeVar("V")
A = TypeVar("A")
M = TypeVar("M", bound="MapCell[Any, Any]")

CLEARED_MEANWHILE: Final = "map state was cleared, or its record left, during iteration"


class Cell:
    """The state of one key, under one name."""

    __slots__ = ()

    def clear(self) -> None:
        """Delete the key's state: the next read returns the same as for a new key."""
        raise NotImplementedError

    def image(self, *, mutable: bool) -> object:
        """Return the data with which `restore` undoes all later changes of the cell.

        `mutable` says that the cell's values can change in place.
        """
        raise NotImplementedError

    def restore(self, image: Any) -> None:
        """Reset the cell to the time of the image. Each image can be used only once."""
        raise NotImplementedError

    def changed_since(self, image: Any, *, mutable: bool) -> list[Any]:
        """Return the values that may have changed since the image, as the state's `stored_type`.

        For a list, the result has only the added items if the earlier items are unchanged.
        """
        raise NotImplementedError


class ValueCell(Cell, Generic[V]):
    """The cell of a value state. Users read and assign `.value`, a plain slot.

    `saved` is the object that the backend last stored or loaded, or its bytes if the type can
    change in place.
    """

    __slots__ = ("_new", "saved", "value")
    value: V
    saved: object

    def __init__(self, new: Callable[[], V]) -> None:
        self._new = new
        self.value = self.saved = new()

    # There is no `__getattr__` with a hint, because Python reads every attribute of such a class
    # three times as slowly. `dataplane/user_errors.py` adds the hint to the error.

    def _is_no_value(self, *_: object) -> Never:
        """Refuse an operator on the cell."""
        raise TypeError(
            "a state is not its value. Write .value behind the name of the state, as in "
            "self.total.value + 1"
        )

    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __truediv__ = _is_no_value
    __lt__ = __le__ = __gt__ = __ge__ = __len__ = __iter__ = __getitem__ = _is_no_value

    def clear(self) -> None:
        """Reset the value to the default of a new key."""
        self.value = self._new()

    def image(self, *, mutable: bool) -> object:
        """Return the value, copied if it can change in place, and the saved object."""
        return copy_value(self.value) if mutable else self.value, self.saved

    def restore(self, image: Any) -> None:
        """Reset the value and the saved object to those of the image."""
        self.value, self.saved = image

    def changed_since(self, image: Any, *, mutable: bool) -> list[Any]:
        """Return a list of the value; empty if the value is certainly unchanged."""
        return [] if self.value is image[0] and not mutable else [self.value]


class ListCell(Cell, Generic[V]):
    """An ordered list that is stored and loaded as a whole.

    `changed` says whether the list may have changed since it was last saved.
    """

    __slots__ = ("_items", "changed")

    def __init__(self, items: Iterable[V] = ()) -> None:
        self._items: list[V] = list(items)
        self.changed = False

    def append(self, item: V) -> None:
        """Add an item at the end."""
        self._items.append(item)
        self.changed = True

    def replace(self, items: Iterable[V]) -> None:
        """Replace all items by these."""
        self._items = list(items)
        self.changed = True

    def __iter__(self) -> Iterator[V]:
        return iter(self._items)

    def __len__(self) -> int:
        return len(self._items)

    def clear(self) -> None:
        """Remove all items."""
        self.replace(())

    def image(self, *, mutable: bool) -> object:
        """Return the list, its length and `changed`; the list is a copy if items can change."""
        # A list only grows in place, so its length is enough if its items cannot change.
        items = copy_value(self._items) if mutable else self._items
        return items, len(items), self.changed

    def restore(self, image: Any) -> None:
        """Reset the list to that of the image, without the items that were added since."""
        self._items, length, self.changed = image
        del self._items[length:]

    def changed_since(self, image: Any, *, mutable: bool) -> list[Any]:
        """Return a list with one value: the added items, or all items if others may differ."""
        items, length, _ = image
        return [self._items[length:] if self._items is items and not mutable else self._items]


class MapCell(Cell, Generic[A, V]):
    """A map whose entries are stored one by one, so it may be larger than memory.

    This class keeps its entries in memory; the backends have subclasses that read from and write to
    their store. Only an assignment changes an entry: a value that was changed in place must be
    assigned again. `cell[key]` and `del cell[key]` raise KeyError if there is no such entry.
    Iteration is in the order of the keys' canonical bytes (docs/guides/formats.md). Entries may be
    assigned and deleted during an iteration.
    """

    __slots__ = ("_entries", "_key_bytes")

    def __init__(self, key_bytes: Callable[[A], bytes]) -> None:
        self._entries: dict[A, V] = {}
        self._key_bytes = key_bytes

    def __getitem__(self, key: A) -> V:
        return self._entries[key]

    def __setitem__(self, key: A, value: V) -> None:
        self._entries[key] = value

    def __delitem__(self, key: A) -> None:
        del self._entries[key]

    def __contains__(self, key: A) -> bool:
        return key in self._entries

    def __iter__(self) -> Iterator[A]:
        return (key for key, _ in self.items())

    @overload
    def get(self, key: A) -> V | None: ...
    @overload
    def get(self, key: A, default: V) -> V: ...
    def get(self, key: A, default: V | None = None) -> V | None:
        """Return the value of a key, or `default` if there is no such entry."""
        return self._entries.get(key, default)

    def keys(self) -> Iterator[A]:
        """Iterate over the keys, in the order of their canonical bytes."""
        return iter(self)

    def items(self) -> Iterator[tuple[A, V]]:
        """Iterate over keys and values, in the order of the keys' canonical bytes.

        The iteration raises RuntimeError if the map is cleared before its end.
        """
        entries = self._entries
        for key in sorted(entries, key=self._key_bytes):
            if self._entries is not entries:
                raise RuntimeError(CLEARED_MEANWHILE)
            if key in entries:
                yield key, entries[key]

    def clear(self) -> None:
        """Remove all entries."""
        self._entries = {}

    def image(self, *, mutable: bool) -> object:
        """Return a copy of the map; the values are copied too if they can change in place."""
        return copy_value(self._entries) if mutable else dict(self._entries)

    def restore(self, image: Any) -> None:
        """Reset the entries to those of the image."""
        self._entries = image

    def held_entries(self) -> list[tuple[A, V]]:
        """Return the entries in memory, including those of keys without canonical bytes."""
        return list(self._entries.items())

    def changed_since(self, image: Any, *, mutable: bool) -> list[Any]:
        """Return the pairs of key and value that are new or may differ from the image."""
        entries = self.held_entries()
        return [(k, v) for k, v in entries if mutable or k not in image or image[k] is not v]


def with_normalised_keys(cells: type[M], key_of: object) -> type[M]:
    """Return a class of map cells whose keys are compared in their normal form.

    The result is `cells` itself if keys of this type have only one form.
    """
    found = key_normaliser(key_of)
    if found is None:
        return cells
    base: Any = cells
    normalise: Callable[[Any], Any] = found

    class Normalised(base):  # type: ignore[misc]  # known at run time only
        __slots__ = ()

        def __getitem__(self, key: Any) -> Any:
            return super().__getitem__(normalise(key))

        def __setitem__(self, key: Any, value: Any) -> None:
            super().__setitem__(normalise(key), value)

        def __delitem__(self, key: Any) -> None:
            super().__delitem__(normalise(key))

        def __contains__(self, key: Any) -> bool:
            return bool(super().__contains__(normalise(key)))

        def get(self, key: Any, default: Any = None) -> Any:
            return super().get(normalise(key), default)

    return cast("type[M]", Normalised)


class State:
    """A declared state: its types, and its name, which is that of the attribute.

    The manifest of a checkpoint records both. The constructors raise PipelineError for a type
    without a schema and for a keyword that is not allowed.
    """

    kind: ClassVar[str]
    name = ""

    def __init__(self, *types: object, renamed_from: str = "", ttl: object = None) -> None:
        if ttl is not None:
            refuse_unsupported("ttl=", "remove it, and bound the state yourself")
        former: object = renamed_from
        if not isinstance(former, str) or not (former == "" or former.isidentifier()):
            raise PipelineError(
                f"renamed_from={renamed_from!r} is not the name of an attribute. Give the name "
                "that the state had before."
            )
        with at_user_location():
            self.types: tuple[TypeInfo, ...] = tuple(type_info(of) for of in types)
        self.renamed_from = renamed_from
        """Name of the state in checkpoints of older code; empty if the name is the same."""

    def __set_name__(self, owner: type, name: str) -> None:
        if not self.name:  # a second name is refused when the function class is made
            self.name = name

    if TYPE_CHECKING:

        def __set__(self, instance: object, value: Never) -> None:
            """Make type checkers refuse `self.total = x` (correct is `self.total.value = x`).

            At run time, this method does not exist, because the class must be a non-data
            descriptor.
            """

    @property
    def stored_type(self) -> object:
        """Type of one stored value: the list for a list state, an entry for a map state."""
        return self.types[0].python

    def new_cell(self) -> Cell:
        """Return a cell for a key that has no state yet."""
        raise NotImplementedError

    def describe(self) -> dict[str, object]:
        """Return the kind and the Avro schemas, for the graph's fingerprint."""
        return {"kind": self.kind, "schemas": [info.avro for info in self.types]}


class ValueState(State, Generic[V]):
    """One value per key. It needs a default value, or a factory if the type can change in place.

    `V | None` with default=None declares a value that may be absent. All states take
    `renamed_from=`, the name that the state had when the checkpoint was taken. The keyword may be
    removed after the next checkpoint.
    """

    kind = "value"

    @overload
    def __init__(
        self, of: TypeForm[V], *, default: V, renamed_from: str = "", ttl: object = None
    ) -> None: ...
    @overload
    def __init__(
        self,
        of: TypeForm[V],
        *,
        factory: Callable[[], V],
        renamed_from: str = "",
        ttl: object = None,
    ) -> None: ...
    def __init__(
        self,
        of: TypeForm[V],
        *,
        default: V = MISSING,
        factory: Callable[[], V] = MISSING,
        renamed_from: str = "",
        ttl: object = None,
    ) -> None:
        super().__init__(of, renamed_from=renamed_from, ttl=ttl)
        if (default is MISSING) == (factory is MISSING):
            raise PipelineError(
                f"{user_location()}: ValueState({type_name(of)}) needs default= or factory=, and "
                "only one: the value of a key that has no state yet."
            )
        if default is not MISSING:
            with at_user_location():
                _check_default(of, default, mutable=not self.types[0].immutable)
        self.new_value: Callable[[], V] = factory if factory is not MISSING else lambda: default
        """Function that makes the value of a key that has no state yet."""

    @overload
    def __get__(self, instance: None, owner: type) -> Self: ...
    @overload
    def __get__(self, instance: object, owner: type) -> ValueCell[V]: ...
    def __get__(self, instance: object | None, owner: type) -> Self | ValueCell[V]:
        return self if instance is None else unbound(self)

    def new_cell(self) -> ValueCell[V]:
        """Return a cell with the default value."""
        return ValueCell(self.new_value)


class ListState(State, Generic[V]):
    """A list per key. It is stored as a whole, so keep it short."""

    kind = "list"

    def __init__(self, of: TypeForm[V], *, renamed_from: str = "", ttl: object = None) -> None:
        super().__init__(of, renamed_from=renamed_from, ttl=ttl)

    @overload
    def __get__(self, instance: None, owner: type) -> Self: ...
    @overload
    def __get__(self, instance: object, owner: type) -> ListCell[V]: ...
    def __get__(self, instance: object | None, owner: type) -> Self | ListCell[V]:
        return self if instance is None else unbound(self)

    @property
    def stored_type(self) -> object:
        """Type of the whole list."""
        return GenericAlias(list, (self.types[0].python,))

    def new_cell(self) -> ListCell[V]:
        """Return an empty list cell."""
        return ListCell()


class MapState(State, Generic[A, V]):
    """A map per key, stored entry by entry. The type of the map's own keys must be a key type."""

    kind = "map"

    def __init__(
        self,
        key: TypeForm[A],
        value: TypeForm[V],
        *,
        renamed_from: str = "",
        ttl: object = None,
    ) -> None:
        super().__init__(key, value, renamed_from=renamed_from, ttl=ttl)
        if self.types[0].why_not_key:
            raise PipelineError(
                f"{user_location()}: MapState({type_name(key)}, ...): {self.types[0].why_not_key}"
            )
        self._key_bytes: Callable[[A], bytes] = key_encoder(self.types[0].python)
        self._cells = with_normalised_keys(MapCell, self.types[0].python)

    @overload
    def __get__(self, instance: None, owner: type) -> Self: ...
    @overload
    def __get__(self, instance: object, owner: type) -> MapCell[A, V]: ...
    def __get__(self, instance: object | None, owner: type) -> Self | MapCell[A, V]:
        return self if instance is None else unbound(self)

    @property
    def stored_type(self) -> object:
        """Type of one entry: a tuple of key and value."""
        return GenericAlias(tuple, tuple(info.python for info in self.types))

    def new_cell(self) -> MapCell[A, V]:
        """Return an empty map cell."""
        return self._cells(self._key_bytes)


def unbound(declaration: State) -> Any:
    """Refuse the access to a cell outside of a call of the function."""
    raise PipelineError(
        f"State {declaration.name!r} is only there while a record is processed; read it in "
        "process()."
    )


def _check_default(of: object, default: object, *, mutable: bool) -> None:
    """Refuse a default that type checkers accept, but that is shared or of another type.

    For a type checker, `ValueState(Decimal, default="0")` is a state of `object`.
    """
    if mutable and default is not None and type(default) not in (str, bytes, int, float, bool):
        raise PipelineError(
            f"default={default!r} would be shared by all keys; write "
            f"factory={type(default).__name__}."
        )
    if of is not Any and isinstance(of, type) and not isinstance(default, of):
        raise PipelineError(f"default={default!r} is not of type {type_name(of)}.")
