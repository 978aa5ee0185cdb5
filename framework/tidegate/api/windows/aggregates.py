"""Aggregates: what a window keeps of its records, and the result that it gives.

An aggregate has an accumulator for each key and window, which is state: it is stored under the Avro
schema of its type. The declarations here are data. `dataplane/windows/accumulators.py` makes one
loop of all aggregates of a step, so the built-in ones run without a call of their own per record.

The result of a built-in aggregate does not depend on the order in which records arrive, except
where its docstring says so.

Example:
    Sum(lambda sale: sale.amount), Count(), First(lambda sale: sale.clerk)
"""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal
from types import GenericAlias
from typing import Any, ClassVar, Final, Generic, Protocol, TypeVar, cast, get_args, get_origin

from typing_extensions import get_original_bases

from tidegate.api.declarations.location import user_location
from tidegate.api.records.record_fields import type_name
from tidegate.api.records.type_inference import result_type
from tidegate.api.records.types import is_union, type_info
from tidegate.api.windows.triggers import is_positive_int
from tidegate.errors import PipelineError
from tidegate.graph.stream_graph import UNKNOWN

T = TypeVar("T")
T_contra = TypeVar("T_contra", contravariant=True)
Acc = TypeVar("Acc")
A = TypeVar("A")
R_co = TypeVar("R_co", covariant=True)


class Addable(Protocol):
    """A value with `+`, such as a number."""

    def __add__(self, other: Any, /) -> Any: ...


class Comparable(Protocol):
    """A value with `<`."""

    def __lt__(self, other: Any, /) -> bool: ...


N = TypeVar("N", bound=Addable)
C = TypeVar("C", bound=Comparable)

_NO_ORDER: Final = vars(object)["__lt__"]
"""The `<` of a class that has none of its own."""

_TEXTS: Final = (str, bytes)


class Aggregate(Generic[T_contra, Acc, R_co]):
    """An aggregate of your own: derive a class, and name the types of the record, of the
    accumulator and of the result: `class Spread(Aggregate[Order, Moments, float])`.

    `add` and `merge` may change their first argument and return it.
    """

    kind: ClassVar[str] = "own"
    """The name under which a checkpoint stores the accumulator, followed by a number."""
    has_empty_result: ClassVar[bool] = True
    """Whether there is a result of no records. That of `Sum` depends on the type of its values."""

    def __init__(self) -> None:
        self.location = user_location()

    def create(self) -> Acc:
        """Return the accumulator of a window without records."""
        raise NotImplementedError

    def add(self, accumulator: Acc, record: T_contra, /) -> Acc:
        """Return the accumulator with one more record."""
        raise NotImplementedError

    def merge(self, accumulator: Acc, other: Acc, /) -> Acc:
        """Return the accumulator of the records of both. Those of `other` are later."""
        raise NotImplementedError

    def result(self, accumulator: Acc, /) -> R_co:
        """Return the result of a window."""
        raise NotImplementedError

    def fields(self, record_type: object, where: str) -> tuple[tuple[str, object], ...]:
        """Return the fields that a window stores: a suffix of the name, and the type of each.

        PipelineError, which begins with `where`, if a type is not known or has no schema.
        """
        del record_type
        for name in ("create", "add", "merge", "result"):
            if getattr(type(self), name) is getattr(Aggregate, name):
                raise PipelineError(f"{where}: {type(self).__name__} has no method {name}().")
        accumulator = _type_arguments(type(self))[1]
        if accumulator is UNKNOWN:
            raise PipelineError(
                f"{where}: {type(self).__name__} does not say the type of its accumulator. Derive "
                f"it from Aggregate[Record, Accumulator, Result] with three types."
            )
        try:
            type_info(accumulator)
        except PipelineError as error:
            raise PipelineError(
                f"{where}: the accumulator of {type(self).__name__} cannot be stored: {error}"
            ) from None
        return (("", accumulator),)

    def describe(self) -> dict[str, object]:
        """Return the options that belong to the fingerprint of a pipeline, as JSON."""
        return {"kind": self.kind}


class _OfValue(Aggregate[T_contra, Acc, R_co]):
    """The base of the aggregates of a value that a function takes from each record."""

    def __init__(self, of: Callable[[Any], object], returns: object = None) -> None:
        super().__init__()
        if not callable(cast("object", of)):
            name = type(self).__name__
            raise PipelineError(
                f"{self.location}: {name}({of!r}) takes a function from a record to a value, as in "
                f"{name}(lambda sale: sale.amount)."
            )
        self.of, self.returns = of, returns

    def value_type(self, record_type: object, where: str) -> object:
        """Return the type of the value. PipelineError if it is not known or does not fit."""
        name = type(self).__name__
        found = result_type(self.of, record_type, self.returns)
        if found is UNKNOWN:
            raise PipelineError(
                f"{where}: the type of the value of {name} is not known, and windows store it: say "
                f"it with {name}(..., returns=Type), or give a def with a return annotation in "
                "place of the lambda."
            )
        why_not = self.why_not(found)
        if why_not:
            raise PipelineError(f"{where}: {name} of {type_name(found)}: {why_not}")
        try:
            type_info(found)
        except PipelineError as error:
            raise PipelineError(f"{where}: {name}: {error}") from None
        return found

    def why_not(self, value_type: object) -> str:
        """Return why the aggregate cannot take values of a type; empty if it can."""
        del value_type
        return ""

    def fields(self, record_type: object, where: str) -> tuple[tuple[str, object], ...]:
        """Return one field, of the type of the value."""
        return (("", self.value_type(record_type, where)),)


class Count(Aggregate[object, int, int]):
    """The number of records."""

    kind = "count"

    def fields(self, record_type: object, where: str) -> tuple[tuple[str, object], ...]:
        """Return one int."""
        del record_type, where
        return (("", int),)


class Sum(_OfValue[T_contra, N, N]):
    """The sum of a value of each record.

    Sums of floats differ in their last digits with the order of the records. A NaN makes the sum
    NaN. `returns` is the type of the value, if it is not known from the function. PipelineError for
    a type without a sum: a text, a bool, a union with None.
    """

    kind = "sum"

    def __init__(self, of: Callable[[T_contra], N], *, returns: type[N] | None = None) -> None:
        super().__init__(of, returns)

    def why_not(self, value_type: object) -> str:
        """Return why values of a type have no sum; empty if they have one."""
        if value_type is bool:
            return "the sum of bools is an int. Give int(...) with returns=int, or use Count()."
        if value_type in _TEXTS or get_origin(value_type) is not None or is_union(value_type):
            return (
                "it has no sum that is the same in any order of the records. Give a number: "
                "records that have none count as 0."
            )
        if isinstance(value_type, type) and not hasattr(value_type, "__add__"):
            return "it has no +. Give a number."
        return ""


ZEROS: Final[dict[object, str]] = {
    int: "0",
    float: "0.0",
    Decimal: "Decimal(0)",
}
"""The sum of no records, as source, by the type of the values."""


class _Extreme(_OfValue[T_contra, C, C]):
    has_empty_result = False

    def __init__(self, of: Callable[[T_contra], C], *, returns: type[C] | None = None) -> None:
        super().__init__(of, returns)

    def why_not(self, value_type: object) -> str:
        """Return why values of a type have no order; empty if they have one."""
        if value_type is None or value_type is type(None) or is_union(value_type):
            return (
                "None and other types cannot be compared. Give a value of one type, or filter "
                "records without one."
            )
        kind: Any = get_origin(value_type) or value_type
        if getattr(kind, "__lt__", _NO_ORDER) in (None, _NO_ORDER):
            return "it has no <. Give a value that can be compared."
        return ""


class Min(_Extreme[T_contra, C]):
    """The least value. It is NaN as soon as one value is NaN, as for a sum."""

    kind = "min"


class Max(_Extreme[T_contra, C]):
    """The greatest value. It is NaN as soon as one value is NaN, as for a sum."""

    kind = "max"


class Mean(_OfValue[T_contra, Any, float]):
    """The arithmetic mean of a float or an int of each record.

    Its last digits differ with the order of the records.
    """

    kind = "mean"
    has_empty_result = False

    def __init__(self, of: Callable[[T_contra], float]) -> None:
        super().__init__(of)

    def why_not(self, value_type: object) -> str:
        """Return why values of a type have no mean; empty if they have one."""
        if value_type in (float, int):
            return ""
        remedy = "Give float(...), or use Sum and Count."
        return f"the mean of floats and ints is a float. {remedy}"

    def fields(self, record_type: object, where: str) -> tuple[tuple[str, object], ...]:
        """Return the sum and the number of records."""
        if result_type(self.of, record_type) is not UNKNOWN:
            self.value_type(record_type, where)
        return (("_sum", float), ("_count", int))


class _AtTime(_OfValue[T_contra, Any, A]):
    def __init__(self, of: Callable[[T_contra], A], *, returns: type[A] | None = None) -> None:
        super().__init__(of, returns)

    def fields(self, record_type: object, where: str) -> tuple[tuple[str, object], ...]:
        """Return the time of the record and its value."""
        return (("_at_ms", int), ("", self.value_type(record_type, where)))


class First(_AtTime[T_contra, A]):
    """The value of the record with the earliest event time; of equal times, the first to arrive."""

    kind = "first"
    has_empty_result = False


class Last(_AtTime[T_contra, A]):
    """The value of the record with the latest event time; of equal times, the last to arrive."""

    kind = "last"
    has_empty_result = False


class _OfRecords(Aggregate[T_contra, Any, R_co]):
    """The base of the aggregates that keep whole records, each with its event time."""

    limit: int | None

    def fields(self, record_type: object, where: str) -> tuple[tuple[str, object], ...]:
        """Return one list of pairs of time and record."""
        if record_type is UNKNOWN:
            raise PipelineError(
                f"{where}: {type(self).__name__} keeps records in state, and their type is not "
                "known: say it with .map(..., returns=Type) before the window."
            )
        return (("", GenericAlias(list, (GenericAlias(tuple, (int, record_type)),))),)

    def describe(self) -> dict[str, object]:
        """Return the kind and the limit."""
        return {**super().describe(), "limit": self.limit}


class Collect(_OfRecords[T, list[T]]):
    """The records of the window by event time; of equal times, in the order of arrival.

    If there are more than `at_most`, the earliest ones remain. The whole list is state, and each
    checkpoint in which it changed stores it again.
    """

    kind = "collect"

    def __init__(self, *, at_most: int) -> None:
        super().__init__()
        self.limit = _positive(at_most, f"{self.location}: Collect(at_most={at_most!r})")


class TopN(_OfRecords[T, list[T]]):
    """The `n` records with the greatest value of `by`, the greatest first.

    Of equal values, the record with the earlier event time comes first, then the first to arrive.
    """

    kind = "top"

    def __init__(self, n: int, by: Callable[[T], Comparable]) -> None:
        super().__init__()
        self.limit = self.n = _positive(n, f"{self.location}: TopN({n!r})")
        if not callable(by):
            raise PipelineError(
                f"{self.location}: TopN(..., {by!r}) takes a function from a record to the value "
                "by which records are compared."
            )
        self.by = by


def _positive(number: object, where: str) -> int:
    if not is_positive_int(number):
        raise PipelineError(f"{where}: give a whole number of at least 1.")
    return cast("int", number)


def _type_arguments(kind: type) -> tuple[object, ...]:
    """Return the types of record, accumulator and result with which a class derives from Aggregate;
    UNKNOWN for a type that it does not name.
    """
    found = _declared_arguments(kind)
    return tuple(UNKNOWN if isinstance(of, TypeVar) or of is Any else of for of in found)


def _declared_arguments(kind: type) -> tuple[object, ...]:
    """Return these types, and type variables for open ones. Generic classes may lie between."""
    for base in get_original_bases(kind):
        origin = get_origin(base) or base
        if origin is Aggregate:
            return get_args(base) or (UNKNOWN,) * 3
        if isinstance(origin, type) and issubclass(origin, Aggregate):
            bound = dict(zip(getattr(origin, "__parameters__", ()), get_args(base), strict=False))
            return tuple(bound.get(of, of) for of in _declared_arguments(origin))
    return (UNKNOWN,) * 3
