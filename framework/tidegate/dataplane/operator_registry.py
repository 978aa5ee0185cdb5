"""The operator of each kind of step: one entry for each, which builds it for a chain.

`chain.py` asks this table for the operator of a node and gives itself as the `ChainBuilder`. A new
kind adds an entry here and in `graph/operator_kinds.py`. Sources and sinks are not in the table:
they are connectors, and their declarations choose their readers and writers.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any, Final, Protocol, cast

from tidegate.api.functions import KeyedProcess
from tidegate.api.time.timers import has_timers
from tidegate.dataplane.counters import Counters
from tidegate.dataplane.operators.event_time import Advance
from tidegate.dataplane.operators.keyed import KeyedOperator, KeyedStateLike, copied_ports
from tidegate.dataplane.operators.process import ProcessOperator
from tidegate.dataplane.operators.stateless import Emit, FusedSteps
from tidegate.dataplane.operators.timers import CoOperator, TimedKeyedOperator
from tidegate.dataplane.operators.with_timestamps import TimestampsOperator
from tidegate.dataplane.refusals import Refusals
from tidegate.dataplane.windows.layouts import make_window_operator
from tidegate.dataplane.windows.operator import WindowOperator, WindowState
from tidegate.errors import InternalError
from tidegate.graph.operator_kinds import operator_kind
from tidegate.graph.stream_graph import MAIN, Node
from tidegate.protocol.subtask_snapshot import StepWatermark
from tidegate.stream_elements import RecordBatch, Watermark


class Operator(Protocol):
    """One step of a subtask, or a run of fused steps.

    Between two calls an operator keeps no records, so that a barrier between two batches separates
    exactly the records before it from those behind it.
    """

    forward: Advance
    """Function that passes a watermark on to everything behind the step. The chain sets it."""

    has_timers: bool
    """Whether something may become due while no record comes."""

    @property
    def firing(self) -> bool:
        """Whether results are due. The task calls `fire` until it is false, and meanwhile gives the
        chain no records and no watermark. It may take a barrier between two calls.
        """
        ...

    @property
    def next_processing_ms(self) -> int:
        """The time of the slot's clock at which `advance_processing_time` has something to do."""
        ...

    def open(self) -> None:
        """Prepare the user's function, before the first record."""
        ...

    def process(self, batch: RecordBatch) -> None:
        """Process a batch, and emit all of its results before the return."""
        ...

    def advance(self, watermark: Watermark) -> None:
        """Note the step's watermark, emit all results that are due, and then forward it. An
        operator that has many of them emits them in pieces, by `fire`.
        """
        ...

    def fire(self) -> None:
        """Emit one piece of what is due, and forward the watermark after the last piece."""
        ...

    def set_piece(self, count: int) -> None:
        """Set the number of keys or windows of a piece. A pipeline test sets small ones."""
        ...

    def advance_processing_time(self, now_ms: int) -> None:
        """Emit one piece of the results that are due at a time of the slot's clock."""
        ...

    def close(self) -> None:
        """Release the user's function, after the last record or when the attempt ends."""
        ...


class StatefulOperator(Operator, Protocol):
    """The operator of a kind that is `keyed`."""

    state: KeyedStateLike


class OwnTimeOperator(Operator, Protocol):
    """The operator of a kind that has its `own_time`."""

    def emit_watermark(self) -> None:
        """Forward the step's watermark, if it has changed."""
        ...

    def snapshot(self) -> StepWatermark:
        """Return the step's watermark for a checkpoint."""
        ...


class TwoInputOperator(Operator, Protocol):
    """The operator of a kind that has `two_inputs`."""

    def process_side(self, side: int, batch: RecordBatch) -> None:
        """Process a batch of one input, as `process` does."""
        ...


class ChainBuilder(Protocol):
    """The methods of a chain that a builder may call. All of them build what is behind the step."""

    @property
    def pipeline(self) -> str:
        """The name of the pipeline, for error messages."""
        ...

    def outputs(self, node: Node, port: str, *, maker: Node | None) -> Emit:
        """Return the function that takes the records of one port."""
        ...

    def ports(self, node: Node) -> dict[str, Emit]:
        """Return the outputs of the main port and of each side output that has a reader."""
        ...

    def now_ms(self) -> int:
        """Return the time of the slot's clock in milliseconds since the Unix epoch."""
        ...

    @property
    def counters(self) -> Counters:
        """The counters of the slot."""
        ...

    @property
    def watermark_interval_ms(self) -> int:
        """The least time between two watermarks of a step with its own time."""
        ...

    def asks_for_records(self) -> bool:
        """Return whether the task asks for records now."""
        ...

    def restored_watermark_ms(self, node: Node) -> int:
        """Return the restored watermark of a step with its own time; MIN_MS if it has none."""
        ...

    def refusals(self, node: Node) -> Refusals:
        """Return the policy of a step."""
        ...

    def skipping(self, node: Node) -> Refusals:
        """Return a policy that counts and logs the records that a step refuses."""
        ...

    def key_refusals(self, node: Node) -> Refusals | None:
        """Return the policy of the step's key_by, if the step itself applies it."""
        ...

    def state(self, node: Node) -> KeyedStateLike:
        """Return the restored state of a keyed step."""
        ...

    def fused_run(self, node: Node) -> list[Node]:
        """Return the node, and the fused steps behind it that run in the same loop."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorEntry:
    """The builder of one kind, and the ports on which its operators give copies of their results.

    The chain does not copy the results of such a port again.
    """

    build: Callable[[ChainBuilder, Node], Operator]
    copied_ports: Callable[[Node], Collection[str]] = lambda _: ()


def _fused(chain: ChainBuilder, node: Node) -> FusedSteps:
    run = chain.fused_run(node)
    makers = (step for step in reversed(run) if operator_kind(step.kind).makes_records)
    emit = chain.outputs(run[-1], MAIN, maker=next(makers, None))
    return FusedSteps(chain.pipeline, run, emit, [chain.refusals(step) for step in run])


def _process(chain: ChainBuilder, node: Node) -> ProcessOperator:
    return ProcessOperator(
        chain.pipeline, node, chain.ports(node), chain.refusals(node), now_ms=chain.now_ms
    )


def _with_timestamps(chain: ChainBuilder, node: Node) -> TimestampsOperator:
    return TimestampsOperator(
        chain.pipeline,
        node,
        chain.ports(node),
        chain.skipping(node),
        counters=chain.counters,
        restored_ms=chain.restored_watermark_ms(node),
        interval_ms=chain.watermark_interval_ms,
        now_ms=chain.now_ms,
        asks=chain.asks_for_records,
    )


def _keyed(chain: ChainBuilder, node: Node) -> KeyedOperator:
    function = type(cast("KeyedProcess[Any, Any, Any]", node.function))
    timed = has_timers(function.declared_states)
    return _keyed_operator(TimedKeyedOperator if timed else KeyedOperator, chain, node)


def _co_process(chain: ChainBuilder, node: Node) -> KeyedOperator:
    return _keyed_operator(CoOperator, chain, node)


def _keyed_operator(
    operator: type[KeyedOperator], chain: ChainBuilder, node: Node
) -> KeyedOperator:
    return operator(
        chain.pipeline,
        node,
        chain.state(node),
        chain.ports(node),
        chain.refusals(node),
        chain.key_refusals(node),
        now_ms=chain.now_ms,
    )


def _window(chain: ChainBuilder, node: Node) -> WindowOperator:
    return make_window_operator(
        chain.pipeline,
        node,
        cast("WindowState", chain.state(node)),
        chain.ports(node),
        chain.counters,
        chain.now_ms,
        chain.key_refusals(node),
    )


OPERATORS: Final[dict[str, OperatorEntry]] = {
    **dict.fromkeys(("map", "flat_map", "filter"), OperatorEntry(build=_fused)),
    "process": OperatorEntry(build=_process),
    "with_timestamps": OperatorEntry(build=_with_timestamps),
    "keyed_process": OperatorEntry(
        build=_keyed, copied_ports=lambda node: copied_ports(type(cast("Any", node.function)))
    ),
    "co_process": OperatorEntry(
        build=_co_process, copied_ports=lambda node: copied_ports(type(cast("Any", node.function)))
    ),
    "window": OperatorEntry(build=_window),
}
"""The operators by kind of step."""


def operator_entry(node: Node) -> OperatorEntry:
    """Return the entry of a node's kind. InternalError if the kind has no operator."""
    entry = OPERATORS.get(node.kind)
    if entry is None:
        raise InternalError(f"step {node.id!r} is of the kind {node.kind!r}, which has no operator")
    return entry
