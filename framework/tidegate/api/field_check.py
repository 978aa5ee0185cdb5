"""Whether every field of a batch of values is of its declared type, column by column.

`FieldCheck` is made once for a type and asked per batch. It takes each field of all values as one
column and looks at the classes in C, about 20 ns a field, where `fault` in `api/values.py` walks
one value in microseconds. Both have the same rules: the columns find batches in which something may
be wrong, and `fault` decides about each value of them and says what it is.

It does not say when to look at fields: `dataplane/operators/sampling.py` does, and keyed state
looks at all that it saves. Of a type that no schema describes, only the class is looked at.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import chain
from operator import attrgetter, itemgetter
from typing import Any, Final, Literal, get_args, get_origin, is_typeddict

from tidegate.api.fields import class_of, fields_of
from tidegate.api.types import is_union
from tidegate.api.values import ClassCheck, counts_as, fault, has_schema
from tidegate.graph.logical import UNKNOWN

COLUMN_COST: Final = 25
"""What a column costs beside its values, in values: half a microsecond."""

_SEQUENCES: Final = (list, set, frozenset, Sequence)

Column = list[Any]


class FieldCheck:
    """The check of one declared type."""

    def __init__(self, of: object) -> None:
        self.of = of
        self.cost = 0
        """How many values were looked at until now, and `COLUMN_COST` for each column."""
        self._holds = self._checker(of) if has_schema(of) else None

    def first_wrong(self, values: Column) -> int | None:
        """The index of the first value of which a field is not of its type; None if all are."""
        if self._holds is None or self._holds(values):
            return None
        of = self.of
        return next((index for index, value in enumerate(values) if fault(value, of)), None)

    def _checker(self, of: object) -> Callable[[Column], bool]:
        """A function that says whether a column is of a type; in doubt it says no."""
        if of is Any or of is UNKNOWN:
            return _anything
        if is_union(of):
            return self._union(get_args(of))
        classes = self._classes(of)
        inside = self._inside(of)
        if inside is None:
            return classes
        return lambda values: classes(values) and (not values or inside(values))

    def _classes(self, of: object) -> Callable[[Column], bool]:
        first_wrong = ClassCheck(of).first_wrong

        def holds(values: Column) -> bool:
            self.cost += len(values) + COLUMN_COST
            return first_wrong(values) is None

        return holds

    def _inside(self, of: object) -> Callable[[Column], bool] | None:
        """The check of what values of the right class hold; None if they hold nothing."""
        origin, arguments = get_origin(of), get_args(of)
        if origin is Literal:
            allowed = {(type(value), value) for value in arguments}
            return lambda values: allowed.issuperset(zip(map(type, values), values, strict=True))
        if origin is tuple and ... not in arguments:
            size = len(arguments)
            columns = self._columns([(itemgetter(i), of) for i, of in enumerate(arguments)])
            return lambda values: set(map(len, values)) == {size} and columns(values)
        if origin is tuple or origin in _SEQUENCES:
            item = self._checker(arguments[0])
            return lambda values: item(list(chain.from_iterable(values)))
        if origin in (dict, Mapping):
            key, value = map(self._checker, arguments)
            return lambda values: (
                key(list(chain.from_iterable(values)))
                and value([inner for each in values for inner in each.values()])
            )
        fields = fields_of(of)
        if not fields:
            return None
        get = itemgetter if is_typeddict(class_of(of)) else attrgetter
        return self._columns([(get(field.name), field.of) for field in fields])

    def _columns(
        self, parts: Iterable[tuple[Callable[[Any], Any], object]]
    ) -> Callable[[Column], bool]:
        columns = [(get, self._checker(of)) for get, of in parts if of is not Any]

        def holds(values: Column) -> bool:
            try:
                return all(check(list(map(get, values))) for get, check in columns)
            except (AttributeError, KeyError, IndexError):  # a field that was never set
                return False

        return holds

    def _union(self, branches: tuple[object, ...]) -> Callable[[Column], bool]:
        checks = [(branch, self._checker(branch)) for branch in branches]

        def holds(values: Column) -> bool:
            kinds = list(map(type, values))
            self.cost += len(values) + COLUMN_COST
            for kind in dict.fromkeys(kinds):
                fitting = [check for branch, check in checks if counts_as(kind, branch)]
                column = values
                if kinds.count(kind) < len(kinds):
                    column = [v for v, k in zip(values, kinds, strict=True) if k is kind]
                if len(fitting) == 1:
                    if not fitting[0](column):
                        return False
                elif not all(any(check([value]) for check in fitting) for value in column):
                    return False
            return True

        return holds


def _anything(_: Column) -> bool:
    return True
