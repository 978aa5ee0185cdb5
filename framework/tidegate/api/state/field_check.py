"""The check that every field of each value of a batch has its declared type, as a generated loop.

A `FieldCheck` is made once for a type and called for each batch. The loop is Python source such as

    for x in values:
        if not (type(x.name) is str and type(x.amount) is int): return False

The interpreter specialises this loop, so a field takes 7 ns. A pass in C for each field
(`attrgetter`, `type`, a set) takes 20 ns and more, and `fault` in `api/records/values.py` walks one
value in microseconds. The loop has the same rules as `fault`. If the loop finds a wrong value,
`fault` says what is wrong with it.

A class of tidegate's own may name fields that no code of users sets (`TRUSTED_FIELDS`); these are
not checked.

This module does not decide when fields are checked. `dataplane/operators/sampling.py` decides it
for records, and keyed state checks every value that it saves. For a type that no schema describes,
only the class is checked.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final, Literal, get_args, get_origin

import msgspec
from typing_extensions import is_typeddict

from tidegate.api.records.free_values import is_carried
from tidegate.api.records.moments import zone_is_carried
from tidegate.api.records.record_fields import fields_of, plain_type, record_class
from tidegate.api.records.types import is_union
from tidegate.api.records.values import ClassCheck, fault, has_schema
from tidegate.api.state.exactness import ExactClassCheck, inexact, is_uncertain, rest_check
from tidegate.api.state.wire import shape_of_stored
from tidegate.graph.stream_graph import UNKNOWN

CALL_COST: Final = 40
"""Fixed cost of a call, in units of one checked value (8 ns): a third of a microsecond."""
CONTAINER_COST: Final = 5
"""Cost of the call for each list, dict or set in a record, in the same unit."""
IN_DICT_COST: Final = 2
"""Cost of a field of a dataclass, a pydantic model or a TypedDict: these are not slots."""

_SEQUENCES: Final = (list, set, frozenset, Sequence)


class FieldCheck:
    """The check of one declared type."""

    def __init__(self, of: object, *, exact: bool = False) -> None:
        """Make the check. With `exact`, values must also be read back as they are."""
        self.type = of
        self._exact = exact
        self._loops = _ExactLoops() if exact else _Loops()
        self._holds = self._loops.loop(of) if has_schema(of) else None
        self.classes = ExactClassCheck(of) if exact else ClassCheck(of)
        """The check of the values' own classes."""
        self.size = self._loops.parts if self._holds and self._loops.is_flat else None
        """Number of values that are checked for each record; None if it differs per record."""

    @property
    def source(self) -> str:
        """The source of the generated loops, for display; the outer loop comes last."""
        return self._loops.source

    @property
    def cost(self) -> int:
        """Total cost until now, in checked values, with `CALL_COST` for each batch."""
        return self._loops.cost[0]

    def first_wrong(self, values: list[Any]) -> int | None:
        """Return the index of the first value that is wrong in its class or in any field.

        None if all values are of the type.
        """
        if self._holds is None:
            return self.classes.first_wrong(values)
        if self._all_hold(self._holds, values):
            return None
        return next((index for index, value in enumerate(values) if self.fault(value)), None)

    def fault(self, value: Any) -> str:
        """Describe the first wrong part of a value; empty if the value is right."""
        found = fault(value, self.type)
        return inexact(value, self.type) if self._exact and not found else found

    def _all_hold(self, holds: Callable[[list[Any]], bool], values: list[Any]) -> bool:
        self._loops.cost[0] += CALL_COST
        try:
            return holds(values)
        except (AttributeError, KeyError):  # a field was never set
            return False


class _Loops:
    """The generator of the loop of a type, and of one more loop for each container in it."""

    def __init__(self) -> None:
        self.cost = [0]
        self.source = ""
        self.is_flat = True
        """Whether the type needs only one loop."""
        self.parts = 0
        """Number of values that one iteration of the last loop checks."""
        self._names: dict[str, object] = {}
        self._variables = 0

    def loop(self, of: object) -> Callable[[Any], bool]:
        """Return a function that checks whether each value of a collection is of a type."""
        outer, self.parts = self.parts, 0
        holds = self._holds(of, "x")
        name = f"holds_{len(self._names)}"
        # Default arguments are local variables, which Python looks up faster than globals.
        used = [known for known in self._names if re.search(rf"\b{known}\b", holds)]
        bound = "".join(f", {known}={known}" for known in [*used, "cost"])
        source = (
            f"def {name}(values{bound}):\n"
            f"    cost[0] += {CONTAINER_COST} + {self.parts} * len(values)\n"
            f"    for x in values:\n        if not ({holds}): return False\n    return True\n"
        )
        scope: dict[str, Any] = {**self._names, "cost": self.cost}
        exec(compile(source, f"<generated {name}>", "exec"), scope)  # noqa: S102 - our template
        self.source += source
        self.parts = outer or self.parts
        function: Callable[[Any], bool] = scope[name]
        return function

    def _holds(self, of: object, value: str) -> str:
        """Return the source that checks one value; it may read `value` several times."""
        of = plain_type(of)
        if of is Any or of is UNKNOWN:
            return "True"
        if of is None or of is type(None):
            return f"{value} is None"
        if is_union(of):
            # None comes first: that is one comparison, and an unusual class is a call.
            branches = sorted(get_args(of), key=lambda branch: branch is not type(None))
            return f"({' or '.join(self._holds(branch, value) for branch in branches)})"
        self.parts += 1
        holds = self._class_holds(of, value)
        inside = self._inside(of, value)
        return f"({' and '.join([holds, *inside])})" if inside else holds

    def _class_holds(self, of: object, value: str) -> str:
        check = self._class_check(of)
        usual, counts = self._name(check.usual), self._name(check.counts)
        return f"(type({value}) is {usual} or {counts}(type({value})))"

    def _class_check(self, of: object) -> ClassCheck:
        return ClassCheck(of)

    def _inside(self, of: object, value: str) -> list[str]:
        """Return the conditions for the parts of a value that has the right class."""
        origin, arguments = get_origin(of), get_args(of)
        if origin is Literal:
            return [f"{value} in {self._name(frozenset(arguments))}"]
        if origin is tuple and ... not in arguments:
            parts = [(f"{value}[{i}]", argument) for i, argument in enumerate(arguments)]
            return [f"len({value}) == {len(parts)}", *self._parts(parts)]
        if origin is tuple or origin in _SEQUENCES:
            return self._items(value, value, arguments[0])
        if origin in (dict, Mapping):
            keys = self._items(value, value, arguments[0])
            return [*keys, *self._items(value, f"{value}.values()", arguments[1])]
        form = "{}[{}]" if is_typeddict(record_class(of)) else "{}.{}"
        quoted = json.dumps if is_typeddict(record_class(of)) else str
        trusted = getattr(record_class(of), "TRUSTED_FIELDS", ())
        fields = [field for field in fields_of(of) or () if field.name not in trusted]
        if fields and not issubclass(record_class(of), msgspec.Struct):
            self.parts += (IN_DICT_COST - 1) * len(fields)
        return self._parts([(form.format(value, quoted(f.name)), f.type) for f in fields])

    def _parts(self, parts: list[tuple[str, object]]) -> list[str]:
        holds = []
        for source, of in parts:
            if fields_of(of) or get_origin(of) is not None or is_union(of):
                self._variables += 1
                part = f"v{self._variables}"  # read once, because the check uses it several times
                holds.append(f"(({part} := {source}) is {part} and {self._holds(of, part)})")
            else:
                holds.append(self._holds(of, source))
        return [condition for condition in holds if condition != "True"]

    def _items(self, container: str, items: str, of: object) -> list[str]:
        """Return the condition for the items of a container. An empty one costs no call."""
        if of is Any:
            return []
        self.is_flat = False
        return [f"(not {container} or {self._name(self.loop(of))}({items}))"]

    def _name(self, known: object) -> str:
        name = f"k{len(self._names)}"
        self._names[name] = known
        return name


class _ExactLoops(_Loops):
    """The same loops for values that must be read back as they are."""

    def _class_check(self, of: object) -> ClassCheck:
        return ExactClassCheck(of)

    def _holds(self, of: object, value: str) -> str:
        of = plain_type(of)
        if of is Any:
            self.is_flat = False
            return f"{self._name(is_carried)}({value})"
        return super()._holds(of, value)

    def _inside(self, of: object, value: str) -> list[str]:
        inside = super()._inside(of, value)
        if of is datetime:
            utc, is_kept = self._name(UTC), self._name(zone_is_carried)
            return [*inside, f"({value}.tzinfo is {utc} or {is_kept}({value}))"]
        fields = fields_of(of)
        shape = None if fields is None else shape_of_stored(of, fields)
        if shape is not None and shape.possible:
            has_rest = shape.has_rest(value, self._name)
            inside.append(f"(not {has_rest} or {self._name(rest_check(shape))}({value}))")
        return inside

    def _items(self, container: str, items: str, of: object) -> list[str]:
        if of is not Any:
            return super()._items(container, items, of)
        self.is_flat = False
        return [f"(not {container} or all(map({self._name(is_carried)}, {items})))"]


class UncertainParts(_ExactLoops):
    """Only the parts of a value that may be of their type and not be read back as they are.

    They are few, or none, so every record is checked, and not only a sample.
    """

    def first_wrong(self, of: object) -> Callable[[list[Any]], int | None] | None:
        """Return a function like `FieldCheck.first_wrong`; None if a type has no such parts."""
        if not has_schema(of) or not is_uncertain(of):
            return None
        holds, one = self.loop(of), FieldCheck(of, exact=True)

        def first(values: list[Any]) -> int | None:
            try:
                if holds(values):
                    return None
            except (AttributeError, KeyError, TypeError):  # a wrong value
                pass
            return next((i for i, value in enumerate(values) if one.fault(value)), None)

        return first

    _in_union = False
    """Whether the loop must find the branch of a value, by its class."""

    def _holds(self, of: object, value: str) -> str:
        of = plain_type(of)
        if self._in_union:
            return super()._holds(of, value)
        if not is_uncertain(of):
            return "True"
        self._in_union = is_union(of)
        holds = super()._holds(of, value)
        self._in_union = False
        return holds

    def _class_holds(self, of: object, value: str) -> str:
        if self._in_union or get_origin(of) in (list, set, frozenset, dict, Mapping, Sequence):
            return super()._class_holds(of, value)
        return "True"

    def _items(self, container: str, items: str, of: object) -> list[str]:
        if not self._in_union and not is_uncertain(of):
            return []
        return super()._items(container, items, of)
