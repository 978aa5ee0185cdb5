"""Keyed process functions with timers: the operator calls `on_timer` when time reaches a timer.

The timers of a key are cells of its row, next to its states (`api/time/timers.py`). The index of
each declaration says which keys to look at (`dataplane/time/timer_index.py`). `fire` looks at about
a thousand keys, so that many timers that are due together fire in pieces: the task may take a
barrier between two pieces. The snapshot then holds the timers that remain, and the watermark under
which they are due. After a restore they fire before the first record.

Invariants: every timer at or before the watermark fires before the next step gets the watermark,
and before the next record is processed. The timers of one key fire in order of time, then of
declaration, then of name. A timer that was moved or cancelled does not fire.

The algorithm is Flink's (`InternalTimerServiceImpl`, FLIP-443 for the pieces). Two things differ: a
key has one timer for each declaration and name, and to set it again moves it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from tidegate.api.time.timers import Domain, Fired, TimerDeclaration
from tidegate.dataplane.operators.keyed import KeyedOperator, KeyedStateLike, Rows, copying
from tidegate.dataplane.operators.process import results_of
from tidegate.dataplane.operators.returned import results_guard
from tidegate.dataplane.operators.stateless import Emit
from tidegate.dataplane.refusals import Refusals
from tidegate.dataplane.time.timer_index import TimerIndex
from tidegate.dataplane.user_errors import timer_error
from tidegate.errors import StateValueError, UserCodeError, passes_through
from tidegate.graph.stream_graph import Node
from tidegate.stream_elements import MAX_MS, NEVER, NO_OFFSET, RecordBatch, Watermark
from tidegate.user_exceptions import repr_of

IN_A_ROW_MAX: Final = 1_000
"""The most timers of a key that fire because a call for the timer before has set them, and that
were due at once. More of them are an endless loop.
"""


@dataclass(frozen=True, slots=True)
class _Timer:
    """A declared timer, the position of its cell in a row, and its index."""

    position: int
    declaration: TimerDeclaration
    index: TimerIndex


class _Firings:
    """The timers that have fired, as columns, and the results of their calls."""

    __slots__ = ("numbers", "times_ms", "values")

    def __init__(self) -> None:
        self.times_ms: list[int] = []
        self.values: list[Any] = []
        self.numbers: list[int] = []
        """The number of the timer that led to each result."""


class TimedKeyedOperator(KeyedOperator):
    """One `KeyedProcess` function with timers, of one subtask."""

    has_timers = True
    piece: int = 1_000
    """Number of keys of which one `fire` takes the timers: 2 to 5 ms, so that a barrier waits no
    longer.
    """

    def __init__(
        self,
        pipeline: str,
        node: Node,
        state: KeyedStateLike,
        emits: Mapping[str, Emit],
        refusals: Refusals | None = None,
        key_refusals: Refusals | None = None,
        *,
        now_ms: Callable[[], int],
    ) -> None:
        super().__init__(pipeline, node, state, emits, refusals, key_refusals, now_ms=now_ms)
        kind = type(self._function)
        self._event = self._declared("event")
        self._processing = self._declared("processing")
        self._on_timer = self._function.on_timer
        self._timer_guard = results_guard(kind.result_type())
        if self._copies_results:
            self._on_timer = copying(self._on_timer, self._timer_guard)
        self._loop = self._loop_with_timers
        self._held: Watermark | None = None
        """The watermark that is forwarded when everything that it makes due has fired."""
        self._set_in_a_row: dict[Any, int] = {}
        """The number of timers in a row, for each key, that a call for a timer has set and that
        were due at once.
        """

    def _declared(self, domain: Domain) -> list[_Timer]:
        states = type(self._function).declared_states
        return [
            _Timer(position, state, self.state.timers[name])
            for position, (name, state) in enumerate(states.items())
            if isinstance(state, TimerDeclaration) and state.domain == domain
        ]

    @property
    def firing(self) -> bool:
        """Whether timers are due, or a watermark waits for them."""
        return self._held is not None or self._next_event_ms() <= self._context.time.watermark_ms

    @property
    def next_processing_ms(self) -> int:
        """The time of the slot's clock at which `advance_processing_time` has something to do."""
        return min((timer.index.next_ms for timer in self._processing), default=NEVER)

    def advance(self, watermark: Watermark) -> None:
        """Note the watermark, and begin to fire what is due. Then the watermark is forwarded."""
        self._note(watermark)
        self._held = watermark
        self.fire()

    def fire(self) -> None:
        """Fire one piece of what is due. After the last piece, forward the watermark."""
        watermark_ms = self._context.time.watermark_ms
        self._fire_piece(self._event, watermark_ms)
        if self._next_event_ms() > watermark_ms:
            self._set_in_a_row.clear()
            held, self._held = self._held, None
            if held is not None:
                self.forward(held)

    def advance_processing_time(self, now_ms: int) -> None:
        """Fire one piece of the timers whose time the clock has reached."""
        self._fire_piece(self._processing, now_ms)
        if self.next_processing_ms > now_ms:
            self._set_in_a_row.clear()

    def process(self, batch: RecordBatch) -> None:
        """Process a batch as every keyed function, after everything that is due has fired."""
        while self.firing:
            self.fire()
        super().process(batch)

    def _next_event_ms(self) -> int:
        return min((timer.index.next_ms for timer in self._event), default=NEVER)

    def _loop_with_timers(self, rows: Rows, out_values: list[Any], out_offsets: list[int]) -> None:
        add_value, add_offset = out_values.append, out_offsets.append
        process, context, guard = self._process, self._context, self._guard
        checked_class: type | None = None
        time, indexes = context.time, [timer.index for timer in self._event]
        attributes, names = self._function.__dict__, self._names
        alone = names[0] if len(names) == 1 else None
        for value, key, offset, row in rows:
            if alone is None:
                attributes.update(zip(names, row, strict=True))
            else:
                attributes[alone] = row
            context.key = key
            context.offset = offset
            results = process(value, context)
            if results.__class__ is not checked_class:
                checked_class = guard(results)
            for result in results:
                add_value(result)
                add_offset(offset)
            for index in indexes:
                if index.next_ms <= time.watermark_ms:  # the call has set a timer that is due
                    self._fire_at_once(key, row, out_values, out_offsets)
                    break

    def _fire_at_once(
        self, key: Any, row: Any, out_values: list[Any], out_offsets: list[int]
    ) -> None:
        """Fire what the call for a record has made due. Results of earlier calls go first."""
        batch, time = self._batch, self._context.time
        self._tolerates = False  # an error of what comes now is not one of the record
        by_row = self._refusals.tolerant or batch.timestamps_ms is not None
        if out_values:
            self._emit(results_of(batch, out_values[:], out_offsets[:], by_row=by_row))
            out_values.clear()
            out_offsets.clear()
        self._context.side.emit(batch, by_row=by_row)
        firings = _Firings()
        cells = self._cells(row)
        self._fire_key(self._event, key, cells, time.watermark_ms, firings)
        for timer in self._event:
            # entries of other keys are stale
            timer.index.pop_due(time.watermark_ms, self.piece)
            cells[timer.position].looked_at()
        self._set_in_a_row.clear()
        self._emit_firings(firings)
        self._tolerates = True
        time.timestamps_ms = batch.timestamps_ms

    def set_piece(self, count: int) -> None:
        """Let each `fire` take the timers of this number of keys."""
        self.piece = count

    def _fire_piece(self, timers: Sequence[_Timer], until_ms: int) -> None:
        """Look at the keys of one piece, and emit the results."""
        timer = min(timers, key=lambda each: each.index.next_ms, default=None)
        due = [] if timer is None else timer.index.pop_due(until_ms, self.piece)
        if timer is None or not due:
            return
        rows = iter(self.state.rows([key for _, keys in due for key in keys]))
        firings = _Firings()
        for at_ms, keys in due:
            for key, row in zip(keys, rows, strict=False):
                cells = self._cells(row)
                self._fire_key(timers, key, cells, at_ms, firings)
                cells[timer.position].looked_at()
        self._check_cells()
        self._emit_firings(firings)

    def _fire_key(
        self,
        timers: Sequence[_Timer],
        key: Any,
        cells: Sequence[Any],
        until_ms: int,
        firings: _Firings,
    ) -> None:
        """Fire all timers of a key up to a time, in their order."""
        timer, others = timers[0], len(timers) > 1
        is_in_place = False
        while True:
            if others:
                timer = min(timers, key=lambda each: cells[each.position].next_ms())
            cell = cells[timer.position]
            if cell.next_ms() > until_ms:
                return
            if not is_in_place:
                self._function.__dict__.update(zip(self._names, cells, strict=True))
                self._context.key = key
                is_in_place = True
            name, at_ms = cell.take()
            fired = Fired(timer.declaration, name, at_ms)
            before = [cells[each.position].image(mutable=False) for each in timers]
            self._call(fired, key, firings)
            for each, image in zip(timers, before, strict=True):
                set_ms = cells[each.position].set_since(image)
                if set_ms != NEVER:
                    self._limit_in_a_row(key, fired, set_ms)

    def _call(self, fired: Fired, key: Any, firings: _Firings) -> None:
        context = self._context
        is_event = fired.declaration.domain == "event"
        # In a drain, the watermark of the step is after every time, and that of its state is not.
        firings.times_ms.append(fired.at_ms if is_event else self.state.watermark_ms + 1)
        number = context.offset = len(firings.times_ms) - 1
        has_time = is_event or self._node.event_time
        context.time.timestamps_ms = firings.times_ms if has_time else None
        try:
            results = self._on_timer(fired, context)
            self._timer_guard(results)
            for result in results:
                firings.values.append(result)
                firings.numbers.append(number)
        except StateValueError as error:
            raise timer_error(self._pipeline, self._node, fired, key, error) from error
        except passes_through():
            raise
        except BaseException as error:
            raise timer_error(self._pipeline, self._node, fired, key, error) from error

    def _limit_in_a_row(self, key: Any, fired: Fired, set_ms: int) -> None:
        """Refuse a key whose timers set each other without an end."""
        drains = self._context.time.watermark_ms == MAX_MS
        if set_ms > fired.at_ms and not drains:
            return
        in_a_row = self._set_in_a_row[key] = self._set_in_a_row.get(key, 0) + 1
        if in_a_row > IN_A_ROW_MAX:
            why = (
                "the job drains, so every timer is due. Set no timer if ctx.watermark_ms is "
                f"{MAX_MS}"
                if drains
                else "each time was over already. Set the timer to a later time than fired.at_ms"
            )
            raise UserCodeError(
                f"{self._pipeline}: step uid {self._node.uid!r} ({self._node.location}): on_timer "
                f"has set a timer of key {repr_of(key)} {IN_A_ROW_MAX:,} times in a row, and {why}."
            )

    def _cells(self, row: Any) -> Sequence[Any]:
        cells: Sequence[Any] = row if len(self._names) > 1 else (row,)
        return cells

    def _emit_firings(self, firings: _Firings) -> None:
        count = len(firings.times_ms)
        times_ms = firings.times_ms if self._node.event_time else None
        batch = RecordBatch([None] * count, [NO_OFFSET] * count, None, None, times_ms)
        if firings.values:
            self._emit(results_of(batch, firings.values, firings.numbers, by_row=True))
        self._context.side.emit(batch, by_row=True)


class CoOperator(TimedKeyedOperator):
    """One `CoProcess` function of one subtask, with its state and its timers.

    Both inputs have one set of states and timers. Only the key function and the method that is
    called differ, so the operator switches them for each batch. Which input a batch comes from
    follows from its channel. The watermark of the step is the least of both inputs, as the valve of
    the task combines them; an input without watermarks takes no part.
    """

    methods = ("process_left", "process_right")

    def process_side(self, side: int, batch: RecordBatch) -> None:
        """Process a batch of one input: 0 is the left one, 1 the right one."""
        self._keys, self._process = self._sides[side]
        self.process(batch)
