"""Timers, declared as attributes of a function class like state: `silence = EventTimer()`.

A key has one timer for each declaration (and name). Its time is a cell of the key's row, next to
the cells of the states. So a checkpoint and a restore at another parallelism treat it like state.
To set a timer again moves it. The function's `on_timer` is called when the time comes.

`EventTimer` follows the watermark of the step, and `ProcessingTimer` the clock of the slot.
`EventTimers(str)` and `ProcessingTimers(str)` declare one timer for each name that the function
uses. All timers of a key with names are stored as one value, so keep the names few.

The cells say when the function's operator must look at their key (`dataplane/time`). This module
does not decide when a timer fires.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from types import GenericAlias
from typing import Any, ClassVar, Generic, Literal, Protocol, Self, TypeVar, overload

from typing_extensions import TypeForm

from tidegate.api.records.record_fields import type_name
from tidegate.api.state.keys import key_encoder, key_normaliser
from tidegate.api.state.state import Cell, State, unbound
from tidegate.api.time.watermarks import TIME_MAX_MS, UnusableTimeError, instant_ms
from tidegate.errors import PipelineError
from tidegate.graph.stream_graph import UNKNOWN
from tidegate.stream_elements import NEVER

A = TypeVar("A")

Domain = Literal["event", "processing"]


class Index(Protocol):
    """The index of a declaration's timers (`dataplane/time/timer_index.py`)."""

    def add(self, at_ms: int, key: Any) -> None:
        """Look at a key when the time reaches `at_ms`."""
        ...

    def discard(self, at_ms: int, key: Any) -> None:
        """Do not look at a key at this time, if it was noted."""
        ...


class TimerCell(Cell):
    """The timer of the current key: `self.silence.set(ctx.timestamp_ms + 60_000)`."""

    __slots__ = ("_index", "at_ms", "indexed_ms", "key")

    at_ms: int | None
    """The time of the timer in milliseconds since the Unix epoch; None if it is not set. Use `set`
    and `cancel` to change it.
    """

    def __init__(self, index: Index, key: Any, at_ms: int | None = None) -> None:
        self._index, self.key, self.at_ms = index, key, at_ms
        self.indexed_ms = NEVER if at_ms is None else at_ms
        """The key is looked at at this time or earlier, and not after `at_ms`. NEVER if no time is
        noted.
        """

    def set(self, at: int | datetime) -> None:
        """Set the timer, or move it. A time that is over fires directly after this call of the
        function.

        `at` is in milliseconds since the Unix epoch, or a datetime with a time zone. TypeError for
        another value. A number of milliseconds beyond 2**62 counts as 2**62.
        """
        at_ms = at if type(at) is int and -TIME_MAX_MS <= at <= TIME_MAX_MS else _timer_ms(at)
        self.at_ms = at_ms
        if at_ms < self.indexed_ms:
            self.indexed_ms = at_ms
            self._index.add(at_ms, self.key)

    def cancel(self) -> None:
        """Remove the timer. It does not fire."""
        self.at_ms = None
        if self.indexed_ms != NEVER:
            self._index.discard(self.indexed_ms, self.key)
            self.indexed_ms = NEVER

    def clear(self) -> None:
        """Remove the timer."""
        self.cancel()

    def image(self, *, mutable: bool) -> object:
        """Return the time."""
        del mutable
        return self.at_ms

    def restore(self, image: Any) -> None:
        """Reset the time to that of the image, and note it again if that is not certain."""
        self.at_ms = image
        if self.indexed_ms != self.next_ms():
            self.looked_at()

    def changed_since(self, image: Any, *, mutable: bool) -> list[Any]:
        """Return nothing: every time can be stored."""
        del image, mutable
        return []

    def set_since(self, image: Any) -> int:
        """Return the time to which the timer was set since the image; NEVER if it was not."""
        return NEVER if self.at_ms is None or self.at_ms is image else self.at_ms

    def next_ms(self) -> int:
        """Return the time of the timer; NEVER if it is not set."""
        return NEVER if self.at_ms is None else self.at_ms

    def take(self) -> tuple[Any, int]:
        """Remove the timer, because it fires, and return no name and its time."""
        at_ms = self.next_ms()
        self.at_ms = None
        return None, at_ms

    def stored(self) -> Any:
        """Return the form of the timer in the store; None if it is not set."""
        return self.at_ms

    def looked_at(self) -> None:
        """Note the time again, because the entry at which the key was looked at is gone."""
        self.indexed_ms = NEVER
        if self.at_ms is not None:
            self.indexed_ms = self.at_ms
            self._index.add(self.at_ms, self.key)


class TimersCell(Cell, Generic[A]):
    """The timers of the current key, by name: `self.deadline.set(order_id, at_ms)`."""

    __slots__ = ("_declaration", "_index", "_times", "indexed_ms", "key")

    def __init__(
        self,
        declaration: Timers[A],
        index: Index,
        key: Any,
        times: Iterable[tuple[A, int]] = (),
    ) -> None:
        self._declaration, self._index, self.key = declaration, index, key
        self._times: dict[A, int] = dict(times)
        """The times by name. The dict is replaced and never changed."""
        self.indexed_ms = self.next_ms()
        """The key is looked at at this time or earlier. It is never after the first timer."""

    def at_ms(self, name: A) -> int | None:
        """Return the time of a timer in milliseconds since the Unix epoch; None if it is not
        set.
        """
        return self._times.get(self._of(name))

    def set(self, name: A, at: int | datetime) -> None:
        """Set the timer with this name, or move it, as `TimerCell.set` does."""
        at_ms = _timer_ms(at)
        self._times = {**self._times, self._of(name): at_ms}
        if at_ms < self.indexed_ms:
            self.indexed_ms = at_ms
            self._index.add(at_ms, self.key)

    def cancel(self, name: A) -> None:
        """Remove the timer with this name. It does not fire."""
        of = self._of(name)
        if of in self._times:
            self._times = {other: at_ms for other, at_ms in self._times.items() if other != of}
            self._forget_if_empty()

    def __iter__(self) -> Iterator[A]:
        """Iterate over the names of the timers that are set."""
        return iter(self._times)

    def clear(self) -> None:
        """Remove all timers of the key."""
        self._times = {}
        self._forget_if_empty()

    def image(self, *, mutable: bool) -> object:
        """Return the times."""
        del mutable
        return self._times

    def restore(self, image: Any) -> None:
        """Reset the times to those of the image, and note the first again if that is not
        certain.
        """
        self._times = image
        if self.indexed_ms != self.next_ms():
            self.looked_at()

    def changed_since(self, image: Any, *, mutable: bool) -> list[Any]:
        """Return a list of the stored form, whose names the function has chosen. It is empty if the
        timers are unchanged, or if none is set.
        """
        del mutable
        return [] if self._times is image or not self._times else [(self.key, self.stored())]

    def set_since(self, image: Any) -> int:
        """Return the first time to which a timer was set since the image; NEVER if none
        was.
        """
        if self._times is image:
            return NEVER
        times = (at_ms for name, at_ms in self._times.items() if image.get(name) != at_ms)
        return min(times, default=NEVER)

    def next_ms(self) -> int:
        """Return the time of the first timer; NEVER if none is set."""
        return min(self._times.values(), default=NEVER)

    def take(self) -> tuple[Any, int]:
        """Remove the first timer, because it fires, and return its name and its time. Timers with
        one time are in the order of their names' canonical bytes.
        """
        at_ms = self.next_ms()
        names = [name for name, time_ms in self._times.items() if time_ms == at_ms]
        name = min(names, key=self._declaration.name_bytes) if len(names) > 1 else names[0]
        self._times = {other: at for other, at in self._times.items() if other != name}
        return name, at_ms

    def stored(self) -> Any:
        """Return the form of the timers in the store; None if none is set."""
        return list(self._times.items()) or None

    def looked_at(self) -> None:
        """Note the first time again, because the entry at which the key was looked at is gone."""
        self.indexed_ms = self.next_ms()
        if self._times:
            self._index.add(self.indexed_ms, self.key)

    def _forget_if_empty(self) -> None:
        if not self._times and self.indexed_ms != NEVER:
            self._index.discard(self.indexed_ms, self.key)
            self.indexed_ms = NEVER

    def _of(self, name: A) -> A:
        normalise = self._declaration.normalise
        return name if normalise is None else normalise(name)


AnyTimerCell = TimerCell | TimersCell[Any]


def for_keys(states: Mapping[str, State], key_type: object) -> dict[str, State]:
    """Return the declarations of a step with keys of this type."""
    return {
        name: state.for_keys(key_type) if isinstance(state, TimerDeclaration) else state
        for name, state in states.items()
    }


def has_timers(states: Mapping[str, State], domain: Domain | None = None) -> bool:
    """Return whether a function declares timers, of one domain or of any."""
    return any(
        isinstance(state, TimerDeclaration) and domain in (None, state.domain)
        for state in states.values()
    )


class TimerDeclaration(State):
    """A declared timer, or timers by name. It is a state whose values are times."""

    domain: ClassVar[Domain]
    key_type: object = UNKNOWN
    """The type of the step's keys. The class of a function does not know it, so `for_keys` sets it.
    """

    def for_keys(self, key_type: object) -> Self:
        """Return the declaration for a step with keys of this type.

        A timer is stored with its key. A restore reads all timers, and the canonical bytes of a key
        cannot be decoded.
        """
        bound = copy.copy(self)
        bound.key_type = key_type
        return bound

    def timer_cell(self, index: Index, key: Any) -> AnyTimerCell:
        """Return the cell of a key that has no timer."""
        raise NotImplementedError


class Timer(TimerDeclaration):
    """One timer for each key. Use `EventTimer` or `ProcessingTimer`."""

    def __init__(self, *, renamed_from: str = "") -> None:
        super().__init__(renamed_from=renamed_from)

    @overload
    def __get__(self, instance: None, owner: type) -> Self: ...
    @overload
    def __get__(self, instance: object, owner: type) -> TimerCell: ...
    def __get__(self, instance: object | None, owner: type) -> Self | TimerCell:
        return self if instance is None else unbound(self)

    @property
    def stored_type(self) -> object:
        """Type of one stored value: the key and the time."""
        return GenericAlias(tuple, (self.key_type, int))

    def timer_cell(self, index: Index, key: Any) -> TimerCell:
        """Return the timer of a key, which is not set."""
        return TimerCell(index, key)


class Timers(TimerDeclaration, Generic[A]):
    """One timer for each key and name. Use `EventTimers` or `ProcessingTimers`.

    PipelineError if the type of the names cannot be a key.
    """

    def __init__(self, name: TypeForm[A], *, renamed_from: str = "") -> None:
        super().__init__(name, renamed_from=renamed_from)
        if self.types[0].why_not_key:
            raise PipelineError(
                f"{type(self).__name__}({type_name(name)}): {self.types[0].why_not_key}"
            )
        self.normalise = key_normaliser(self.types[0].python)
        """Function that converts the datetimes in a name to UTC; None if it cannot have any."""
        self.name_bytes = key_encoder(self.types[0].python)
        """Function that returns the canonical bytes of a name."""

    @overload
    def __get__(self, instance: None, owner: type) -> Self: ...
    @overload
    def __get__(self, instance: object, owner: type) -> TimersCell[A]: ...
    def __get__(self, instance: object | None, owner: type) -> Self | TimersCell[A]:
        return self if instance is None else unbound(self)

    @property
    def stored_type(self) -> object:
        """Type of one stored value: the key, and the list of names with their times."""
        one = GenericAlias(tuple, (self.types[0].python, int))
        return GenericAlias(tuple, (self.key_type, GenericAlias(list, (one,))))

    def timer_cell(self, index: Index, key: Any) -> TimersCell[A]:
        """Return the timers of a key, of which none is set."""
        return TimersCell(self, index, key)


class EventTimer(Timer):
    """A timer that fires when the watermark of the step reaches its time."""

    kind = "event_timer"
    domain = "event"


class ProcessingTimer(Timer):
    """A timer that fires when the clock of the slot reaches its time."""

    kind = "processing_timer"
    domain = "processing"


class EventTimers(Timers[A]):
    """Timers by name that fire when the watermark of the step reaches their times."""

    kind = "event_timers"
    domain = "event"


class ProcessingTimers(Timers[A]):
    """Timers by name that fire when the clock of the slot reaches their times."""

    kind = "processing_timers"
    domain = "processing"


class Fired:
    """The timer that fires: the argument of `on_timer`."""

    __slots__ = ("_name", "at_ms", "declaration")

    def __init__(self, declaration: TimerDeclaration, name: Any, at_ms: int) -> None:
        self.declaration, self._name = declaration, name
        self.at_ms = at_ms
        """The time for which the timer was set, in milliseconds since the Unix epoch."""

    def of(self, timer: Timer) -> bool:
        """Return whether it is this timer: `fired.of(WatchSilence.silence)`."""
        return self.declaration is timer

    def name(self, timers: Timers[A]) -> A | None:
        """Return the name, if it is one of these timers; else None."""
        found: A | None = self._name if self.declaration is timers else None
        return found

    def __repr__(self) -> str:
        name = "" if self._name is None else f" {self._name!r}"
        return f"<timer {self.declaration.name}{name} at {self.at_ms}>"


def _timer_ms(at: object) -> int:
    if type(at) is int:
        # `ctx.watermark_ms + wait` is far out of range before the first watermark and in a drain.
        return min(max(at, -TIME_MAX_MS), TIME_MAX_MS)
    try:
        return instant_ms(at)
    except UnusableTimeError as error:
        raise TypeError(
            f"a timer at {at!r}: give milliseconds since the Unix epoch as an int, or a datetime "
            "with a time zone"
        ) from error
