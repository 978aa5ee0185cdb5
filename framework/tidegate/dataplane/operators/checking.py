"""What a step gives is checked against the declared type, where it leaves the step.

Once per batch, before any reader gets it: the readers' copies, encoders and state rely on the type.
A reader that declares another type than the step (a sink, or the step behind a `key_by`) is checked
for as well. Records that come straight from a source, or through filters only, are not checked: the
source's format has made them.

A policy (`on_error`) of the step, or of the sink or `key_by` whose type it is, covers wrong
results: they are refused, and the others go on.

On the cluster the class of each value is looked at, and the fields of some (`sampling.py`). With
`every_field`, as `PipelineTest` has it, all of each value is.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tidegate.api.field_check import FieldCheck
from tidegate.api.record_fields import fields_of, record_class
from tidegate.api.values import article, class_check, declared_name, fault
from tidegate.dataplane.operators.failures import result_error
from tidegate.dataplane.operators.fan_out import Emit
from tidegate.dataplane.operators.sampling import sampled
from tidegate.dataplane.refusals import Refusals, without
from tidegate.errors import UserCodeError
from tidegate.graph.stream_graph import Node
from tidegate.stream_elements import RecordBatch

_CORRECT = "Correct the step, or declare the type that it gives."
_SUBCLASS = (
    "A subclass with other fields is not encoded as its base class. Declare the subclass, or a "
    "union of classes."
)


@dataclass(frozen=True, slots=True)
class Checks:
    """Makes the checks of one chain."""

    pipeline: str
    every_field: bool

    def of_step(
        self,
        node: Node,
        of: object,
        refusals: Refusals | None,
        emit: Emit,
        *,
        validate_all: bool = False,
    ) -> Emit:
        """Checks what a step gives against the type that the step declares. `validate_all` has
        every field of every record checked, as a sink that reads it wants it.
        """
        return self._checked(node, of, refusals, emit, "declares", validate_all=validate_all)

    def for_reader(
        self,
        node: Node,
        reader: Node,
        of: object,
        refusals: Refusals | None,
        emit: Emit,
        *,
        validate_all: bool = False,
    ) -> Emit:
        """Checks what a step gives against the type that a reader of it declares."""
        kind = "sink" if reader.kind == "sink" else "step"
        declares = f"{kind} {reader.id!r} ({reader.place}) takes"
        return self._checked(node, of, refusals, emit, declares, validate_all=validate_all)

    def _checked(
        self,
        node: Node,
        of: object,
        refusals: Refusals | None,
        emit: Emit,
        declares: str,
        *,
        validate_all: bool,
    ) -> Emit:
        if class_check(of) is None:
            return emit
        tolerant = refusals is not None and refusals.tolerant
        if self.every_field:
            first_wrong = _first_fault(of)
        elif validate_all or tolerant:
            first_wrong = FieldCheck(of).first_wrong
        else:
            first_wrong = sampled(of)

        def emit_checked(batch: RecordBatch) -> None:
            if (index := first_wrong(batch.values)) is not None:
                if refusals is None or not refusals.tolerant:
                    raise self._error(node, of, batch, index, declares)
                refused = {n for n, value in enumerate(batch.values) if first_wrong([value]) == 0}
                for each in sorted(refused):
                    refusals.refuse(batch, each, fault(batch.values[each], of))
                batch = without(batch, refused)
            if batch.values:
                emit(batch)

        return emit_checked

    def _error(
        self, node: Node, of: object, batch: RecordBatch, index: int, declares: str
    ) -> UserCodeError:
        value = batch.values[index]
        found, declared = article(type(value).__name__), declared_name(of)
        inside = fault(value, of)
        if not inside.startswith("it is "):
            what = f"gave {found} in which {inside}, and {declares} {declared}"
            return result_error(self.pipeline, node, batch, index, what, _CORRECT)
        what = f"gave {found}, and {declares} {declared}"
        known: Any = record_class(of)  # no class, if the type is a union
        subclass = isinstance(known, type) and isinstance(value, known)
        remedy = _SUBCLASS if subclass and fields_of(known) else _CORRECT
        return result_error(self.pipeline, node, batch, index, what, remedy)


def _first_fault(of: object) -> Callable[[list[Any]], int | None]:
    def first(values: list[Any]) -> int | None:
        return next((index for index, value in enumerate(values) if fault(value, of)), None)

    return first
