"""Process functions without a key: one call a record, results and side outputs as batches.

The loop does per record what it must and nothing else; the exception set-up is per batch, and the
position of a failing record comes from the input iterator's length hint.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, cast

from tidegate.api.functions import Process, RecordContext, SideOutput
from tidegate.dataplane.operators.failures import user_code_error
from tidegate.dataplane.operators.stateless import Emit
from tidegate.elements import Origin, RecordBatch
from tidegate.errors import UserCodeError
from tidegate.graph.logical import MAIN, Node


class SideOutputs:
    """Collects what a function sends to its side outputs during a batch; one batch each at its
    end.
    """

    __slots__ = ("_collected", "_declared", "_emits")

    def __init__(self, declared: Mapping[str, SideOutput[Any]], emits: Mapping[str, Emit]) -> None:
        self._declared, self._emits = declared, emits
        self._collected: dict[str, tuple[list[Any], list[int]]] = {}

    def add(self, tag: SideOutput[Any], value: object, offset: int) -> None:
        """Keep a value for the end of the batch; UserCodeError for another function's tag."""
        if self._declared.get(tag.name) is not tag:
            names = ", ".join(sorted(self._declared)) or "none"
            message = (
                f"side output {tag.name!r} is not declared by this function; it declares {names}"
            )
            raise UserCodeError(message)
        values, offsets = self._collected.setdefault(tag.name, ([], []))
        values.append(value)
        offsets.append(offset)

    def emit(self, origin: Origin) -> None:
        """Send what was collected on; values of an output that nobody reads are dropped."""
        if self._collected:
            collected, self._collected = self._collected, {}
            for name, (values, offsets) in collected.items():
                if name in self._emits:
                    self._emits[name](RecordBatch(values, offsets, origin))


class _Context(RecordContext):
    __slots__ = ("offset", "side")

    def __init__(self, side: SideOutputs) -> None:
        self.side, self.offset = side, -1

    def output(self, tag: SideOutput[Any], value: Any) -> None:
        self.side.add(tag, value, self.offset)


class ProcessOperator:
    """One `Process` function of one subtask."""

    def __init__(self, pipeline: str, node: Node, emits: Mapping[str, Emit]) -> None:
        self._pipeline, self._node = pipeline, node
        self._function = cast("Process[Any, Any]", node.function)
        self._emit = emits[MAIN]
        self._context = _Context(SideOutputs(type(self._function).declared_outputs, emits))
        self._process = guard_text_results(
            type(self._function).result_type(), self._function.process
        )

    def open(self) -> None:
        """Let the function make its clients."""
        self._function.open()

    def close(self) -> None:
        """Let the function close them."""
        self._function.close()

    def process(self, batch: RecordBatch) -> None:
        """Call the function for each record; emit results, then side outputs."""
        values: list[Any] = []
        offsets: list[int] = []
        add_value, add_offset = values.append, offsets.append
        process, context = self._process, self._context
        remaining = iter(batch.values)
        try:
            for value, offset in zip(remaining, batch.offsets, strict=False):
                context.offset = offset
                for result in process(value, context):
                    add_value(result)
                    add_offset(offset)
        except Exception as error:
            raise user_code_error(self._pipeline, self._node, batch, remaining, error) from error
        if values:
            self._emit(RecordBatch(values, offsets, batch.origin))
        context.side.emit(batch.origin)


def guard_text_results(
    result_type: object, process: Callable[..., Iterable[Any]]
) -> Callable[..., Iterable[Any]]:
    """`process`, refusing a bare str or bytes as its results.

    For a function whose results are text, `return "abc"` is a legal iterable of three results; it
    is never what was meant. Chosen once, so that no other function pays for it.
    """
    if result_type not in (str, bytes):
        return process

    def guarded(*arguments: Any) -> Iterable[Any]:
        results = process(*arguments)
        if isinstance(results, str | bytes):
            message = "the function returned bare text; return (text,) or yield it"
            raise UserCodeError(message)
        return results

    return guarded
