"""`WindowStep`: the declaration of a step with windows, which is the function of its node.

It joins the assigner, the trigger and the aggregates, and derives the state from them: rows that
hold open windows, and tables for windows that keep no records. `dataplane/windows` runs it.

A row says for which key and windows it is, because the bytes of a key in the store cannot be
decoded. So the rows of a restored step are enough to find all timers again.

Invariants: a window lies in the key group of its key, whatever its time. The layout of
the state depends on nothing that may change under one uid: not on the trigger, the allowed
lateness, the size of tumbling windows or the gap of sessions.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from types import GenericAlias
from typing import Any, ClassVar, Final, Optional

import msgspec

from tidegate.api.state.keys import key_encoder
from tidegate.api.state.state import State, ValueState
from tidegate.api.state.stored import state_schema
from tidegate.api.state.tables import TableState
from tidegate.api.windows.aggregates import ZEROS, Aggregate, Collect, Sum, TopN
from tidegate.api.windows.triggers import Trigger
from tidegate.api.windows.windows import Assigner, Calendar, Session, Sliding, WindowProcess
from tidegate.errors import PipelineError
from tidegate.graph.stream_graph import Node, function_name, stored_as
from tidegate.message_text import counted

LATE: Final = "late"
"""The port of the records that come after the last window in which they would be."""

OPEN_WINDOWS: Final = "open-windows"
"""The name of the state of windows. No attribute of a function can have it."""

WINDOW_TABLES: Final = "window-tables"
"""The name of the state of windows that lie in tables."""

NO_OTHERS: Final[list[Any]] = []
"""The list of a row of sessions whose key has one session. It is never changed in place. One list
for all saves the memory of a list for each row, and the visit to it.
"""

_OWN_FIELDS: Final = frozenset(
    {"key", "start_ms", "end_ms", "number", "pending", "filled", "past", "at_ms"}
)
"""Fields of a row that only tidegate sets. The keys of a batch are checked before."""


class Reduced(Aggregate[Any, Any, Any]):
    """The records of a window, combined by a function of two records."""

    kind = "reduced"
    has_empty_result = False

    def __init__(self, function: Callable[[Any, Any], Any]) -> None:
        super().__init__()
        self.function = function

    def fields(self, record_type: object, where: str) -> tuple[tuple[str, object], ...]:
        """Return one record."""
        del where
        return (("", record_type),)


class Records(Aggregate[Any, Any, Any]):
    """All records of a window, each with its event time."""

    kind = "records"
    limit: ClassVar[None] = None

    def fields(self, record_type: object, where: str) -> tuple[tuple[str, object], ...]:
        """Return one list of pairs of time and record."""
        del where
        return (("", GenericAlias(list, (GenericAlias(tuple, (int, record_type)),))),)


@stored_as("tidegate.api.window_step:WindowStep")
class WindowStep:
    """One step with windows.

    `function` takes the records of a window, or `into` the window and the results of the
    aggregates. PipelineError, which begins with `where`, if a type is not known or cannot be
    stored.
    """

    def __init__(
        self,
        assigner: Assigner[Any],
        trigger: Trigger[Any],
        lateness_ms: int,
        aggregates: Sequence[Aggregate[Any, Any, Any]],
        *,
        into: Callable[..., object] | None = None,
        function: WindowProcess[Any, Any, Any] | None = None,
        key_type: object,
        record_type: object,
        by_key: bool,
        where: str,
    ) -> None:
        self.assigner, self.trigger, self.lateness_ms = assigner, trigger, lateness_ms
        self.aggregates, self.into, self.function = tuple(aggregates), into, function
        self.key_type, self.record_type, self.by_key = key_type, record_type, by_key
        self.fields = tuple(
            tuple(
                (f"{each.kind}_{number}{suffix}", of)
                for suffix, of in each.fields(record_type, where)
            )
            for number, each in enumerate(aggregates)
        )
        """The stored fields of each aggregate: name and type."""
        self.fires_empty = trigger.always_on_time and not trigger.accumulate
        """Whether a window may fire although it has no records."""
        if self.fires_empty:
            self._check_empty_results(where)
        own = {} if function is None else type(function).declared_states
        if own and isinstance(assigner, Session | Sliding):
            raise PipelineError(
                f"{where}: {type(function).__name__} declares state "
                f"{', '.join(map(repr, own))}, and windows of the kind "
                f"{type(assigner).__name__} share their records with other windows, so state of "
                "one window is not supported there. Remove the state, or use Tumbling."
            )
        self.by_window = not isinstance(assigner, Session)
        """Whether each window or pane has a row of its own. The row of a key holds its sessions."""
        self.in_tables = not isinstance(assigner, Sliding) and not any(
            isinstance(each, Records | Collect | TopN) for each in aggregates
        )
        """Whether windows lie in tables, as far as memory allows. Those that keep records do not:
        they are large, and a checkpoint stores the changed windows as a whole. Their steps declare
        tables too, so that an aggregate that keeps records can be removed.
        """
        self.window_class, self.row_class, self.state_key_type = self._classes()
        of_row: Any = self.row_class | None
        row: ValueState[Any] = ValueState(of_row, default=None)
        row.name = OPEN_WINDOWS
        try:
            state_schema(row)
        except PipelineError as error:
            raise PipelineError(f"{where}: its windows cannot be stored: {error}") from None
        self.row_states: Mapping[str, State] = {OPEN_WINDOWS: row, **own}
        """The states of a row of a window."""
        self.declared_states: Mapping[str, State] = dict(self.row_states)
        if not isinstance(assigner, Sliding):  # also without tables: see `in_tables`
            tombstone = None if self.by_window else self._tombstone
            table = TableState(WINDOW_TABLES, self.row_class, key_type, tombstone)
            self.declared_states = {**self.row_states, WINDOW_TABLES: table}
        self.dropped_states = () if function is None else type(function).dropped_states
        self.fixed = assigner.fixed() | {"rows": "by window" if self.by_window else "by key"}
        self.fixed |= {} if by_key else {"keys": "none"}
        """Facts that cannot change while open windows exist; a checkpoint stores them."""

    def group_bytes(self) -> Callable[[Any], bytes]:
        """Return the function from a key of the state to the bytes that decide its key group."""
        encode = key_encoder(self.key_type)
        return (lambda key: encode(key[0])) if self.by_window else encode

    def describe(self) -> dict[str, object]:
        """Return the options of the step as JSON, for the fingerprint of a pipeline."""
        return {
            "windows": self.assigner.describe(),
            "trigger": self.trigger.describe(),
            "allowed_lateness_ms": self.lateness_ms,
            "aggregates": [each.describe() for each in self.aggregates],
            "into": function_name(self.into),
            "window_function": function_name(self.function),
            "state": {name: state.describe() for name, state in self.declared_states.items()},
        }

    def _check_empty_results(self, where: str) -> None:
        for each, fields in zip(self.aggregates, self.fields, strict=True):
            has_one = each.has_empty_result
            if isinstance(each, Sum):
                has_one = fields[0][1] in ZEROS
            if not has_one:
                what = "reduce" if isinstance(each, Reduced) else type(each).__name__
                raise PipelineError(
                    f"{where}: on_time='always' with accumulate=False gives a result without "
                    f"records if an early firing has taken all, and {what} has no such result. "
                    "Remove one of both arguments, or use Count, Sum of numbers, Collect, TopN, an "
                    "Aggregate of your own, or process."
                )

    def _tombstone(self, key: Any) -> msgspec.Struct:
        """Return the row that stands for a key without sessions: it ends before it begins."""
        parts = [None for fields in self.fields for _ in fields]
        return self.row_class(key, 0, -1, 0, 0, False, False, None, *parts, NO_OTHERS)

    def _classes(self) -> tuple[type[msgspec.Struct], type[msgspec.Struct], object]:
        """Return the class of a window in state, the class of a row, and the type of row keys.

        The row of a key is the newest of its open windows, with a list of the others. A row by
        window is a window, or a pane of windows, and its key has the begin and, for a window, the
        end.
        """
        stored: list[tuple[str, object]] = [field for fields in self.fields for field in fields]
        optional: list[tuple[str, Any]] = [(name, _or_none(of)) for name, of in stored]
        of_window: list[tuple[str, Any]] = [
            ("start_ms", int),
            ("end_ms", int),
            ("number", int),  # of the next firing
            ("pending", int),  # records that no result contains yet; at least 1 if there are such
            ("filled", bool),  # whether the accumulators hold records
            ("past", bool),  # whether the firing at the end is over
            ("at_ms", int | None),  # the next firing of `Every`
            *optional,
        ]
        key: Any = self.key_type
        if not self.by_window:
            window = _struct("OpenWindow", of_window)
            others: Any = GenericAlias(list, (window,))
            row = _struct("NewestWindow", [("key", key), *of_window, ("others", others)])
            return window, row, key
        window = _struct("OpenWindow", [("key", key), *of_window])
        parts = (key, int) if isinstance(self.assigner, Sliding) else (key, int, int)
        return window, window, GenericAlias(tuple, parts)


def has_calendar_windows(node: Node) -> bool:
    """Return whether a step has windows that depend on the tz database."""
    return isinstance(node.function, WindowStep) and isinstance(node.function.assigner, Calendar)


def check_into(into: object, count: int, where: str) -> None:
    """Refuse an `into` that is not callable with a window and `count` results."""
    if not callable(into):
        raise PipelineError(
            f"{where}: into={into!r} is not a function of the window and the results."
        )
    try:
        inspect.signature(into).bind(*range(count + 1))
    except TypeError:
        results = counted(count, "result")
        raise PipelineError(
            f"{where}: into takes the window and {results}, in the order of the aggregates, as in "
            f"lambda w, {', '.join('abcde'[:count])}: ..."
        ) from None
    except ValueError:  # a callable that does not say its arguments
        return


def _struct(name: str, fields: list[tuple[str, Any]]) -> type[msgspec.Struct]:
    # No row is in a cycle. An array is what a record is in state, so msgspec encodes it alone.
    namespace = {"TRUSTED_FIELDS": _OWN_FIELDS}
    # Rows are equal by identity, so that they can be entries of timers.
    return msgspec.defstruct(
        name, fields, namespace=namespace, module=__name__, gc=False, array_like=True, eq=False
    )


def _or_none(of: Any) -> Any:
    return Optional[of]  # noqa: UP045 - `|` does not take every form of a type
