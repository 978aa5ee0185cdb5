"""The check of a step's results against the declared type, where they leave the step.

The check runs once per batch, before any reader gets the batch. The readers' copies, encoders and
state rely on the type. If a reader (a sink, or the step behind a `key_by`) declares another type
than the step, the results are checked against that type as well. Records that come directly from a
source, or through filters only, are not checked, because the source's format has made them.

A policy (`on_error`) of the step, or of the sink or `key_by` that declares the type, covers wrong
results. The policy refuses these, and the others continue.

On the cluster, the class of each value and the fields of some values are checked (`sampling.py`).
With `every_field`, which `PipelineTest` sets, every value is checked completely.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tidegate.api.records.record_fields import fields_of, record_class
from tidegate.api.records.values import article, class_check, declared_name, fault
from tidegate.api.state.exactness import is_made_by_users
from tidegate.api.state.field_check import FieldCheck, UncertainParts
from tidegate.dataplane.columns import without
from tidegate.dataplane.operators.fan_out import Emit
from tidegate.dataplane.operators.sampling import FirstWrong, sampled
from tidegate.dataplane.refusals import Refusals
from tidegate.dataplane.user_errors import result_error
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
    """The maker of the checks of one chain."""

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
        exact: bool = False,
    ) -> Emit:
        """Return `emit` with a check of the step's results against the type that the step declares.

        `validate_all` checks every field of every record, because a sink that reads the results
        wants it. With `exact`, only values count that another slot gets as they are.
        """
        return self._checked(
            node, of, refusals, emit, "declares", validate_all=validate_all, exact=exact
        )

    def for_reader(
        self,
        node: Node,
        reader: Node,
        of: object,
        refusals: Refusals | None,
        emit: Emit,
        *,
        validate_all: bool = False,
        exact: bool = False,
    ) -> Emit:
        """Return `emit` with a check of a step's results against the type of a reader."""
        kind = "sink" if reader.kind == "sink" else "step"
        declares = f"{kind} {reader.id!r} ({reader.location}) takes"
        return self._checked(
            node, of, refusals, emit, declares, validate_all=validate_all, exact=exact
        )

    def of_source(
        self, node: Node, reader: Node, of: object, refusals: Refusals | None, emit: Emit
    ) -> Emit:
        """Return `emit` with a check of the parts of records that code of users has made while the
        format decoded them. The format has checked all other parts.
        """
        first_wrong = UncertainParts().first_wrong(of) if is_made_by_users(of) else None
        if first_wrong is None:
            return emit
        declares = f"step {reader.id!r} ({reader.location}) takes"
        return self._refusing(node, of, refusals, emit, declares, first_wrong, exact=True)

    def _checked(
        self,
        node: Node,
        of: object,
        refusals: Refusals | None,
        emit: Emit,
        declares: str,
        *,
        validate_all: bool,
        exact: bool,
    ) -> Emit:
        if class_check(of) is None and not (exact and of is Any):
            return emit
        tolerant = refusals is not None and refusals.tolerant
        first_wrong: FirstWrong
        if self.every_field or validate_all or tolerant:
            first_wrong = FieldCheck(of, exact=exact).first_wrong
        elif exact:
            first_wrong = _both(sampled(of, exact=True), UncertainParts().first_wrong(of))
        else:
            first_wrong = sampled(of)
        if self.every_field:
            first_wrong = _both(_first_fault(of), first_wrong)
        return self._refusing(node, of, refusals, emit, declares, first_wrong, exact=exact)

    def _refusing(
        self,
        node: Node,
        of: object,
        refusals: Refusals | None,
        emit: Emit,
        declares: str,
        first_wrong: FirstWrong,
        *,
        exact: bool,
    ) -> Emit:
        """Return `emit` with a check that the policy covers."""
        whole = FieldCheck(of, exact=exact)

        def emit_checked(batch: RecordBatch) -> None:
            if (index := first_wrong(batch.values)) is not None:
                if refusals is None or not refusals.tolerant:
                    found = whole.fault(batch.values[index])
                    raise self._error(node, of, batch, index, declares, found)
                refused = {n for n, value in enumerate(batch.values) if first_wrong([value]) == 0}
                for each in sorted(refused):
                    refusals.refuse(batch, each, whole.fault(batch.values[each]))
                batch = without(batch, refused)
            if batch.values:
                emit(batch)

        return emit_checked

    def _error(
        self, node: Node, of: object, batch: RecordBatch, index: int, declares: str, inside: str
    ) -> UserCodeError:
        value = batch.values[index]
        found, declared = article(type(value).__name__), declared_name(of)
        if not inside.startswith("it is "):
            what = f"gave {found} in which {inside}, and {declares} {declared}"
            return result_error(self.pipeline, node, batch, index, what, _CORRECT)
        what = f"gave {found}, and {declares} {declared}"
        known: Any = record_class(of)  # not a class if the type is a union
        subclass = isinstance(known, type) and isinstance(value, known)
        remedy = _SUBCLASS if subclass and fields_of(known) else _CORRECT
        return result_error(self.pipeline, node, batch, index, what, remedy)


def _both(one: FirstWrong, other: FirstWrong | None) -> FirstWrong:
    """Return a check that finds what either finds."""
    if other is None:
        return one

    def first_wrong(values: list[Any]) -> int | None:
        found = [index for check in (one, other) if (index := check(values)) is not None]
        return min(found, default=None)

    return first_wrong


def _first_fault(of: object) -> Callable[[list[Any]], int | None]:
    def first(values: list[Any]) -> int | None:
        return next((index for index, value in enumerate(values) if fault(value, of)), None)

    return first
