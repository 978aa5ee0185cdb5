"""A harness for one keyed function: push records, read results, side outputs and state.

It runs the data plane's own operator over state in memory, one record a batch; no Kafka, no
threads. What user code raises comes out as the `UserCodeError` that a job would report, with the
user's own exception as its cause.
"""

from __future__ import annotations

from types import TracebackType
from typing import Any, Generic, Self, TypeVar, cast

from tidegate.api.declaration_checks import OnError
from tidegate.api.functions import KeyedProcess, SideOutput
from tidegate.api.kafka import ProducerRecord
from tidegate.api.keys import key_normaliser
from tidegate.api.location import user_location
from tidegate.api.state import ListState, MapState, State, ValueState
from tidegate.api.types import KeyLike
from tidegate.dataplane.counters import Counters
from tidegate.dataplane.operators.checking import Checks
from tidegate.dataplane.operators.keyed import KeyedOperator
from tidegate.dataplane.refusals import Refusals
from tidegate.errors import PipelineError
from tidegate.graph.stream_graph import MAIN, UNKNOWN, Edge, Node
from tidegate.stream_elements import RecordBatch, TopicPartition
from tidegate.testing.cells import CellsByKey

K = TypeVar("K", bound=KeyLike)
A = TypeVar("A")
T = TypeVar("T")
U = TypeVar("U")
V = TypeVar("V")
X = TypeVar("X")

_ORIGIN = TopicPartition("test", 0)


class FunctionHarness(Generic[K, T, U]):
    """`with FunctionHarness(RunningTotal()) as harness: harness.push("ann", order)`.

    The function is opened at once, and closed at the end of the block. `on_error` is the policy of
    the step, as in `process(..., on_error="skip")`.
    """

    def __init__(self, function: KeyedProcess[K, T, U], *, on_error: OnError = "fail") -> None:
        kind = type(function)
        if kind.key_type() is UNKNOWN:
            raise PipelineError(
                f"{kind.__name__} does not declare its types: derive it from KeyedProcess[K, In, "
                "Out]"
            )
        self.function = function
        self._key: Any = None
        self._normalise = key_normaliser(kind.key_type())
        self._pushed = 0
        self._state = CellsByKey(function, kind.key_type(), kind.__name__)
        self._collected: dict[str, list[Any]] = {MAIN: []} | {n: [] for n in kind.declared_outputs}
        node = Node(
            id="function",
            kind="keyed_process",
            inputs=(Edge(node="test", partitioning="key", key=self._key_of_record),),
            uid="function",
            options={},
            place=user_location(),
            function=function,
        )
        types = {MAIN: kind.result_type()} | {n: t.of for n, t in kind.declared_outputs.items()}
        self.counters = Counters()
        """`skipped` and `dead_letters` are what the policy has left out."""
        self._letters: list[ProducerRecord[bytes, bytes]] = []
        refusals = Refusals(node.id, on_error, self.counters, self._collect_letters)
        checks = Checks(kind.__name__, every_field=True)
        emits = {
            port: checks.of_step(node, of, refusals, self._collector(port))
            for port, of in types.items()
        }
        self._operator = KeyedOperator(kind.__name__, node, self._state, emits, refusals)
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

    def push(self, key: K, record: T) -> list[U]:
        """Process one record of a key; its results."""
        self._key = key if self._normalise is None else self._normalise(key)
        self._operator.process(RecordBatch([record], [self._pushed], _ORIGIN))
        self._pushed += 1
        self._state.encode_touched()
        results = self._collected[MAIN]
        self._collected[MAIN] = []
        return cast("list[U]", results)

    def side_output(self, tag: SideOutput[X]) -> list[X]:
        """What went to a side output since it was last read."""
        values = self._collected[tag.name]
        self._collected[tag.name] = []
        return cast("list[X]", values)

    def dead_letters(self) -> list[ProducerRecord[bytes, bytes]]:
        """The dead letters since they were last read, with `on_error="dead_letter"`."""
        letters, self._letters = self._letters, []
        return letters

    def value(self, state: ValueState[V], key: K) -> V:
        """The value of a key: `harness.value(RunningTotal.total, "ann")`."""
        return cast("V", self._cell(state, key).value)

    def items(self, state: ListState[V], key: K) -> list[V]:
        """The list of a key."""
        return list(self._cell(state, key))

    def entries(self, state: MapState[A, V], key: K) -> dict[A, V]:
        """The map of a key."""
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
