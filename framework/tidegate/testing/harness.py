"""A harness for one keyed function: push records, read results, side outputs and state.

The harness runs the operator of the data plane over state in memory, with one record in each batch.
It uses no Kafka and no threads. An exception of user code is raised as the `UserCodeError` that a
job would report. The exception of the user is its cause.
"""

from __future__ import annotations

from types import TracebackType
from typing import Any, Generic, Self, TypeVar, cast

from tidegate.api.connectors.kafka_records import ProducerRecord
from tidegate.api.declarations.declaration_checks import OnError
from tidegate.api.declarations.location import user_location
from tidegate.api.functions import KeyedProcess, SideOutput
from tidegate.api.records.types import KeyLike
from tidegate.api.state.keys import key_normaliser
from tidegate.api.state.state import ListState, MapState, State, ValueState
from tidegate.api.time.timers import Timer, Timers, has_timers
from tidegate.api.time.times import Duration, to_ms
from tidegate.api.time.watermarks import Instant, instant_ms
from tidegate.dataplane.counters import Counters
from tidegate.dataplane.operators.checking import Checks
from tidegate.dataplane.operators.keyed import KeyedOperator
from tidegate.dataplane.operators.timers import TimedKeyedOperator
from tidegate.dataplane.refusals import Refusals
from tidegate.errors import PipelineError
from tidegate.graph.stream_graph import MAIN, UNKNOWN, Edge, Node
from tidegate.stream_elements import RecordBatch, TopicPartition, Watermark
from tidegate.testing.cells import CellsByKey

K = TypeVar("K", bound=KeyLike)
A = TypeVar("A")
T = TypeVar("T")
U = TypeVar("U")
V = TypeVar("V")
X = TypeVar("X")

_TEST_PARTITION = TopicPartition("test", 0)


class FunctionHarness(Generic[K, T, U]):
    """A driver for one keyed function.

    `with FunctionHarness(RunningTotal()) as harness: harness.push("ann", order)`.

    The constructor opens the function, and the end of the `with` block closes it. `on_error` is the
    policy of the step, as in `process(..., on_error="skip")`. `now_ms` is the time of the virtual
    clock, which only `advance` moves. The constructor raises PipelineError if the function does not
    declare its types.
    """

    def __init__(
        self, function: KeyedProcess[K, T, U], *, on_error: OnError = "fail", now_ms: int = 0
    ) -> None:
        kind = type(function)
        self._now_ms = now_ms
        if kind.key_type() is UNKNOWN:
            raise PipelineError(
                f"{kind.__name__} does not declare its types: derive it from KeyedProcess[K, In, "
                "Out]."
            )
        self.function = function
        self._key: Any = None
        self._normalise = key_normaliser(kind.key_type())
        self._pushed = 0
        self._state = CellsByKey(kind.declared_states, kind.key_type(), kind.__name__)
        self._collected: dict[str, list[Any]] = {MAIN: []} | {n: [] for n in kind.declared_outputs}
        node = Node(
            id="function",
            kind="keyed_process",
            inputs=(Edge(node="test", partitioning="key", key=self._key_of_record),),
            uid="function",
            options={},
            location=user_location(),
            function=function,
            watermarks=True,
            event_time=True,
        )
        types = {MAIN: kind.result_type()} | {
            n: t.record_type for n, t in kind.declared_outputs.items()
        }
        self.counters = Counters()
        """Counters of the step. `skipped` and `dead_letters` count the records that the `on_error`
        policy has skipped or written as dead letters.
        """
        self._letters: list[ProducerRecord[bytes, bytes]] = []
        refusals = Refusals(node.id, on_error, self.counters, self._collect_letters)
        checks = Checks(kind.__name__, every_field=True)
        emits = {
            port: checks.of_step(node, of, refusals, self._collector(port))
            for port, of in types.items()
        }
        operator = TimedKeyedOperator if has_timers(kind.declared_states) else KeyedOperator
        self._operator = operator(
            kind.__name__, node, self._state, emits, refusals, now_ms=lambda: self._now_ms
        )
        self._operator.open()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._operator.close()

    def push(self, key: K, record: T, *, timestamp_ms: int | None = None) -> list[U]:
        """Process one record of a key and return its results, without side outputs.

        `timestamp_ms` is the event time of the record, which `ctx.timestamp_ms` returns.

        If `on_error` is "fail", raise UserCodeError for an exception of user code, and
        StateValueError for a state that a checkpoint could not store.
        """
        self._key = key if self._normalise is None else self._normalise(key)
        times_ms = None if timestamp_ms is None else [timestamp_ms]
        self._operator.process(
            RecordBatch([record], [self._pushed], _TEST_PARTITION, None, times_ms)
        )
        self._pushed += 1
        return self._results()

    def watermark(self, at: Instant) -> list[U]:
        """Advance the watermark of the step, which `ctx.watermark_ms` returns, and return the
        results of the timers that fire. A lower one than before changes nothing.

        `at` is in milliseconds since the Unix epoch, or a datetime with a time zone.
        """
        self._operator.advance(Watermark(instant_ms(at)))
        while self._operator.firing:
            self._operator.fire()
        return self._results()

    def advance(self, span: Duration) -> list[U]:
        """Advance the clock by a time such as "10 s", and return the results of the processing
        timers that fire.
        """
        self._now_ms += to_ms(span, "FunctionHarness.advance")
        while self._operator.next_processing_ms <= self._now_ms:
            self._operator.advance_processing_time(self._now_ms)
        return self._results()

    def timer(self, timer: Timer, key: K) -> int | None:
        """Return the time of a timer of a key in milliseconds: `harness.timer(Watch.silence, "a")`.
        None if it is not set.
        """
        return cast("int | None", self._cell(timer, key).at_ms)

    def timers(self, timers: Timers[A], key: K) -> dict[A, int]:
        """Return the times in milliseconds of the timers of a key that are set, by name."""
        return dict(self._cell(timers, key).stored() or ())

    def _results(self) -> list[U]:
        self._state.check_storable()
        results = self._collected[MAIN]
        self._collected[MAIN] = []
        return cast("list[U]", results)

    def side_output(self, tag: SideOutput[X]) -> list[X]:
        """Return the values written to a side output since the last call for it."""
        values = self._collected[tag.name]
        self._collected[tag.name] = []
        return cast("list[X]", values)

    def dead_letters(self) -> list[ProducerRecord[bytes, bytes]]:
        """Return the dead letters written since the last call. Empty unless `on_error` is
        "dead_letter".
        """
        letters, self._letters = self._letters, []
        return letters

    def value(self, state: ValueState[V], key: K) -> V:
        """Return the value of a key: `harness.value(RunningTotal.total, "ann")`.

        A key without a record has the default of the state.
        """
        return cast("V", self._cell(state, key).value)

    def items(self, state: ListState[V], key: K) -> list[V]:
        """Return a copy of the list of a key. A key without a record has an empty list."""
        return list(self._cell(state, key))

    def entries(self, state: MapState[A, V], key: K) -> dict[A, V]:
        """Return a copy of the map of a key. A key without a record has an empty map."""
        return dict(self._cell(state, key).items())

    def _cell(self, state: State, key: K) -> Any:
        return self._state.cell(state.name, key)

    def _key_of_record(self, _record: object) -> Any:
        return self._key

    def _collect_letters(self, batch: RecordBatch) -> None:
        self._letters += batch.values

    def _collector(self, port: str) -> Any:
        def collect(batch: RecordBatch) -> None:
            self._collected[port].extend(batch.values)

        return collect
