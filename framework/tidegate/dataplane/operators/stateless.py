"""Fused stateless steps: a run of map, filter and flat_map becomes one generated loop over a batch.

The loop is ordinary Python that can be printed (`FusedSteps.source`; a slot logs it at level
debug). It has one statement per step, with the step's name, function and location in a comment.
Each flat_map adds a `for` with a guard in front of it (`returned.py`). The loop also fills the
columns that stay parallel to the values: the offsets, and the source keys if a sink wants them.
Nothing is counted, timed or caught per record. If a step raises, the line of the generated loop
identifies the step. The length hint of the input iterator identifies the record. If the step's
policy (`on_error`) lets the job continue, the loop is entered again behind that record.

`chain.py` calls this module. It does not know channels, barriers or tasks.
"""

from __future__ import annotations

import linecache
import operator
from collections.abc import Callable, Sequence
from typing import Any

from tidegate.dataplane.columns import with_results
from tidegate.dataplane.operators.event_time import ForwardsTime
from tidegate.dataplane.operators.returned import results_guard
from tidegate.dataplane.refusals import Refusals
from tidegate.dataplane.user_errors import user_code_error
from tidegate.errors import InternalError
from tidegate.graph.stream_graph import Node, function_name
from tidegate.stream_elements import RecordBatch
from tidegate.user_exceptions import described, process_ends

Emit = Callable[[RecordBatch], None]


class FusedSteps(ForwardsTime):
    """One or more stateless steps in a row, as one operator."""

    def __init__(
        self,
        pipeline: str,
        nodes: Sequence[Node],
        emit: Emit,
        refusals: Sequence[Refusals] = (),
    ) -> None:
        """Generate the loop. `refusals` are the policies of the nodes, in their order. Without
        them, every policy is "fail".
        """
        self._pipeline, self._nodes, self._emit = pipeline, tuple(nodes), emit
        self._refusals = tuple(refusals) or tuple(Refusals(node.id) for node in nodes)
        self._tolerant = any(refusal.tolerant for refusal in self._refusals)
        self.source, self._line_of_first = _loop_source(self._nodes)
        self.file = f"<fused {' '.join(node.id for node in self._nodes)}>"
        # With these lines, the traceback of a failing step shows the generated line.
        lines = self.source.splitlines(keepends=True)
        linecache.cache[self.file] = (len(self.source), None, lines, self.file)
        scope: dict[str, Any] = {f"f{i}": node.function for i, node in enumerate(self._nodes)}
        scope |= {f"g{i}": results_guard(node.record_type) for i, node in enumerate(self._nodes)}
        exec(compile(self.source, self.file, "exec"), scope)  # noqa: S102 - our own text
        self._run: Callable[..., None] = scope["run"]

    def steps_by_line(self) -> dict[int, Node]:
        """Return the step that each line of the loop runs."""
        return {line: self._nodes[step] for line, step in self._line_of_first.items()}

    def open(self) -> None:
        """Do nothing: a plain function has no `open`."""

    def close(self) -> None:
        """Do nothing: a plain function has no `close`."""

    def process(self, batch: RecordBatch) -> None:
        """Run the steps over a batch, and emit the remaining values, if any."""
        if self._tolerant:
            self._process_tolerantly(batch)
            return
        if batch.timestamps_ms is not None:
            self._process_rows(batch)
            return
        values: list[Any] = []
        offsets: list[int] = []
        keys: list[bytes | None] | None = None if batch.keys is None else []
        remaining = iter(batch.values)
        try:
            self._run(remaining, batch.offsets, batch.keys, values, offsets, keys)
        except BaseException as error:
            node = self._nodes[self._failing_step(error)]
            raise user_code_error(self._pipeline, node, batch, remaining, error) from error
        if values:
            self._emit(RecordBatch(values, offsets, batch.topic_partition, keys))

    def _process_rows(self, batch: RecordBatch) -> None:
        """Do the same for a batch with more columns: the loop gets row numbers in place of offsets,
        and the columns of the results follow from their rows.
        """
        values: list[Any] = []
        rows: list[int] = []
        remaining = iter(batch.values)
        try:
            self._run(remaining, range(len(batch)), None, values, rows, None)
        except BaseException as error:
            node = self._nodes[self._failing_step(error)]
            raise user_code_error(self._pipeline, node, batch, remaining, error) from error
        if values:
            self._emit(with_results(batch, values, rows))

    def _process_tolerantly(self, batch: RecordBatch) -> None:
        """Do the same if a step has a policy.

        Each record has its position in place of its offset. The position identifies the results
        that a failing record has already yielded. The offset cannot do this, because several
        records of a batch may come from one offset.
        """
        values: list[Any] = []
        positions: list[int] = []
        remaining, numbers = iter(batch.values), iter(range(len(batch)))
        while True:
            try:
                self._run(remaining, numbers, None, values, positions, None)
                break
            except BaseException as error:
                failing = self._failing_step(error)
                if not self._refusals[failing].covers(error):
                    node = self._nodes[failing]
                    raise user_code_error(self._pipeline, node, batch, remaining, error) from error
                position = len(batch) - operator.length_hint(remaining) - 1
                while positions and positions[-1] == position:
                    positions.pop()
                    values.pop()
                self._refusals[failing].refuse(batch, position, described(error))
        if values:
            self._emit(with_results(batch, values, positions))

    def _failing_step(self, error: BaseException) -> int:
        if isinstance(error, process_ends()):
            raise error
        trace = error.__traceback__
        while trace is not None:
            if trace.tb_frame.f_code.co_filename == self.file:
                return self._line_of_first[trace.tb_lineno]
            trace = trace.tb_next
        message = f"{self.file} raised outside its loop"
        raise InternalError(message) from error


def _loop_source(nodes: Sequence[Node]) -> tuple[str, dict[int, int]]:
    """Return the generated function, and the index of the step that each of its lines runs.

    The function has two loops, which differ only in the column of keys. A test per record would
    cost time for all batches without keys.
    """
    lines = ["def run(remaining, offsets, keys, out_values, out_offsets, out_keys):"]
    step_of_line: dict[int, int] = {}
    comments = [_comment(node) for node in nodes]

    def loop(head: str, tail: Sequence[str]) -> None:
        lines.append(f"        {head}")
        depth, value = 3, "v"
        for index, node in enumerate(nodes):
            indent = "    " * depth
            if node.kind == "filter":
                text = f"{indent}if not f{index}({value}): continue"
            elif node.kind == "map":
                text = f"{indent}v{index} = f{index}({value})"
                value = f"v{index}"
            else:
                text = f"{indent}r{index} = f{index}({value})"
            lines.append(text + comments[index])
            step_of_line[len(lines)] = index
            if node.kind == "flat_map":
                guard = f"if r{index}.__class__ is not u{index}: u{index} = g{index}(r{index})"
                value, depth = f"v{index}", depth + 1
                for line in (guard, f"for {value} in r{index}:"):
                    lines.append(indent + line)
                    step_of_line[len(lines)] = index
        lines.extend("    " * depth + line.format(value=value) for line in tail)

    lines.append("    add_value, add_offset = out_values.append, out_offsets.append")
    usual = [f"u{index}" for index, node in enumerate(nodes) if node.kind == "flat_map"]
    if usual:
        lines.append(f"    {' = '.join(usual)} = None")
    lines.append("    if keys is None:")
    loop("for v, o in zip(remaining, offsets):", ["add_value({value})", "add_offset(o)"])
    lines.append("    else:")
    lines.append("        add_key = out_keys.append")
    loop(
        "for v, o, k in zip(remaining, offsets, keys):",
        ["add_value({value})", "add_offset(o)", "add_key(k)"],
    )
    return "\n".join(lines) + "\n", step_of_line


def _comment(node: Node) -> str:
    """Return a comment that names the step of a line. A name is the user's text and must not end
    the line.
    """
    name = (function_name(node.function) or "").rpartition(":")[2]
    text = f"  # {node.id}: {name}, {node.location}"
    return "".join(mark if mark.isprintable() else "?" for mark in text)
