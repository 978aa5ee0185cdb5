"""Keyed state, declared as attributes of a function class and typed there.

A declaration (`total = ValueState(Decimal, ...)`) is a non-data descriptor: on the class it is
itself, on an instance it is typed as the cell of the current key. The loop that calls the function
hangs the current key's cells on the instance, so that an access in the hot path is a plain
attribute and never a call. A cell is the state of one key; the backends of the data plane make,
load, save and drop cells.

What a backend relies on: `ValueCell.value` differs by identity from `saved` once it was assigned,
and a value whose type can change in place (`State.types[0].immutable` is false) counts as changed
once the cell was touched; `ListCell.changed` and `MapCell`'s methods tell the rest.
"""

from __future__ import annotations

import copy
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

from tidegate.api.keys import key_encoder, key_normaliser
from tidegate.api.location import refuse_unsupported
from tidegate.api.record_fields import MISSING, type_name
from tidegate.api.types import TypeInfo, type_info
from tidegate.errors import PipelineError

V = TypeVar("V")
A = TypeVar("A")
M = TypeVar("M", bound="MapCell[Any, Any]")

CLEARED_MEANWHILE: Final = "map state was cleared, or its record left, during iteration"


class Cell:
    """The state of one key."""

    __slots__ = ()

    def clear(self) -> None:
        """Forget: the next read sees what a new key sees."""
        raise NotImplementedError

    def image(self, *, mutable: bool) -> object:
        """What `restore` needs to undo whatever is done to the cell from now on. `mutable` says
        that its values can change in place.
        """
        raise NotImplementedError

    def restore(self, image: Any) -> None:
        """Make the cell what it was when the image was taken; once for each image."""
        raise NotImplementedError

    def changed_since(self, image: Any, *, mutable: bool) -> list[Any]:
        """What may have changed since the image was taken, each in the form of the state's
        `stored_type`; of a list without the items that it had, if those are the same.
        """
        raise NotImplementedError


class ValueCell(Cell, Generic[V]):
    """`.value` is a plain slot; `saved` is what the backend last stored or loaded."""

    __slots__ = ("_new", "saved", "value")
    value: V
    saved: object

    def __init__(self, new: Callable[[], V]) -> None:
        self._new = new
        self.value = self.saved = new()

    def clear(self) -> None:
        self.value = self._new()

    def image(self, *, mutable: bool) -> object:
        return copy.deepcopy(self.value) if mutable else self.value, self.saved

    def restore(self, image: Any) -> None:
        self.value, self.saved = image

    def changed_since(self, image: Any, *, mutable: bool) -> list[Any]:
        return [] if self.value is image[0] and not mutable else [self.value]


class ListCell(Cell, Generic[V]):
    """An ordered list that is stored and loaded whole; `changed` since it was last saved."""

    __slots__ = ("_items", "changed")

    def __init__(self, items: Iterable[V] = ()) -> None:
        self._items: list[V] = list(items)
        self.changed = False

    def append(self, item: V) -> None:
        self._items.append(item)
        self.changed = True

    def replace(self, items: Iterable[V]) -> None:
        self._items = list(items)
        self.changed = True

    def __iter__(self) -> Iterator[V]:
        return iter(self._items)

    def __len__(self) -> int:
        return len(self._items)

    def clear(self) -> None:
        self.replace(())

    def image(self, *, mutable: bool) -> object:
        # A list only grows in place, so its length is enough where items cannot change.
        items = copy.deepcopy(self._items) if mutable else self._items
        return items, len(items), self.changed

    def restore(self, image: Any) -> None:
        self._items, length, self.changed = image
        del self._items[length:]

    def changed_since(self, image: Any, *, mutable: bool) -> list[Any]:
        items, length, _ = image
        return [self._items[length:] if self._items is items and not mutable else self._items]


class MapCell(Cell, Generic[A, V]):
    """A map whose entries are stored one by one, so that it may be larger than memory.

    This one keeps them in memory; a backend's own reads and writes through. Assigning is what
    changes an entry: a value that was changed in place must be assigned again. `cell[key]` and
    `del cell[key]` raise KeyError for an entry that is not there. Iteration is in the order of the
    keys' canonical bytes (docs/formats.md); entries may be assigned and deleted meanwhile.
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
        return self._entries.get(key, default)

    def keys(self) -> Iterator[A]:
        return iter(self)

    def items(self) -> Iterator[tuple[A, V]]:
        """RuntimeError, while it goes on, where the map was cleared meanwhile."""
        entries = self._entries
        for key in sorted(entries, key=self._key_bytes):
            if self._entries is not entries:
                raise RuntimeError(CLEARED_MEANWHILE)
            if key in entries:
                yield key, entries[key]

    def clear(self) -> None:
        self._entries = {}

    def image(self, *, mutable: bool) -> object:
        return copy.deepcopy(self._entries) if mutable else dict(self._entries)

    def restore(self, image: Any) -> None:
        self._entries = image

    def held_entries(self) -> list[tuple[A, V]]:
        """The entries in memory, also those of keys that have no canonical bytes."""
        return list(self._entries.items())

    def changed_since(self, image: Any, *, mutable: bool) -> list[Any]:
        entries = self.held_entries()
        return [(k, v) for k, v in entries if mutable or k not in image or image[k] is not v]


def with_normalised_keys(cells: type[M], key_of: object) -> type[M]:
    """Cells of a map state whose keys are compared in their normal form; the same class where keys
    have only one form.
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
    """A declared state: its name (the attribute's) and types, which the manifest records."""

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
        self.types: tuple[TypeInfo, ...] = tuple(type_info(of) for of in types)
        self.renamed_from = renamed_from
        """The name that the state has in checkpoints of older code; empty if it has this one."""

    def __set_name__(self, owner: type, name: str) -> None:
        if not self.name:  # a second name is refused when the function class is made
            self.name = name

    if TYPE_CHECKING:

        def __set__(self, instance: object, value: Never) -> None:
            """`self.total = x` is a mistake (it is `self.total.value = x`); at run time the class
            must stay a non-data descriptor.
            """

    @property
    def stored_type(self) -> object:
        """The type of one stored value: of a list state the list, of a map state an entry."""
        return self.types[0].python

    def new_cell(self) -> Cell:
        """A cell of a key that was never seen."""
        raise NotImplementedError

    def describe(self) -> dict[str, object]:
        """Kind and Avro schemas, for the graph's fingerprint."""
        return {"kind": self.kind, "schemas": [info.avro for info in self.types]}


class ValueState(State, Generic[V]):
    """One value per key. A default is needed: a value, or a factory for a type that can change.

    `V | None` with default=None says 'maybe absent'. All states take `renamed_from=`: the name that
    the state had when the checkpoint was taken. It may be removed after the next checkpoint.
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
                f"ValueState({type_name(of)}) needs default= or factory=, and only one: what does "
                "a key see that was never seen?"
            )
        if default is not MISSING:
            _check_default(of, default, mutable=not self.types[0].immutable)
        self.new_value: Callable[[], V] = factory if factory is not MISSING else lambda: default
        """What a key has that was never seen."""

    @overload
    def __get__(self, instance: None, owner: type) -> Self: ...
    @overload
    def __get__(self, instance: object, owner: type) -> ValueCell[V]: ...
    def __get__(self, instance: object | None, owner: type) -> Self | ValueCell[V]:
        return self if instance is None else _unbound(self)

    def new_cell(self) -> ValueCell[V]:
        return ValueCell(self.new_value)


class ListState(State, Generic[V]):
    """A list per key, stored whole: keep it short."""

    kind = "list"

    def __init__(self, of: TypeForm[V], *, renamed_from: str = "", ttl: object = None) -> None:
        super().__init__(of, renamed_from=renamed_from, ttl=ttl)

    @overload
    def __get__(self, instance: None, owner: type) -> Self: ...
    @overload
    def __get__(self, instance: object, owner: type) -> ListCell[V]: ...
    def __get__(self, instance: object | None, owner: type) -> Self | ListCell[V]:
        return self if instance is None else _unbound(self)

    @property
    def stored_type(self) -> object:
        return GenericAlias(list, (self.types[0].python,))

    def new_cell(self) -> ListCell[V]:
        return ListCell()


class MapState(State, Generic[A, V]):
    """A map per key, stored entry by entry. Its own keys are of a key type."""

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
            raise PipelineError(f"MapState({type_name(key)}, ...): {self.types[0].why_not_key}")
        self._key_bytes: Callable[[A], bytes] = key_encoder(self.types[0].python)
        self._cells = with_normalised_keys(MapCell, self.types[0].python)

    @overload
    def __get__(self, instance: None, owner: type) -> Self: ...
    @overload
    def __get__(self, instance: object, owner: type) -> MapCell[A, V]: ...
    def __get__(self, instance: object | None, owner: type) -> Self | MapCell[A, V]:
        return self if instance is None else _unbound(self)

    @property
    def stored_type(self) -> object:
        return GenericAlias(tuple, tuple(info.python for info in self.types))

    def new_cell(self) -> MapCell[A, V]:
        return self._cells(self._key_bytes)


def _unbound(declaration: State) -> Any:
    raise PipelineError(
        f"state {declaration.name!r} is only there while a record is processed; read it in "
        "process()"
    )


def _check_default(of: object, default: object, *, mutable: bool) -> None:
    """What checkers let pass: `ValueState(Decimal, default="0")` is a state of `object` to them."""
    if mutable and default is not None and type(default) not in (str, bytes, int, float, bool):
        raise PipelineError(
            f"default={default!r} would be shared by all keys; write "
            f"factory={type(default).__name__}"
        )
    if isinstance(of, type) and not isinstance(default, of):
        raise PipelineError(f"default={default!r} is not of type {type_name(of)}")
